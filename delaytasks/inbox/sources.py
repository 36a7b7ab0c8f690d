"""Interface of a source of messages: the methods that the consumer calls on a broker's client."""

from collections.abc import Sequence
from typing import Protocol

from .formats import Received, Refused


class BrokerDown(Exception):
    """The broker is unavailable or refuses this client. The consumer reconnects and gets unconfirmed messages again."""


class Source(Protocol):
    """A connection from which messages are taken. Every method raises BrokerDown."""

    def receive(self, count: int, seconds: float) -> Sequence[Received]:
        """Return at most `count` messages; wait at most `seconds` for the first one."""
        ...

    def refuse(self, received: Received, refused: Refused) -> None:
        """Send a message to the dead-letter topic or queue, and wait until the broker has confirmed it."""
        ...

    def confirm(self) -> None:
        """Confirm all messages that were received: the broker does not deliver them again."""
        ...

    def close(self) -> None:
        """Close the connection. Messages that were not confirmed are delivered again. Raises nothing."""
        ...
