"""HTTP clients of two web processes, one of each release, that share a site.

Each response must have status 200. A client that gets anything else fails with an AssertionError.
"""

import time
from concurrent.futures import ThreadPoolExecutor

from tests.support.http_client import Api
from tests.support.servers import PATIENCE

# What happens to a job -> its topic. The key is the first, the web process that adds it, and a number.
TOPICS = {
    "consumed": "letter.http",  # over HTTP; it has no handler
    "handled": "parcel.note",  # by the workers of both releases
    "cancelled": "parcel.share",  # before it is due
}
ADDED = 50  # jobs of each topic that are added through each web process
SPREAD_SECONDS = 2
LATER_SECONDS = 1_800
RUN_SECONDS = 40


class Traffic:
    """Producers and consumers of both web processes, which run at the same time.

    webs     name of the release: client of its web process
    popped   (name of the consumer, key) of each job, as often as it was reserved
    """

    def __init__(self, webs: dict[str, Api]) -> None:
        self.webs = webs
        self.popped: list[tuple[str, str]] = []

    def names(self, end: str) -> set[tuple[str, str]]:
        """Return (topic, key) of the jobs that are consumed, handled or cancelled."""
        return {(TOPICS[end], f"{end}-{name}-{n}") for name in self.webs for n in range(ADDED)}

    def run(self) -> None:
        """Add jobs through each web process, and consume and cancel them through both."""
        both_ways = list(zip(self.webs, reversed(self.webs), strict=True))
        with ThreadPoolExecutor(2 * len(both_ways)) as clients:
            consumers = [clients.submit(self.consume, *names) for names in both_ways]
            producers = [clients.submit(self.produce, *names) for names in both_ways]
            for client in (*producers, *consumers):
                client.result()

    def produce(self, by: str, other: str) -> None:
        """Add jobs for HTTP consumers and for workers, and jobs that are cancelled through the other web process."""
        for n in range(ADDED):
            delay = SPREAD_SECONDS * n / ADDED
            self.add(by, "consumed", n, delay)
            self.add(by, "handled", n, delay)
            key = self.add(by, "cancelled", n, LATER_SECONDS)
            cancelled = self.webs[other].command("delete", id=key)
            assert cancelled["value"] == "cancelled", cancelled

    def add(self, by: str, end: str, number: int, delay: float) -> str:
        """Add a job; return its key."""
        key = f"{end}-{by}-{number}"
        added = self.webs[by].command("add", topic=TOPICS[end], id=key, delay=delay, TTR=60, body=None)
        assert added.get("result") == "created", added
        return key

    def consume(self, by: str, other: str) -> None:
        """Reserve jobs until all were reserved. Finish every second one through the other web process."""
        deadline = time.monotonic() + PATIENCE * RUN_SECONDS
        keys = {key for _, key in self.names("consumed")}
        while missing := keys - {key for _, key in self.popped}:
            assert time.monotonic() < deadline, f"Not reserved: {sorted(missing)}"
            for job in self.webs[by].command("pop", topic=TOPICS["consumed"], count=2, wait=0.5)["value"] or ():
                self.popped.append((by, job["id"]))
                finisher = self.webs[by if len(self.popped) % 2 else other]
                answer = finisher.post(f"jobs/{job['job']}/finish/", {"attempt": job["attempt"]})
                assert (answer.status, answer.data["state"]) == (200, "finished"), answer

    def assert_each_was_reserved_once_and_both_consumers_got_some(self) -> None:
        assert sorted(key for _, key in self.popped) == sorted(key for _, key in self.names("consumed"))
        assert {name for name, _ in self.popped} == set(self.webs)
