"""Cache of connections to brokers, so that several messages can use the same connection."""

import os
import threading
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

Link = TypeVar("Link")


class Links:
    """A process's connections, by key.

    A forked process starts with an empty cache. It keeps its parent's connections unused but referenced: closing them
    could close them for the parent, too, and a Kafka producer of the parent delivers nothing in the child.
    """

    def __init__(self, *, by_thread: bool) -> None:
        self._by_thread = by_thread
        self._lock = threading.Lock()
        self._links: dict[Hashable, object] = {}
        self._parents: list[object] = []
        os.register_at_fork(after_in_child=self._forget)

    def get(self, key: Hashable, open_link: Callable[[], Link]) -> Link:
        """Return the connection for this key, opening it if needed. With by_thread, each thread has its own."""
        own = (threading.get_ident(), key) if self._by_thread else key
        with self._lock:
            if own not in self._links:
                self._links[own] = open_link()
            return cast(Link, self._links[own])

    def drop(self, link: object) -> None:
        """Forget a connection: the next call of get() opens another one."""
        with self._lock:
            for key in [key for key, value in self._links.items() if value is link]:
                del self._links[key]

    def _forget(self) -> None:
        self._parents.append(self._links)
        self._links, self._lock = {}, threading.Lock()
