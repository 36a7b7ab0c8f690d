"""The mirror: the due-job index in Redis.

Reads raise MirrorDown if Redis fails. Writes log the failure and return; the sweep repairs the entries later.
"""

import logging
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ResponseError

from ...conf import Settings
from ...exceptions import MirrorDown
from ..base import RESEND_MS, CallResult, Entry, Promotion, Reservation, Settlement
from . import client as clients
from .keys import Keys, decode_score, member, scores_in_order
from .lock import Lock

logger = logging.getLogger(__name__)
CHUNK = 1000  # entries per script call
MESSAGES = 100  # the most that a listener reads at once


class Mirror:
    def __init__(self, settings: Settings, using: str = "default") -> None:
        self.settings = settings
        self.keys = Keys(settings.prefix, using, settings.buckets)
        self._redis = clients.RedisClient(lambda: clients.make(settings, self._redis.count_connection))

    @property
    def down(self) -> bool:
        return self._redis.down

    @property
    def connection_count(self) -> int:
        """Number of connections made so far. Each new connection may lead to another Redis than the last."""
        return self._redis.connection_count

    def close(self) -> None:
        self._redis.close()

    # -- writes: never raise --------------------------------------------------------------------

    def add(self, entries: Iterable[Entry], *, mark: bool = False) -> int:
        """Add entries for delayed jobs. Return how many jobs had no entry before, or 0 if Redis is down.

        mark   True for a change by a caller (reschedule, run now): a settle() that saw the old score then fails,
               see add.lua
        """
        return sum(self._write("add", self._by_bucket(entries, [str(int(mark))])))

    def feed(self, entries: Iterable[Entry], *, mark: bool = False) -> int:
        """Add entries as add() does, but raise MirrorDown if Redis fails: the guards must know of the failure."""
        calls = self._by_bucket(entries, [str(int(mark))])
        return sum(self._redis.scripts("add", calls)) if calls else 0

    def settle(self, settlements: Iterable[Settlement]) -> int:
        """Move or remove each entry whose time is still `seen_ms`. Return how many changed, or 0 if Redis is down.

        A delayed entry is moved to an earlier time even if its time is not `seen_ms`: see settle.lua.
        """
        return sum(self._write("settle", self._by_bucket(settlements, [])))

    def postpone(self, settlements: Iterable[Settlement]) -> None:
        """Do the same as settle(): see base.DueIndex."""
        self.settle(settlements)

    def count(self, name: str, by: int = 1) -> None:
        """Add `by` to a counter that is shared by all processes and shown in the metrics."""
        with suppress(MirrorDown):
            self._redis.ask(lambda c: c.hincrby(self.keys.counters(0), name, by))

    def record_rebuild(self, now_ms: int) -> None:
        """Increment the counter of rebuilds, and store the time, because a flush of Redis resets the counter."""
        counters = self.keys.counters(0)
        with suppress(MirrorDown):
            self._pipelined([("hincrby", counters, "rebuilt", 1), ("hset", counters, "rebuilt_at_ms", now_ms)])

    def free_slot(self, topic: str, token: str) -> None:
        with suppress(MirrorDown):
            self._redis.ask(lambda c: c.zrem(self.keys.slots(topic), token))

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

    def _write(self, script: str, calls: list[tuple[list[str], list[Any]]]) -> list[int]:
        if not calls:
            return []
        try:
            return self._redis.scripts(script, calls)
        except MirrorDown as error:
            logger.warning("mirror: %s was not written, the sweep will repair it: %s", script, error)
            return []

    # -- reads: raise MirrorDown ----------------------------------------------------------------

    def promote_due(self, now_ms: int, topics: Sequence[str], *, list_ready: bool = False) -> Promotion:
        """Make jobs ready that are due within AHEAD_MS of `now_ms`, at most one batch per bucket.

        topics       the topics that this process knows; they are sent to Redis only with list_ready
        list_ready   also return those of `topics` that had ready jobs before
        """
        batch, ahead_ms = self.settings.promote_limit, self.settings.ahead_ms
        topics = topics if list_ready else ()
        calls = [
            (
                [k.due(b), k.topics(b), k.set_aside(b), k.counters(b), *(k.ready(b, topic) for topic in topics)],
                [now_ms + ahead_ms, batch, k.ready_prefix(b), k.ready_channel, int(list_ready), *topics],
            )
            for k in [self.keys]
            for b in range(k.buckets)
        ]
        answers = self._redis.scripts("promote_due", calls)
        set_aside = sum(answer[2] for answer in answers)
        if set_aside:
            logger.error("mirror: %s malformed entries were set aside", set_aside, extra={"set_aside": set_aside})
        heads = [answer[1] for answer in answers if answer[1] >= 0]
        return Promotion(
            topics={topic for answer in answers for topic in answer[3:]},
            next_ms=min(heads) - ahead_ms if heads else None,
            full=any(answer[0] >= batch for answer in answers),
        )

    def reserve(self, topic: str, count: int, now_ms: int, until_ms: int) -> Reservation:
        """Reserve up to `count` of the topic's first ready jobs: make their entries delayed until `until_ms`."""
        if not self.settings.redis_cluster:
            return self._reserve(topic, range(self.keys.buckets), count, now_ms, until_ms)
        reserved = Reservation([], now_ms)
        for bucket, oldest_ms in self._oldest_buckets(topic):  # in a Cluster a script may use keys of one slot only
            if len(reserved.ids) >= count or (reserved.ids and oldest_ms > reserved.due_ms):
                return reserved._replace(more=True)
            more = self._reserve(topic, [bucket], count - len(reserved.ids), reserved.due_ms, until_ms)
            entries_ms = {**reserved.entries_ms, **more.entries_ms}
            reserved = Reservation(reserved.ids + more.ids, more.due_ms, more.more, entries_ms)
        return reserved

    def _oldest_buckets(self, topic: str) -> list[tuple[int, float]]:
        """Return (bucket, score of its first ready job) for each bucket with ready jobs, lowest score first.

        Equal scores are in random order. A score is not later than the due time.
        """
        keys = [self.keys.ready(bucket, topic) for bucket in range(self.keys.buckets)]
        oldest = enumerate(self._pipelined([("zrange", key, 0, 0, False, True) for key in keys]))
        return [(b, at) for at, _, b in sorted((head[0][1], random.random(), b) for b, head in oldest if head)]

    def _reserve(self, topic: str, buckets: Iterable[int], count: int, now_ms: int, until_ms: int) -> Reservation:
        keys = [key for b in buckets for key in (self.keys.ready(b, topic), self.keys.due(b))]
        args = [count, until_ms, now_ms, self.keys.channel]
        due_ms, more, entries = self._redis.script("reserve", keys, args)
        entries_ms = {job_id: decode_score(score)[0] for job_id, score in scores_in_order(entries)}
        return Reservation(list(entries_ms), int(due_ms), bool(int(more)), entries_ms)

    def take_slot(
        self, topic: str, token: str, now_ms: int, until_ms: int, limit: int, *, message_ms: int | None = None
    ) -> bool:
        """Take or renew one of the topic's `limit` run slots. Return False if all are taken.

        message_ms   when the message was sent that has started this run; None: it was woken
        """
        keys = [self.keys.slots(topic), self.keys.pending_message(topic)]
        # The clock is corrected now and then, so a message may seem to be older than the call that asked for it.
        answered = "" if message_ms is None else message_ms + RESEND_MS // 2
        args = [now_ms, until_ms, limit, token, answered]
        return bool(self._redis.script("take_slot", keys, args))

    def is_superseded(self, topic: str, message_ms: int) -> bool:
        """Return whether a run_topic message was sent later than this one and has started no runner yet."""
        pending = self._redis.ask(lambda c: c.get(self.keys.pending_message(topic)))
        sent_ms = (pending or "").partition(":")[0]
        return sent_ms.isdigit() and int(sent_ms) > message_ms + RESEND_MS // 2

    def slot_tokens(self, topic: str) -> list[str]:
        """Return the tokens of the topic's run slots that are taken."""
        return list(self._redis.ask(lambda c: c.zrange(self.keys.slots(topic), 0, -1)))

    def call_runner(self, topic: str, runner_group: str, now_ms: int, limit: int) -> CallResult:
        """Wake a waiting runner of the group, or return whether the caller must send a message."""
        keys = [self.keys.slots(topic), self.keys.waiting_runners(runner_group), self.keys.pending_message(topic)]
        args = [now_ms, limit, self.settings.guard_tick_ms, self.keys.wake_prefix, topic, RESEND_MS]
        return CallResult(self._redis.script("call_runner", keys, args))

    def forget_message(self, topic: str) -> None:
        """Let call_runner() send a message at once, because the last one was not sent. Never raises."""
        with suppress(MirrorDown):
            self._redis.ask(lambda c: c.delete(self.keys.pending_message(topic)))

    def has_unanswered_message(self, topic: str) -> bool:
        """Return whether a run_topic message was sent and no runner has come for it yet."""
        return bool(self._redis.ask(lambda c: c.exists(self.keys.pending_message(topic))))

    def wait_for_ready(self, runner_group: str, token: str, now_ms: int, wait_ms: int) -> str | None:
        """Wait until call_runner() wakes this runner. Return the topic with ready jobs, or None if not woken in time.

        Waits up to `wait_ms`, but at most half of REDIS_TIMEOUT_SECONDS.
        """
        wake = self.keys.wake_prefix + token
        wait_ms = min(wait_ms, int(self.settings.redis_timeout_seconds * 500))  # well below the socket's timeout
        self._redis.ask(lambda c: c.zadd(self.keys.waiting_runners(runner_group), {token: now_ms + wait_ms}))
        # Redis 6 rounds down to milliseconds, and would wait for ever for what it takes for 0.
        woken = self._redis.ask(lambda c: c.blpop([wake], timeout=(wait_ms + 0.5) / 1000))
        if woken:  # call_runner.lua has removed the token
            return woken[1]
        if self._redis.ask(lambda c: c.zrem(self.keys.waiting_runners(runner_group), token)):
            return None
        return self._redis.ask(lambda c: c.lpop(wake))  # call_runner.lua removed the token just as the wait ended

    def ready_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Return {topic: number of ready jobs} for the topics that have any."""
        counts: dict[str, int] = defaultdict(int)
        pairs = [(topic, bucket) for topic in topics for bucket in range(self.keys.buckets)]
        if pairs:
            sizes = self._pipelined([("zcard", self.keys.ready(bucket, topic)) for topic, bucket in pairs])
            for (topic, _), size in zip(pairs, sizes, strict=True):
                counts[topic] += size
        return {topic: count for topic, count in counts.items() if count}

    def ready_topics(self) -> set[str]:
        """Return every topic that ever had a ready job."""
        return set().union(*self._pipelined([("smembers", self.keys.topics(b)) for b in range(self.keys.buckets)]))

    def due_count(self) -> int:
        return sum(self._pipelined([("zcard", self.keys.due(b)) for b in range(self.keys.buckets)]))

    def counters(self) -> dict[str, int]:
        totals: dict[str, int] = defaultdict(int)
        for counts in self._pipelined([("hgetall", self.keys.counters(b)) for b in range(self.keys.buckets)]):
            for name, value in counts.items():
                totals[name] += int(value)
        return dict(totals)

    def refusal(self) -> str:
        """Return why a master refuses writes or messages, for example because its memory is full; "" if none does.

        Writes nothing: each master is asked to overwrite a key that never exists, and the message goes to a channel
        without listeners. A Redis that has just refused a write is not asked. Raises MirrorDown.
        """
        if self._redis.refusal:
            return self._redis.refusal
        sets = [("execute_command", "SET", self.keys.write_probe(b), 1, "XX") for b in range(self.keys.buckets)]
        probes = [*sets, ("execute_command", "PUBLISH", self.keys.write_probe(0), "")]
        answers = self._pipelined(probes, raise_on_error=False)  # the circuit stays closed: Redis answers
        return next((str(answer) for answer in answers if isinstance(answer, ResponseError)), "")

    def _pipelined(self, commands: Sequence[tuple[Any, ...]], *, raise_on_error: bool = True) -> list[Any]:
        """Send commands, each as (method of the pipeline, *arguments), in one round trip. Return their answers."""

        def run(client: Any) -> list[Any]:
            pipeline = client.pipeline(transaction=False)
            for command, *arguments in commands:
                getattr(pipeline, command)(*arguments)
            return pipeline.execute(raise_on_error=raise_on_error)

        return self._redis.ask(run)

    def scores(self, ids_topics: Sequence[tuple[int, str]]) -> list[tuple[int | None, int | None]]:
        """Return (time in the due zset, time in the ready zset) of each job, in ms; None for a missing entry."""
        k = self.keys
        scores = self._pipelined(
            [
                ("zscore", key, member(job_id, topic))
                for job_id, topic in ids_topics
                for key in (k.due(k.bucket_of(job_id)), k.ready(k.bucket_of(job_id), topic))
            ]
        )
        flat = [None if score is None else decode_score(score)[0] for score in scores]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def entries(self) -> Iterator[list[Entry]]:
        """Yield all entries, page by page. An entry that is moved meanwhile may be missed or yielded twice."""
        topics = sorted(self.ready_topics())
        for bucket in range(self.keys.buckets):
            for zset in [self.keys.due(bucket), *(self.keys.ready(bucket, topic) for topic in topics)]:
                yield from self._entries_of(zset)

    def _entries_of(self, zset: str) -> Iterator[list[Entry]]:
        cursor, more = 0, True
        while more:
            at = cursor
            cursor, page = self._redis.ask(lambda client: client.zscan(zset, cursor=at, count=CHUNK))  # noqa: B023  called at once
            more = cursor != 0
            parts = ((entry.partition(":"), score) for entry, score in page)
            yield [
                Entry(int(job_id), topic, *decode_score(score))
                for (job_id, _, topic), score in parts
                if job_id.isdigit()
            ]

    # -- for the test kit -----------------------------------------------------------------------

    def in_use(self) -> bool:
        """Return whether a mover listens to this mirror or the guard has just run. Raises MirrorDown."""
        listeners = self._redis.ask(lambda c: c.pubsub_numsub(self.keys.channel))
        return any(count for _, count in listeners) or bool(
            self._redis.ask(lambda c: c.exists(self.keys.lock("guard")))
        )

    def clear(self) -> None:
        """Delete all keys of this mirror's prefix, as if Redis had lost them. Raises MirrorDown."""
        for key in self._redis.ask(lambda c: list(c.scan_iter(f"{self.keys.prefix}:*", count=CHUNK))):
            self._redis.ask(lambda c: c.delete(key))  # noqa: B023  called at once

    # -- for the guards -------------------------------------------------------------------------

    def lock(self, name: str, ttl_ms: int) -> Lock:
        """Return a lock that only one process at a time can acquire().

        The lock expires after `ttl_ms`. A holder that never releases it limits how often the work is done.
        """
        return Lock(self._redis, self.keys.lock(name), ttl_ms)

    def masters(self) -> dict[str, str]:
        """Return {master: "run id/replication id"}. A changed value means that the master lost or rewound its data."""
        return {
            address: f"{server['run_id']}/{replication['master_replid']}"
            for address, (server, replication) in self._infos("server", "replication").items()
        }

    def eviction_policies(self) -> dict[str, str]:
        """Return {master: maxmemory-policy}."""
        return {address: memory["maxmemory_policy"] for address, (memory,) in self._infos("memory").items()}

    def _infos(self, *sections: str) -> dict[str, list[dict[str, Any]]]:
        def read(client: Any) -> dict[str, list[dict[str, Any]]]:
            if not hasattr(client, "nodes_manager"):
                return {"single": [client.info(section) for section in sections]}
            answers = [client.info(section, target_nodes=client.PRIMARIES) for section in sections]
            if len(client.get_primaries()) == 1:
                answers = [{client.get_primaries()[0].name: answer} for answer in answers]
            return {name: [answer[name] for answer in answers] for name in answers[0]}

        return self._redis.ask(read)

    def ticks(self) -> list[int | None]:
        """Return the tick that each bucket stores, or None for a bucket whose master is empty."""
        ticks = self._pipelined([("get", self.keys.tick(b)) for b in range(self.keys.buckets)])
        return [None if tick is None else int(tick) for tick in ticks]

    def write_tick(self, tick: int) -> None:
        def write(client: Any) -> None:
            for bucket in range(self.keys.buckets):
                client.set(self.keys.tick(bucket), tick)

        self._redis.ask(write)

    def record_mover_heartbeat(self, handlers_digest: str, ttl_ms: int) -> None:
        """Record, for `ttl_ms`, that a mover thread with these handlers runs. Never raises."""
        with suppress(MirrorDown):
            self._redis.ask(lambda c: c.set(self.keys.mover_heartbeat(handlers_digest), 1, px=ttl_ms))

    def mover_heartbeat_ms(self, handlers_digest: str) -> int:
        """Return for how many ms a heartbeat of mover threads with these handlers stays valid, or 0 without one."""
        return max(0, self._redis.ask(lambda c: c.pttl(self.keys.mover_heartbeat(handlers_digest))))

    def probe_cursor(self, new: tuple[int, int, int] | None = None) -> tuple[int, int, int]:
        """Return the cursor of the guard's probe: (ms of the last probe, due ms, job id).

        The scan continues after this due time and id.

        new   cursor to store and return, instead of the stored one
        """
        if new is not None:
            self._redis.ask(lambda c: c.set(self.keys.probe, ":".join(map(str, new))))
            return new
        last_ms, due_ms, job_id = (self._redis.ask(lambda c: c.get(self.keys.probe)) or "0:0:0").split(":")
        return int(last_ms), int(due_ms), int(job_id)

    # -- wait and notify ------------------------------------------------------------------------

    def listen(self) -> "Listener":
        """Return a listener that is notified when the earliest due time moves to an earlier time."""
        return Listener(self._redis, self.keys.channel)

    def listen_for_ready(self) -> "Listener":
        """Return a listener that receives a message "count:topic" when jobs become ready."""
        return Listener(self._redis, self.keys.ready_channel)

    def notify(self) -> None:
        """Wake all waiting movers of this database."""
        with suppress(MirrorDown):
            self._redis.ask(lambda c: c.publish(self.keys.channel, "0"))


