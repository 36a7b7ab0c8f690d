"""The bound on pipelined requests leaves uvicorn's other parsers alone."""

from types import SimpleNamespace
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from delaytasks.api.limits.pipelining import limit_pipelining


class Transport:
    """A transport of a protocol that parses with another library than h11 or httptools."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def get_protocol(self) -> Any:
        return SimpleNamespace(conn=object())

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


def test_a_connection_with_another_parser_is_paused_and_resumed() -> None:
    limit_pipelining()
    transport = Transport()
    flow: Any = FlowControl(transport)  # type: ignore[arg-type]
    flow.pause_reading()
    flow.resume_reading()
    assert transport.calls == ["pause", "resume"]
