"""Connections to brokers that are kept from one message to the next."""

import os
import threading
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

Link = TypeVar("Link")


class Links:
    """Connections by key, of this process only.

    A forked process begins without any. It keeps those of its parent, unused: closing them could end them for the
    parent, too, and a Kafka producer of the parent delivers nothing in the child.
    """

    def __init__(self, *, by_thread: bool) -> None:
        self._by_thread = by_thread
        self._lock = threading.Lock()
        self._links: dict[Hashable, object] = {}
        self._parents: list[object] = []
        os.register_at_fork(after_in_child=self._forget)

    def get(self, key: Hashable, open_link: Callable[[], Link]) -> Link:
        """Return the connection for this key, opened if there is none. With by_thread, each thread has its own."""
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