class Listener:
    """A subscription to one channel. Messages may be lost: use them only to end a wait early."""

    def __init__(self, redis: clients.RedisClient, channel: str) -> None:
        self._redis = redis
        self._channel = channel
        self._pubsub: Any = None

    def wait(self, ms: int) -> list[str]:
        """Return messages as soon as there are any, or [] after `ms`. Raises MirrorDown.

        The first call subscribes to the channel and returns at once, usually [].
        """
        try:
            if self._pubsub is None:
                self._redis.ask(self._subscribe)
            elif not self._redis.breaker.closed:  # subscribing shows whether Redis is back, waiting does not
                raise MirrorDown("Redis failed a moment ago.")
            message = self._next(ms / 1000)
            return self._data([message, *self._pending()]) if message else []
        except MirrorDown:
            self.close()
            raise

    def _subscribe(self, client: Any) -> None:
        self._pubsub = client.pubsub(ignore_subscribe_messages=False)
        self._pubsub.subscribe(self._channel)

    def _next(self, seconds: float) -> Any:
        return self._redis.ask(lambda c: self._pubsub.get_message(timeout=seconds))

    def _pending(self) -> Iterator[Any]:
        for _ in range(MESSAGES):
            if not (message := self._next(0)):
                return
            yield message

    def _data(self, messages: list[Any]) -> list[str]:
        return [message["data"] for message in messages if message["type"] == "message"]

    def close(self) -> None:
        if self._pubsub is not None:
            with suppress(Exception):  # the connection may be broken already
                self._pubsub.close()
            self._pubsub = None
