"""A peer that speaks Kafka's protocol to producers: `python -m tests.torture.targets.kafka TOPIC PORT`.

A broker, and librdkafka's mock cluster, cannot be made to confirm twice, or to die between receiving and confirming.
"""

import itertools
import json
import socket
import struct
import sys
import threading

from . import kafka_protocol as protocol
from .witness import Witness

TOPIC_AUTHORIZATION_FAILED = 29


class Session(threading.Thread):
    """One connection of a client."""

    def __init__(self, witness: Witness, sock: socket.socket, port: int) -> None:
        super().__init__(daemon=True)
        self.witness, self.sock, self.port = witness, sock, port
        self._requests = itertools.count(1)

    def run(self) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", self._read(4))
                self._serve(protocol.Reader(self._read(size)))
        except OSError:
            pass
        finally:
            self.sock.close()

    def _serve(self, request: protocol.Reader) -> None:
        api, version, correlation = request.number(2), request.number(2), request.number(4)
        request.text()  # of the client
        if api == protocol.PRODUCE:
            assert 5 <= version <= protocol.VERSIONS[api], version
            self._produce(request, correlation)
        elif self.witness.manner == "silent":
            return
        elif api == protocol.METADATA:
            assert version == protocol.VERSIONS[api], version
            self._send(correlation, protocol.metadata(request, self.port))
        else:
            assert (api, version) == (protocol.API_VERSIONS, protocol.VERSIONS[api]), (api, version)
            self._send(correlation, protocol.versions())

    def _produce(self, request: protocol.Reader, correlation: int) -> None:
        topics, manner = protocol.produced(request), self.witness.manner
        if manner == "refuses":
            return self._send(correlation, protocol.produce_answer(topics, TOPIC_AUTHORIZATION_FAILED))
        records = [record for partitions in topics.values() for batch in partitions.values() for record in batch]
        receipts = self.witness.receives(*map(id_and_key, records))
        if manner == "twice" and next(self._requests) % 2 == 0:
            return  # the second confirmation of the request before is not this one's
        self.witness.confirms(receipts, lambda: self._send(correlation, protocol.produce_answer(topics, 0)))

    def _send(self, correlation: int, body: bytes) -> None:
        self.sock.sendall(struct.pack(">ii", len(body) + 4, correlation) + body)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data


def id_and_key(record: protocol.Record) -> tuple[str, str]:
    event = json.loads(record.value)
    assert record.headers["message-id"].decode() == event["id"]
    return event["id"], event["subject"]


def main(topic: str, port: str) -> None:
    witness, server = Witness(topic), socket.create_server(("127.0.0.1", int(port)))
    print("ready.", flush=True)
    while True:
        sock, _ = server.accept()
        Session(witness, sock, int(port)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
