"""A peer that speaks AMQP, the target of an Amqp or a CeleryTask: `python -m tests.torture.targets.amqp TOPIC PORT`."""

import json
import sys
import threading
from typing import Any

from amqp.basic_message import Message

from tests.forwarding.amqp_peer import Peer, Session, Step, silent

from .witness import Witness

HANDSHAKE = {(10, 11), (10, 40), (20, 10), (85, 10)}
REFUSED = 403


class WitnessedPeer(Peer):
    """Records each message before it confirms it."""

    def __init__(self, witness: Witness, port: int) -> None:
        self.witness = witness
        super().__init__(port)

    @property
    def mute(self) -> set[tuple[int, int]]:
        return HANDSHAKE if self.witness.manner == "silent" else set()

    @mute.setter
    def mute(self, methods: set[tuple[int, int]]) -> None:
        """The manner says it."""

    def step_for(self, session: Session, body: bytes) -> Step:
        manner = self.witness.manner
        if manner == "refuses":
            return refuse
        receipts = self.witness.receives(id_and_key(session.properties, body))

        def confirm(session: Session, tag: int) -> None:
            if manner == "twice" and tag % 2 == 0:
                return silent(session, tag)  # the second confirmation of the message before is not this one's
            self.witness.confirms(receipts, lambda: session.send((60, 80), "Lb", tag, False))

        return confirm


def refuse(session: Session, tag: int) -> None:
    session.send((20, 40), "BsBB", REFUSED, "ACCESS_REFUSED", 60, 40)


def id_and_key(properties: bytes, body: bytes) -> tuple[str, str]:
    """Return the id and the key of a job from a CloudEvent, or from the message of a Celery task."""
    message = Message()
    message._load_properties(60, properties, 0)
    content: Any = json.loads(body)
    if isinstance(content, dict):
        assert message.properties["message_id"] == content["id"]
        return content["id"], content["subject"]
    _args, kwargs, _options = content
    return message.properties["application_headers"]["id"], kwargs["key"]


def main(topic: str, port: str) -> None:
    with WitnessedPeer(Witness(topic), int(port)):
        print("ready.", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
