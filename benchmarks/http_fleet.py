"""A fleet of HTTP consumers, each of which waits for a job, gets it and finishes it, while another program schedules.

    python -m benchmarks.http_fleet PORT,PORT SECRET TOPIC KIND CONSUMERS EXPECTED

The consumers are spread over the web processes at these ports. KIND is `pop` (the queue protocol) or `reserve` (REST).
The first CONSUMERS jobs warm up everything; then it prints a line. After EXPECTED more jobs, or PATIENCE_SECONDS
without one, it prints a JSON object: jobs per second from the first due time to the last answer; p50, p99 and maximum
of the ms from a job's due time to its answer; how many jobs came early, twice or not at all; and how many the consumer
with the fewest had. The body of each job has its key and its due time: {"key": "a", "due": 1700000000.001}. Needs only
Python, so that two versions can be compared.
"""

import asyncio
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from .http_load import WAIT_SECONDS, Connection, run_loop

PATIENCE_SECONDS = 25.0  # longer than a poll waits
AFTER_SECONDS = 1.0  # for jobs that come twice


class Delivery(NamedTuple):
    """A job that a consumer got. Times in seconds since the epoch, of this machine's clock, which the servers share."""

    key: str
    due: float
    answered: float
    consumer: int


def summary(deliveries: list[Delivery], consumers: int, expected: int) -> dict[str, float]:
    """Return what main() prints."""
    if len(deliveries) < 2:
        raise SystemExit(f"The fleet got {len(deliveries)} of {expected} jobs.")
    late = sorted((each.answered - each.due) * 1000 for each in deliveries)
    percentiles = statistics.quantiles(late, n=100)
    took = max(each.answered for each in deliveries) - min(each.due for each in deliveries)
    times = Counter(each.key for each in deliveries)
    shares = Counter(each.consumer for each in deliveries)
    return {
        "per_second": len(times) / took,
        "p50_ms": percentiles[49],
        "p99_ms": percentiles[98],
        "max_ms": late[-1],
        "early": sum(ms < 0 for ms in late),
        "twice": sum(count > 1 for count in times.values()),
        "missing": expected - len(times),
        "fewest": min(shares[consumer] for consumer in range(consumers)),
    }


Deliver = Callable[[dict[str, Any]], None]


async def pop(connection: Connection, topic: str, deliver: Deliver) -> None:
    """Pop a job and finish it."""
    job = await connection.post("queue/", {"command": "pop", "topic": topic, "wait": WAIT_SECONDS})
    if job["value"] is not None:
        deliver(job["value"])
        finish = {"command": "finish", "topic": topic, "id": job["id"], "attempt": job["attempt"]}
        await connection.post("queue/", finish)


async def reserve(connection: Connection, topic: str, deliver: Deliver) -> None:
    """Reserve a job and finish it."""
    answer = await connection.post(f"topics/{topic}/reserve/", {"count": 1, "wait_seconds": WAIT_SECONDS})
    for job in answer["jobs"]:
        deliver(job["body"])
        await connection.post(f"jobs/{job['id']}/finish/", {"attempt": job["attempt"]})


ROUNDS: dict[str, Callable[[Connection, str, Deliver], Awaitable[None]]] = {"pop": pop, "reserve": reserve}


class Fleet:
    def __init__(self, ports: list[int], secret: str, topic: str, kind: str, consumers: int) -> None:
        self.ports, self.authorization, self.topic = ports, f"Bearer {secret}", topic
        self.one_round, self.consumers = ROUNDS[kind], consumers
        self.deliveries: list[Delivery] = []

    async def run(self, expected: int) -> dict[str, float]:
        """Let the consumers wait; return the summary of what they got."""
        measuring = asyncio.create_task(self._measure(expected))
        consuming = [asyncio.create_task(self._consume(number)) for number in range(self.consumers)]
        done, _ = await asyncio.wait([measuring, *consuming], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises what stopped a consumer
        return measuring.result()

    async def _consume(self, number: int) -> None:
        def deliver(body: dict[str, Any]) -> None:
            self.deliveries.append(Delivery(body["key"], body["due"], time.time(), number))

        connection = Connection(self.ports[number % len(self.ports)], self.authorization)
        await connection.open()
        while True:
            await self.one_round(connection, self.topic, deliver)

    async def _measure(self, expected: int) -> dict[str, float]:
        await self._await_jobs(self.consumers)
        self.deliveries.clear()
        print("warm", flush=True)
        await self._await_jobs(expected)
        await asyncio.sleep(AFTER_SECONDS)
        return summary(self.deliveries, self.consumers, expected)

    async def _await_jobs(self, count: int) -> None:
        """Wait for so many deliveries, or PATIENCE_SECONDS without a new one."""
        found, until = -1, 0.0
        while len(self.deliveries) < count:
            now = time.monotonic()
            if len(self.deliveries) != found:
                found, until = len(self.deliveries), now + PATIENCE_SECONDS
            elif now > until:
                break
            await asyncio.sleep(0.1)


def main(arguments: list[str]) -> None:
    ports, secret, topic, kind, consumers, expected = arguments
    fleet = Fleet([int(port) for port in ports.split(",")], secret, topic, kind, int(consumers))
    print(json.dumps(run_loop(fleet.run(int(expected)))))


if __name__ == "__main__":
    main(sys.argv[1:])
