"""The mirror's verbs. Those that ask raise MirrorDown; those that tell log it and go on: the sweep repairs."""

import logging
import random
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ..conf import Settings
from ..exceptions import MirrorDown
from ..places import Call, Entry, Handful, Promotion, Settlement
from . import client as clients
from .keys import Keys, job_id_of, member
from .scripts import Scripts

logger = logging.getLogger(__name__)
CHUNK = 1000  # entries of one script call
MESSAGES = 100  # that a listener takes in at once


class Mirror:
    def __init__(self, settings: Settings, using: str = "default") -> None:
        self.settings = settings
        self.keys = Keys(settings.prefix, using, settings.buckets)
        self._line = clients.Line(lambda: clients.make(settings, self._line.note_connect))
        self._scripts = Scripts()

    @property
    def down(self) -> bool:
        return self._line.down

    @property
    def connected(self) -> int:
        """How often a connection to Redis was made; after another one it may be another Redis."""
        return self._line.connected

    def close(self) -> None:
        self._line.close()

    # -- telling: may fail without harm ---------------------------------------------------------

    def add(self, entries: Iterable[Entry], *, mark: bool = False) -> int:
        """Enter jobs as delayed; how many were in neither place (0 if Redis is down).

        mark   for what a caller changed (reschedule, run now): see add.lua.
        """
        return sum(self._told("add", self._by_bucket(entries, [str(int(mark))])))

    def feed(self, entries: Iterable[Entry], *, mark: bool = False) -> int:
        """add() for the guards, which must know: raises MirrorDown."""
        calls = self._by_bucket(entries, [str(int(mark))])
        return sum(self._line.ask(lambda c: self._scripts.many(c, "add", calls))) if calls else 0

    def settle(self, settlements: Iterable[Settlement]) -> int:
        """Move entries later or remove them where they still are as seen; how many were."""
        return sum(self._told("settle", self._by_bucket(settlements, [])))

    def count(self, name: str, by: int = 1) -> None:
        """Add to a fleet-wide counter; metrics show it."""
        with suppress(MirrorDown):
            self._line.ask(lambda c: c.hincrby(self.keys.counters(0), name, by))

    def free_slot(self, topic: str, token: str) -> None:
        with suppress(MirrorDown):
            self._line.ask(lambda c: c.zrem(self.keys.slots(topic), token))

    def _by_bucket(self, rows: Iterable[Entry | Settlement], extra: list[str]) -> list[tuple[list[str], list[Any]]]:
        buckets: dict[int, list[Any]] = defaultdict(list)
        for row in rows:
            buckets[self.keys.bucket_of(row.id)].append((member(row.id, row.topic), *row[1:]))
        calls = []
        for bucket, of_bucket in buckets.items():
            head = [self.keys.ready_prefix(bucket), self.keys.channel, *extra]
            for start in range(0, len(of_bucket), CHUNK):
                flat = [value for row in of_bucket[start : start + CHUNK] for value in row]
                calls.append(([self.keys.due(bucket)], head + flat))
        return calls

    def _told(self, script: str, calls: list[tuple[list[str], list[Any]]]) -> list[int]:
        if not calls:
            return []
        try:
            return self._line.ask(lambda c: self._scripts.many(c, script, calls))
        except MirrorDown as error:
            logger.warning("mirror: %s not told, the sweep will repair it: %s", script, error)
            return []

    # -- asking: raises MirrorDown --------------------------------------------------------------

    def promote_due(self, now_ms: int, topics: Sequence[str], *, look: bool = False) -> Promotion:
        """Move what is due in a moment from delayed to ready, a batch per bucket. `topics`: those that are known here.

        look   the answer names those of `topics`, too, that had ready jobs before
        """
        batch, ahead_ms = self.settings.promote_limit, self.settings.ahead_ms
        calls = [
            (
                [k.due(b), k.topics(b), k.aside(b), k.counters(b), *(k.ready(b, topic) for topic in topics)],
                [now_ms + ahead_ms, batch, k.ready_prefix(b), k.ready_channel, int(look), *topics],
            )
            for k in [self.keys]
            for b in range(k.buckets)
        ]
        answers = self._line.ask(lambda c: self._scripts.many(c, "promote_due", calls))
        aside = sum(answer[2] for answer in answers)
        if aside:
            logger.error("mirror: %s entries without a topic were set aside", aside, extra={"set_aside": aside})
        heads = [answer[1] for answer in answers if answer[1] >= 0]
        return Promotion(
            topics={topic for answer in answers for topic in answer[3:]},
            next_ms=min(heads) - ahead_ms if heads else None,
            full=any(answer[0] >= batch for answer in answers),
        )

    def reserve(self, topic: str, count: int, now_ms: int, until_ms: int) -> Handful:
        """Up to `count` of the topic's oldest ready jobs, put back among the delayed until `until_ms`."""
        if not self.settings.redis_cluster:
            return self._reserve(topic, range(self.keys.buckets), count, now_ms, until_ms)
        found = Handful([], now_ms)
        for bucket, oldest_ms in self._oldest_buckets(topic):  # a script of a Cluster's knows one slot
            if len(found.ids) >= count or (found.ids and oldest_ms > found.due_ms):
                break
            more = self._reserve(topic, [bucket], count - len(found.ids), found.due_ms, until_ms)
            found = Handful(found.ids + more.ids, more.due_ms)
        return found

    def _oldest_buckets(self, topic: str) -> list[tuple[int, float]]:
        def heads(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for bucket in range(self.keys.buckets):
                pipeline.zrange(self.keys.ready(bucket, topic), 0, 0, withscores=True)
            return pipeline.execute()

        found = enumerate(self._line.ask(heads))
        return [(b, at) for at, _, b in sorted((head[0][1], random.random(), b) for b, head in found if head)]

    def _reserve(self, topic: str, buckets: Iterable[int], count: int, now_ms: int, until_ms: int) -> Handful:
        keys = [key for b in buckets for key in (self.keys.ready(b, topic), self.keys.due(b))]
        args = [count, until_ms, now_ms]
        due_ms, *members = self._line.ask(lambda c: self._scripts.one(c, "reserve", keys, args))
        return Handful([job_id_of(each) for each in members], int(due_ms))

    def take_slot(self, topic: str, token: str, now_ms: int, until_ms: int, limit: int) -> bool:
        """Take or renew a run slot of the topic; False if all are taken."""
        keys = [self.keys.slots(topic), self.keys.bell(topic)]
        args = [now_ms, until_ms, limit, token]
        return bool(self._line.ask(lambda c: self._scripts.one(c, "take_slot", keys, args)))

    def call_runner(self, topic: str, crew: str, now_ms: int, limit: int) -> Call:
        """Wake a runner of the topic's crew that lingers, or say whether a bell is to be rung."""
        keys = [self.keys.slots(topic), self.keys.lingering(crew), self.keys.bell(topic)]
        args = [now_ms, limit, self.settings.guard_tick_ms, self.keys.wake_prefix, topic]
        return Call(self._line.ask(lambda c: self._scripts.one(c, "call_runner", keys, args)))

    def linger(self, crew: str, token: str, now_ms: int, wait_ms: int) -> str | None:
        """Wait up to `wait_ms` for call_runner to wake us; the topic that has ready jobs, or None."""
        wake = self.keys.wake_prefix + token
        wait_ms = min(wait_ms, int(self.settings.redis_timeout_seconds * 500))  # well before the socket's timeout
        self._line.ask(lambda c: c.zadd(self.keys.lingering(crew), {token: now_ms + wait_ms}))
        woken = self._line.ask(lambda c: c.blpop([wake], timeout=wait_ms / 1000))
        if woken:  # who woke us took us off the list
            return woken[1]
        if self._line.ask(lambda c: c.zrem(self.keys.lingering(crew), token)):
            return None
        return self._line.ask(lambda c: c.lpop(wake))  # woken in the moment in which it gave up

    def ready_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """How many jobs are ready, for those of `topics` that have any."""
        counts: dict[str, int] = defaultdict(int)
        places = [(topic, bucket) for topic in topics for bucket in range(self.keys.buckets)]
        if places:
            sizes = self._pipelined([("zcard", self.keys.ready(bucket, topic)) for topic, bucket in places])
            for (topic, _), size in zip(places, sizes, strict=True):
                counts[topic] += size
        return {topic: count for topic, count in counts.items() if count}

    def ready_topics(self) -> set[str]:
        """Every topic that ever had a ready job here."""
        return {
            topic for b in range(self.keys.buckets) for topic in self._pipelined([("smembers", self.keys.topics(b))])[0]
        }

    def due_count(self) -> int:
        return sum(self._pipelined([("zcard", self.keys.due(b)) for b in range(self.keys.buckets)]))

    def counters(self) -> dict[str, int]:
        totals: dict[str, int] = defaultdict(int)
        for counted in self._pipelined([("hgetall", self.keys.counters(b)) for b in range(self.keys.buckets)]):
            for name, value in counted.items():
                totals[name] += int(value)
        return dict(totals)

    def _pipelined(self, commands: list[tuple[str, str]]) -> list[Any]:
        def run(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for command, key in commands:
                getattr(pipeline, command)(key)
            return pipeline.execute()

        return self._line.ask(run)

    def scores(self, ids_topics: Sequence[tuple[int, str]]) -> list[tuple[int | None, int | None]]:
        """(score in due, score in ready) of each job, None where it is not."""
        k = self.keys

        def run(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for job_id, topic in ids_topics:
                pipeline.zscore(k.due(k.bucket_of(job_id)), member(job_id, topic))
                pipeline.zscore(k.ready(k.bucket_of(job_id), topic), member(job_id, topic))
            return pipeline.execute()

        flat = [None if score is None else int(score) for score in self._line.ask(run)]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def entries(self) -> Iterator[list[Entry]]:
        """Every entry of the mirror, in pages; an entry that moves meanwhile may be missed or come twice."""
        topics = sorted(self.ready_topics())
        for bucket in range(self.keys.buckets):
            for place in [self.keys.due(bucket), *(self.keys.ready(bucket, topic) for topic in topics)]:
                yield from self._entries_of(place)

    def _entries_of(self, place: str) -> Iterator[list[Entry]]:
        cursor, more = 0, True
        while more:
            at = cursor
            cursor, page = self._line.ask(lambda client: client.zscan(place, cursor=at, count=CHUNK))  # noqa: B023  called at once
            more = cursor != 0
            whole = ((entry.partition(":"), score) for entry, score in page)
            yield [Entry(int(job_id), topic, int(score)) for (job_id, _, topic), score in whole if job_id.isdigit()]

    # -- for the guards -------------------------------------------------------------------------

    def alone(self, what: str, for_ms: int) -> bool:
        """True for the one process that may do `what` during the next `for_ms`."""
        key, token = self.keys.alone(what), uuid.uuid4().hex
        taken = self._line.ask(lambda c: c.set(key, token, nx=True, px=for_ms))
        # The client asks again when no answer comes: then it may be refused by what it has taken itself.
        return bool(taken or self._line.ask(lambda c: c.get(key)) == token)

    def still_alone(self, what: str, for_ms: int) -> None:
        self._line.ask(lambda c: c.set(self.keys.alone(what), 1, px=for_ms))

    def not_alone(self, what: str) -> None:
        with suppress(MirrorDown):
            self._line.ask(lambda c: c.delete(self.keys.alone(what)))

    def masters(self) -> dict[str, str]:
        """Each master's "run id/replication id": another one means that it lost or rewound its data."""
        return {
            address: f"{server['run_id']}/{replication['master_replid']}"
            for address, (server, replication) in self._infos("server", "replication").items()
        }

    def eviction_policies(self) -> dict[str, str]:
        """Each master's maxmemory-policy."""
        return {address: memory["maxmemory_policy"] for address, (memory,) in self._infos("memory").items()}

    def _infos(self, *sections: str) -> dict[str, list[dict[str, Any]]]:
        def ask(client: Any) -> dict[str, list[dict[str, Any]]]:
            if not hasattr(client, "nodes_manager"):
                return {"single": [client.info(section) for section in sections]}
            answers = [client.info(section, target_nodes=client.PRIMARIES) for section in sections]
            if len(client.get_primaries()) == 1:
                answers = [{client.get_primaries()[0].name: answer} for answer in answers]
            return {name: [answer[name] for answer in answers] for name in answers[0]}

        return self._line.ask(ask)

    def ticks(self) -> list[int | None]:
        """The last tick that each bucket knows; None if it has none: its master is empty."""
        ticks = self._pipelined([("get", self.keys.tick(b)) for b in range(self.keys.buckets)])
        return [None if tick is None else int(tick) for tick in ticks]

    def write_tick(self, tick: int) -> None:
        def write(client: Any) -> None:
            for bucket in range(self.keys.buckets):
                client.set(self.keys.tick(bucket), tick)

        self._line.ask(write)

    def say_moving(self, handlers: str, for_ms: int) -> None:
        """A mover's thread that knows these handlers looks, and will again within `for_ms`. Never raises."""
        with suppress(MirrorDown):
            self._line.ask(lambda c: c.set(self.keys.moving(handlers), 1, px=for_ms))

    def moving_ms(self, handlers: str) -> int:
        """For how long yet a mover's thread that knows these handlers is taken to look; 0: none does."""
        return max(0, self._line.ask(lambda c: c.pttl(self.keys.moving(handlers))))

    def probe_cursor(self, new: tuple[int, int, int] | None = None) -> tuple[int, int, int]:
        """(up to when it looked at what became overdue, due ms and id where its round goes on) of the overdue probe.

        new   remember that instead
        """
        if new is not None:
            self._line.ask(lambda c: c.set(self.keys.probe, ":".join(map(str, new))))
            return new
        last_ms, due_ms, job_id = (self._line.ask(lambda c: c.get(self.keys.probe)) or "0:0:0").split(":")
        return int(last_ms), int(due_ms), int(job_id)

    # -- wait and notify ------------------------------------------------------------------------

    def listen(self) -> "Listener":
        """Hears that the head became earlier."""
        return Listener(self._line, self.keys.channel)

    def listen_for_ready(self) -> "Listener":
        """Hears "count:topic" of what became ready."""
        return Listener(self._line, self.keys.ready_channel)

    def notify(self) -> None:
        """Wake every mover that waits."""
        with suppress(MirrorDown):
            self._line.ask(lambda c: c.publish(self.keys.channel, "0"))


class Listener:
    """Waits on a channel. Level-triggered use only: a message shortens a rest, it never is the only cause."""

    def __init__(self, line: clients.Line, channel: str) -> None:
        self._line = line
        self._channel = channel
        self._pubsub: Any = None

    def wait(self, ms: int) -> list[str]:
        """The messages that came, as soon as one has; [] after `ms`, or when it begins to listen. Raises MirrorDown."""
        try:
            if self._pubsub is None:
                self._pubsub = self._line.ask(lambda c: c.pubsub(ignore_subscribe_messages=False))
                self._line.ask(lambda c: self._pubsub.subscribe(self._channel))
            found = self._next(ms / 1000)
            return self._texts([found, *self._waiting()]) if found else []
        except MirrorDown:
            self.close()
            raise

    def _next(self, seconds: float) -> Any:
        return self._line.ask(lambda c: self._pubsub.get_message(timeout=seconds))

    def _waiting(self) -> Iterator[Any]:
        for _ in range(MESSAGES):
            if not (found := self._next(0)):
                return
            yield found

    def _texts(self, messages: list[Any]) -> list[str]:
        return [message["data"] for message in messages if message["type"] == "message"]

    def close(self) -> None:
        if self._pubsub is not None:
            with suppress(Exception):  # it is broken already, that is why it goes
                self._pubsub.close()
            self._pubsub = None
