"""Bound what uvicorn keeps of pipelined requests: those that a client sends before it has the answers to earlier ones.

uvicorn stops reading from a connection with pipelined requests, but reads on whenever an application asks for a
request's body, or a request is answered. So a stranger could make it keep all that a connection brings, about 60 MiB a
second with h11, and a hundred times the size of the requests with httptools.
"""

from typing import Any

MOST_PIPELINED = 1000  # requests that httptools may parse ahead; then the connection is aborted
# With more that is read and not begun, a connection is not read; with less, it is, to notice that the client has left.
FEW_REQUESTS, FEW_BYTES = 10, 16 * 1024  # httptools, h11


def limit_pipelining() -> None:
    """Let uvicorn read from a connection only after it has begun most of the requests that it has read from it.

    Call this in asgi.py. uvicorn reads about one buffer ahead: 256 KiB for a connection. With httptools, a connection
    is aborted if it has more than 1,000 waiting requests. Only h11 and httptools are bounded, not uvicorn's
    other parsers. Does nothing without uvicorn, and nothing to other servers.
    """
    try:
        from uvicorn.protocols.http import flow_control
    except ImportError:
        return
    cls: Any = flow_control.FlowControl
    if getattr(cls, "limits_pipelining", False):
        return
    pause, resume = cls.pause_reading, cls.resume_reading

    def pause_reading(self: Any) -> None:
        pipeline = getattr(self._transport.get_protocol(), "pipeline", ())
        if len(pipeline) >= MOST_PIPELINED:
            self._transport.abort()
            raise ConnectionAbortedError  # stops the parser
        pause(self)

    def resume_reading(self: Any) -> None:
        if not _has_many(self._transport.get_protocol()):
            resume(self)

    cls.pause_reading, cls.resume_reading, cls.limits_pipelining = pause_reading, resume_reading, True


def _has_many(protocol: Any) -> bool:
    """Return whether the server has read more than a few requests of this connection that it has not begun yet."""
    if (connection := getattr(protocol, "conn", None)) is None:
        return len(getattr(protocol, "pipeline", ())) > FEW_REQUESTS  # httptools
    from h11 import DONE, Connection

    if not isinstance(connection, Connection):
        return False  # another parser
    # Once the request is answered, uvicorn looks at the next one, and pauses again if that is whole.
    is_answered = connection.our_state is DONE
    return connection.their_state is DONE and not is_answered and len(connection.trailing_data[0]) > FEW_BYTES
