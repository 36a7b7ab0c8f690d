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
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

try:
    import uvloop
except ImportError:
    uvloop = None

DELAY_SECONDS = 600
WAIT_SECONDS = 20
WARMUP_SECONDS = 1.5


class Failed(Exception):
    """A request was refused."""


class Connection(asyncio.Protocol):
    """One persistent connection. `authorization` is the header of this name.

    Not asyncio's streams: the load must not take the time of the server, with which it shares the machine.
    """

    def __init__(self, port: int, authorization: str) -> None:
        self.port = port
        self.head = f"Host: 127.0.0.1\r\nAuthorization: {authorization}\r\nContent-Type: application/json\r\n"
        self.received = b""

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", self.port)

    def close(self) -> None:
        self.transport.close()

    async def post(self, path: str, data: Any) -> Any:
        """Send a request and return its answer. Raises Failed."""
        body = json.dumps(data)
        head = f"POST /api/{path} HTTP/1.1\r\n{self.head}Content-Length: {len(body)}\r\n\r\n"
        self.answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()
        self.transport.write((head + body).encode())
        status, text = await self.answer
        if status[:2] != b"20" or b'"success":false' in text:
            raise Failed(f"{path}: {status!r} {text[:300]!r}")
        return json.loads(text)

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, text = self.received.partition(b"\r\n\r\n")
        if not end:
            return
        at = head.lower().index(b"content-length:") + 15
        if len(text) >= int(head[at:].partition(b"\r\n")[0]):
            self.received = b""
            self.answer.set_result((head[9:12], text))

    def connection_lost(self, error: Exception | None) -> None:
        answer = getattr(self, "answer", None)
        if answer is not None and not answer.done():
            answer.set_exception(Failed(f"The server has closed the connection: {error!r}"))


def run_loop(main: Coroutine[Any, Any, dict[str, float]]) -> dict[str, float]:
    """Run the coroutine with uvloop, where it is installed."""
    with asyncio.Runner(loop_factory=getattr(uvloop, "new_event_loop", None)) as runner:
        return runner.run(main)


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
        connection.close()

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
    print(json.dumps(run_loop(load)))


if __name__ == "__main__":
    main(sys.argv[1:])
