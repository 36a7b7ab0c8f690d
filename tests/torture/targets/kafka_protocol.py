"""As much of Kafka's protocol as a producer needs: versions, metadata, and batches of records that are produced."""

import struct
from typing import NamedTuple

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
# Request -> the newest version that is answered. A client sends headers of records only if Fetch is offered, too.
VERSIONS = {PRODUCE: 7, FETCH: 11, METADATA: 4, API_VERSIONS: 3}
HEADER_OF_BATCH = 61  # bytes before the first record


class Record(NamedTuple):
    key: bytes | None
    value: bytes
    headers: dict[str, bytes]


class Reader:
    """Reads the fields of a request one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._data)

    def take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        assert len(piece) == size, "a request is too short"
        self._at += size
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)

    def text(self) -> str | None:
        size = self.number(2)
        return None if size < 0 else self.take(size).decode()

    def bytes_of_varint(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def produced(reader: Reader) -> dict[str, dict[int, list[Record]]]:
    """Return the records of a Produce request by topic and partition."""
    reader.text(), reader.number(2), reader.number(4)  # of the transaction; acks; timeout
    found: dict[str, dict[int, list[Record]]] = {}
    for _ in range(reader.number(4)):
        partitions = found.setdefault(reader.text() or "", {})
        for _ in range(reader.number(4)):
            partition = reader.number(4)
            partitions[partition] = _batch(reader.take(reader.number(4)))
    return found


def _batch(data: bytes) -> list[Record]:
    assert data[16] == 2, "not the second version of batches"
    assert data[22] & 7 == 0, "a batch is compressed"
    reader = Reader(data)
    reader.take(HEADER_OF_BATCH - 4)
    return [_record(reader) for _ in range(reader.number(4))]


def _record(reader: Reader) -> Record:
    reader.varint(), reader.take(1), reader.varint(), reader.varint()  # length, attributes, times, offset
    key, value = reader.bytes_of_varint(), reader.bytes_of_varint() or b""
    names = ((reader.bytes_of_varint() or b"").decode() for _ in range(reader.varint()))
    return Record(key, value, {name: reader.bytes_of_varint() or b"" for name in names})


def text(value: str | None) -> bytes:
    return b"\xff\xff" if value is None else struct.pack(">h", len(value.encode())) + value.encode()


def versions() -> bytes:
    """Answer ApiVersions, in its third version."""
    keys = b"".join(struct.pack(">hhhb", key, 0, newest, 0) for key, newest in VERSIONS.items())
    return struct.pack(">hb", 0, len(VERSIONS) + 1) + keys + struct.pack(">ib", 0, 0)


def metadata(reader: Reader, port: int) -> bytes:
    """Answer Metadata, in its fourth version: one broker, and one partition of each topic that is asked for."""
    topics = [reader.text() or "" for _ in range(max(reader.number(4), 0))]
    broker = struct.pack(">ii", 1, 1) + text("127.0.0.1") + struct.pack(">i", port) + text(None)
    partition = struct.pack(">ihiiiiii", 1, 0, 0, 1, 1, 1, 1, 1)
    each = b"".join(struct.pack(">h", 0) + text(topic) + b"\0" + partition for topic in topics)
    return struct.pack(">i", 0) + broker + text(None) + struct.pack(">ii", 1, len(topics)) + each


def produce_answer(partitions: dict[str, dict[int, list[Record]]], error: int) -> bytes:
    """Answer Produce, in versions 5 to 7."""
    body = struct.pack(">i", len(partitions))
    for topic, those in partitions.items():
        body += text(topic) + struct.pack(">i", len(those))
        for partition in those:
            body += struct.pack(">ihqqq", partition, error, -1 if error else 0, -1, 0)
    return body + struct.pack(">i", 0)
