"""beanstalkd with its binlog: `put(delay=...)` through greenstalk, and two processes that reserve and delete."""

import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import greenstalk

from benchmarks import http_load
from benchmarks.contestants import rows
from benchmarks.contestants.beanstalkd_server import FSYNC_MS, Beanstalkd
from benchmarks.contestants.lines import serve, timed

CONFIGURATION = (
    f"binlog on, fsync every {FSYNC_MS} ms (its default: a system crash loses that much); two processes with one"
    " job at a time; delays are whole seconds, rounded up here, which causes most of its lateness and spreads its"
    " burst over a second (a lower bound); no bulk call"
)
CAN = ["schedule.one", "burst", "burst.update", "punctual", "pending", "cancel.one", "http.add"]

server = Beanstalkd()
scheduled: list[int] = []  # the ids of the last `schedule`
client: greenstalk.Client


def describe() -> dict[str, Any]:
    worker = [sys.executable, "-m", "benchmarks.contestants.beanstalkd_worker", str(server.port)]
    return {
        "name": "beanstalkd",
        "version": f"{server.version()}, greenstalk {version('greenstalk')}",
        "configuration": CONFIGURATION,
        "workers": [worker, worker],
        "extra": [],
        "can": CAN,
    }


def setup() -> dict[str, Any]:
    clear()
    return {"servers": [server.pid]}


def schedule(how: str, count: int, delay: float) -> dict[str, Any]:
    with timed() as answer:
        scheduled[:] = [client.put(_body(n, 0, "noop"), delay=math.ceil(delay)) for n in range(count)]
    return answer


def fill(due: list[float], kind: str = "noop") -> dict[str, Any]:
    if kind == "update":
        rows.make(len(due))
    with timed() as answer:
        for n, at in enumerate(due):
            client.put(_body(n, round(at * 1e6), kind), delay=max(0, math.ceil(at - time.time())))
    return answer


def cancel(how: str, count: int) -> dict[str, Any]:
    ids = scheduled[:count]
    with timed() as answer:
        for job in ids:
            client.delete(job)
    return answer | {"cancelled": len(ids)}


def http_add(connections: int, duration: float) -> dict[str, Any]:
    """Put jobs through this many clients of its own, each in a thread, for `duration` seconds after a warm-up."""
    durations: list[float] = []
    begun = time.monotonic() + http_load.WARMUP_SECONDS

    def put_on(number: int) -> None:
        own, n = greenstalk.Client(("127.0.0.1", server.port)), 0
        while (at := time.monotonic()) < begun + duration:
            own.put(_body(number * 10**9 + n, 0, "noop"), delay=http_load.DELAY_SECONDS)
            n += 1
            if at >= begun:
                durations.append(time.monotonic() - at)
        own.close()

    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(put_on, range(connections)))  # raises what a thread raised
    return http_load.summary(durations, time.monotonic() - begun)


def left() -> dict[str, Any]:
    stats = client.stats()
    return {"left": stats["current-jobs-ready"] + stats["current-jobs-reserved"] + stats["current-jobs-delayed"]}


def clear() -> None:
    """Restart beanstalkd empty, which takes the same time for any number of jobs. Closes all connections."""
    global client
    if server.pid and not left()["left"]:
        return
    server.start_empty()
    client = greenstalk.Client(("127.0.0.1", server.port))


def _body(n: int, due_us: int, kind: str) -> str:
    return json.dumps({"n": n, "due": due_us, "kind": kind})


if __name__ == "__main__":
    try:
        serve({f.__name__: f for f in (describe, setup, schedule, fill, cancel, http_add, left, clear)})
    finally:
        server.stop()
