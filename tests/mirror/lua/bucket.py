"""One bucket of the mirror for the scripts' tests: place entries by hand, call a script, read where they are."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from delaytasks.mirror.base import Promotion
from delaytasks.mirror.redis.client import call_script
from delaytasks.mirror.redis.keys import Keys, decode_score, member, scores_in_order
from delaytasks.states import AGE_MS

NOW = 1_893_456_000_000  # ms; 13 digits, as production has
GRACE = 5_000
TOPIC = "order.close"
OTHER = "refund.check"
RUNNERS = "queue:runners"


class At(NamedTuple):
    """An entry: its zset, and the time and the priority in its score."""

    zset: str  # "due" or "ready"
    ms: int
    priority: int = 0

    @property
    def score(self) -> float:
        aged = self.priority * AGE_MS + 0.5 if self.zset == "ready" and self.priority else 0
        return self.ms - aged - self.priority / 64


class Settle(NamedTuple):
    job: int
    seen: int
    new: int


class Bucket:
    """A bucket with its own key prefix. Jobs are given by id; their topic is TOPIC by default."""

    def __init__(self, client: Any, prefix: str) -> None:
        self.client = client
        self.keys = Keys(prefix, "default", 1)
        self.due_key = self.keys.due(0)
        self._head = [self.keys.ready_prefix(0), self.keys.channel]

    def call(self, script: str, keys: list[str], args: list[Any]) -> Any:
        return call_script(self.client, script, keys, args)

    # DueIndex

    def put(self, job: int, at: At | None, topic: str = TOPIC) -> None:
        """Write an entry without a script; None for no entry."""
        if at is not None:
            key = self.due_key if at.zset == "due" else self.keys.ready(0, topic)
            self.client.zadd(key, {member(job, topic): at.score})

    def everywhere(self, job: int, topic: str = TOPIC) -> list[At]:
        """Return all entries of a job; more than one is a defect."""
        with self.client.pipeline() as both:
            both.zscore(self.due_key, member(job, topic)).zscore(self.keys.ready(0, topic), member(job, topic))
            scores = zip(("due", "ready"), both.execute(), strict=True)
        return [At(zset, *decode_score(score)) for zset, score in scores if score is not None]

    def where(self, job: int, topic: str = TOPIC) -> At | None:
        entries = self.everywhere(job, topic)
        assert len(entries) < 2, f"job {job} has two entries: {entries}"
        return entries[0] if entries else None

    def due(self) -> dict[str, int]:
        return {name: int(ms) for name, ms in self.client.zrange(self.due_key, 0, -1, withscores=True)}

    def ready(self, topic: str = TOPIC) -> dict[str, int]:
        return {name: int(ms) for name, ms in self.client.zrange(self.keys.ready(0, topic), 0, -1, withscores=True)}

    def counters(self) -> dict[str, int]:
        return {name: int(value) for name, value in self.client.hgetall(self.keys.counters(0)).items()}

    # Scripts

    def add(self, job: int, ms: int, *, priority: int = 0, mark: bool = False, topic: str = TOPIC) -> int:
        return self.add_all([(job, ms)], priority=priority, mark=mark, topic=topic)

    def add_all(
        self, entries: Iterable[tuple[int, int]], *, priority: int = 0, mark: bool = False, topic: str = TOPIC
    ) -> int:
        flat = [value for job, ms in entries for value in (member(job, topic), topic, ms, priority)]
        return self.call("add", [self.due_key], [*self._head, int(mark), *flat])

    def settle(self, job: int, seen: int, new: int, *, topic: str = TOPIC) -> int:
        return self.settle_all([Settle(job, seen, new)], topic=topic)

    def settle_all(self, settlements: Iterable[Settle], *, topic: str = TOPIC) -> int:
        flat = [value for job, seen, new in settlements for value in (member(job, topic), topic, seen, new)]
        return self.call("settle", [self.due_key], [*self._head, *flat])

    def promote(
        self, now: int = NOW, *, batch: int = 1000, known: Iterable[str] = (TOPIC,), list_ready: bool = False
    ) -> list[Any]:
        """Return the script's answer: moved, next due time or -1, set aside, topics..."""
        k = self.keys
        topics = list(known)
        keys = [k.due(0), k.topics(0), k.set_aside(0), k.counters(0), *(k.ready(0, topic) for topic in topics)]
        return self.call(
            "promote_due", keys, [now, batch, k.ready_prefix(0), k.ready_channel, int(list_ready), *topics]
        )

    def promotion(self, now: int = NOW, *, batch: int = 1000) -> Promotion:
        moved, head, _, *topics = self.promote(now, batch=batch)
        return Promotion(set(topics), None if head < 0 else head, moved >= batch)

    def reserve(
        self, count: int = 10, until: int = NOW + GRACE, *, now: int = NOW + GRACE, topic: str = TOPIC
    ) -> list[int]:
        return self.reserve_at(now, count, until, topic=topic)[1]

    def reserve_at(
        self, now: int, count: int = 10, until: int = NOW + GRACE, *, topic: str = TOPIC
    ) -> tuple[int, list[int]]:
        """Return when all of them are due, and their ids."""
        due_ms, _, entries = self.call(
            "reserve", [self.keys.ready(0, topic), self.due_key], [count, until, now, self.keys.channel]
        )
        return int(due_ms), [job_id for job_id, _ in scores_in_order(entries)]

    def take_slot(
        self, token: str, now: int = NOW, until: int = NOW + 30_000, *, limit: int = 1, message: int | str = NOW
    ) -> int:
        keys = [self.keys.slots(TOPIC), self.keys.pending_message(TOPIC)]
        return self.call("take_slot", keys, [now, until, limit, token, message])

    def call_runner(self, now: int = NOW, *, limit: int = 1, timeout: int = 60_000, resend: int = 60_000) -> int:
        k = self.keys
        keys = [k.slots(TOPIC), k.waiting_runners(RUNNERS), k.pending_message(TOPIC)]
        return self.call("call_runner", keys, [now, limit, timeout, k.wake_prefix, TOPIC, resend])

    def wait_for_ready(self, token: str, until: int) -> None:
        self.client.zadd(self.keys.waiting_runners(RUNNERS), {token: until})

    def woken(self, token: str) -> list[str]:
        """Return the topics for which this runner was woken."""
        return self.client.lrange(self.keys.wake_prefix + token, 0, -1)

    def slots(self) -> dict[str, int]:
        return {name: int(ms) for name, ms in self.client.zrange(self.keys.slots(TOPIC), 0, -1, withscores=True)}
