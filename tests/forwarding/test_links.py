"""The cache of connections: each thread has its own, for as long as it lives."""

import gc
import threading
import weakref

from delaytasks.forwarding.links import Links


class Link:
    """Stands for a connection."""


def test_a_connection_of_a_thread_does_not_outlive_it():
    """A pool of greenlets has a new thread, as `threading` sees it, for each run."""
    links, found = Links(by_thread=True), []

    def open_one():
        assert links.get("amqp", Link) is links.get("amqp", Link)
        found.append(weakref.ref(links.get("amqp", Link)))

    own = links.get("amqp", Link)
    for _ in range(2):
        thread = threading.Thread(target=open_one)
        thread.start()
        thread.join()
    gc.collect()
    assert [link() for link in found] == [None, None]
    assert links.get("amqp", Link) is own
