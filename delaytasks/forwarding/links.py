"""Cache of connections to brokers, so that several messages can use the same connection."""

import os
import threading
from collections.abc import Callable, Hashable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

Link = TypeVar("Link")


class Links:
    """A process's connections, by key. With by_thread, each thread has its own, which are dropped when it ends.

    A forked process starts with an empty cache. It keeps its parent's connections unused but referenced: closing them
    could close them for the parent, too, and a Kafka producer of the parent delivers nothing in the child.
    """

    def __init__(self, *, by_thread: bool) -> None:
        self._make: Callable[[], Any] = threading.local if by_thread else SimpleNamespace
        self._lock = threading.Lock()
        self._holder: Any = self._make()  # its attributes are the connections
        self._parents: list[object] = []
        os.register_at_fork(after_in_child=self._forget)

    def get(self, key: Hashable, open_link: Callable[[], Link]) -> Link:
        """Return the connection for this key, opening it if needed."""
        with self._lock:
            links: dict[Hashable, object] = self._holder.__dict__
            if key not in links:
                links[key] = open_link()
            return cast(Link, links[key])

    def drop(self, link: object) -> None:
        """Forget a connection: the next call of get() opens another one."""
        with self._lock:
            links: dict[Hashable, object] = self._holder.__dict__
            for key in [key for key, value in links.items() if value is link]:
                del links[key]

    def _forget(self) -> None:
        self._parents.append(self._holder)
        self._holder, self._lock = self._make(), threading.Lock()
