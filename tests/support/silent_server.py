"""A TCP server that accepts connections and never answers, as a broker does that hangs."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_server() -> Iterator[int]:
    """Serve on a loopback port until the block ends. Yield the port."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:

        def accept() -> None:
            while True:
                try:
                    accepted.append(listener.accept()[0])
                except OSError:  # closed by the end of the block
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            thread.join(5)
            for connection in accepted:
                connection.close()
