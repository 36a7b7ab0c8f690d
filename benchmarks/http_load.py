"""Load for an HTTP server: many connections, each of which sends its next request when the last one is answered.

    python -m benchmarks.http_load PORT SECRET TOPIC KIND CONNECTIONS SECONDS [PER_SECOND]

KIND is `add` (the queue protocol's add), `job` (POST /jobs/) or `cycle` (add, pop, finish). Prints a JSON object with
the rounds per second and the p50 and p99 of a round in ms. With PER_SECOND, the connections together begin so many
rounds a second, or fewer if the answers take longer. Needs only Python, so that two versions can be compared.
"""

import asyncio
import json
import math
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

DELAY_SECONDS = 600
WAIT_SECONDS = 20
WARMUP_SECONDS = 1.5


class Failed(Exception):
    """A request was refused."""


class Connection:
    """One persistent connection. `authorization` is the header of this name."""

    def __init__(self, port: int, authorization: str) -> None:
        self.port = port
        self.head = f"Host: 127.0.0.1\r\nAuthorization: {authorization}\r\nContent-Type: application/json\r\n"

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def post(self, path: str, data: Any) -> Any:
        """Send a request and return its answer. Raises Failed."""
        body = json.dumps(data).encode()
        head = f"POST /api/{path} HTTP/1.1\r\n{self.head}Content-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        at = answer.lower().index(b"content-length:") + 15
        text = await self.reader.readexactly(int(answer[at : answer.index(b"\r\n", at)]))
        if answer[9:11] != b"20" or b'"success":false' in text:
            raise Failed(f"{path}: {answer[:15]!r} {text[:300]!r}")
        return json.loads(text)


Round = Callable[[Connection, str, str], Awaitable[None]]


async def add(connection: Connection, topic: str, key: str, delay: float = DELAY_SECONDS) -> None:
    command = {"command": "add", "topic": topic, "id": key, "delay": delay, "TTR": 60, "body": {"order": key}}
    await connection.post("queue/", command)


async def job(connection: Connection, topic: str, key: str) -> None:
    data = {"topic": topic, "key": key, "delay_seconds": DELAY_SECONDS, "body": {"order": key}}
    await connection.post("jobs/", data)


async def cycle(connection: Connection, topic: str, key: str) -> None:
    await add(connection, topic, key, delay=0)
    if not await pop_and_finish(connection, topic):
        raise Failed("No job was ready in time.")


async def pop_and_finish(connection: Connection, topic: str) -> bool:
    """Return whether a job was ready in time."""
    popped = await connection.post("queue/", {"command": "pop", "topic": topic, "wait": WAIT_SECONDS})
    if popped["value"] is None:
        return False
    finish = {"command": "finish", "topic": topic, "id": popped["id"], "attempt": popped["attempt"]}
    await connection.post("queue/", finish)
    return True


async def publish(connection: Connection, queue: str, key: str) -> None:
    """Publish through RabbitMQ's management plugin, whose addresses begin with /api/ too."""
    properties = {"delivery_mode": 2, "expiration": str(DELAY_SECONDS * 1000), "message_id": key}
    message = {"payload": json.dumps({"order": key}), "payload_encoding": "string"}
    routing = {"properties": properties, "routing_key": queue}
    answer = await connection.post("exchanges/%2F/amq.default/publish", routing | message)
    if not answer["routed"]:
        raise Failed("The message was not routed.")


ROUNDS: dict[str, Round] = {"add": add, "job": job, "cycle": cycle, "publish": publish}


async def run(
    port: int, authorization: str, topic: str, kind: str, connections: int, seconds: float, per_second: float = math.inf
) -> dict[str, float]:
    """Return the rounds per second, and their p50 and p99 in ms, after a warm-up."""
    one_round, durations = ROUNDS[kind], list[float]()
    begun = time.monotonic() + WARMUP_SECONDS
    prefix = f"{kind}:{time.time_ns()}"

    async def client(number: int) -> None:
        connection, n = Connection(port, authorization), 0
        await connection.open()
        first, pause = time.monotonic() + number / per_second, connections / per_second
        while (at := time.monotonic()) < begun + seconds:
            if (wait := first + n * pause - at) > 0:
                await asyncio.sleep(wait)
                at += wait
            await one_round(connection, topic, f"{prefix}:{number}:{n}")
            n += 1
            if at >= begun:
                durations.append(time.monotonic() - at)
        connection.writer.close()

    await asyncio.gather(*map(client, range(connections)))
    took = time.monotonic() - begun
    return summary(durations, took)


def summary(durations: list[float], took: float) -> dict[str, float]:
    """Return what run() returns, for rounds of these durations that took so many seconds in all."""
    percentiles = statistics.quantiles(durations, n=100)
    return {"per_second": len(durations) / took, "p50_ms": percentiles[49] * 1000, "p99_ms": percentiles[98] * 1000}


def main(arguments: list[str]) -> None:
    port, secret, topic, kind, connections, *numbers = arguments
    load = run(int(port), f"Bearer {secret}", topic, kind, int(connections), *map(float, numbers))
    print(json.dumps(asyncio.run(load)))


if __name__ == "__main__":
    main(sys.argv[1:])
