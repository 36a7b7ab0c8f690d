"""The due-job index without Redis: the same interface, answered by the database.

It is slower but correct: it finds due jobs by the database's index on the due time and keeps run slots in the
Topic row. Only run slots are written, because the rows of jobs are the index themselves. Jobs that could not be claimed
or ended are remembered in memory, so that the caller's next reservation leaves them out.
"""

from collections.abc import Iterable, Sequence

from .. import conf
from ..db import lookups
from ..db.retries import in_transaction
from .base import CallResult, Entry, Promotion, Reservation, Settlement

_MESSAGE = "bell"  # a key in Topic.slots beside the tokens: a run_topic message was sent and no runner has come yet


class DatabaseIndex:
    def __init__(self, using: str) -> None:
        self._using = using
        self._postponed: dict[int, int] = {}  # id of a job that postpone() got -> when to try again, in ms

    def add(self, entries: Iterable[Entry], *, mark: bool = False) -> int:
        return 0

    def settle(self, settlements: Iterable[Settlement]) -> int:
        return 0

    def postpone(self, settlements: Iterable[Settlement]) -> None:
        self._postponed |= {each.id: each.to_ms for each in settlements}

    def count(self, name: str, by: int = 1) -> None:
        return None

    def promote_due(self, now_ms: int, topics: Sequence[str], *, list_ready: bool = False) -> Promotion:
        return Promotion(set(self.ready_counts(topics)), lookups.next_due_ms(self._using), full=False)

    def reserve(self, topic: str, count: int, now_ms: int, until_ms: int) -> Reservation:
        self._postponed = {job_id: at_ms for job_id, at_ms in self._postponed.items() if at_ms > now_ms}
        ids = lookups.ready_ids(self._using, topic, limit=count + 1, without=self._postponed)
        return Reservation(ids[:count], now_ms, more=len(ids) > count)

    def ready_counts(self, topics: Sequence[str]) -> dict[str, int]:
        return {topic: 1 for topic in topics if self._has_ready(topic)}

    def _has_ready(self, topic: str) -> bool:
        """Return whether there is a ready job that is not postponed: without this a run would wait for its lock."""
        if not self._postponed:
            return lookups.has_ready(self._using, topic)
        return bool(lookups.ready_ids(self._using, topic, limit=1, without=self._postponed))

    def take_slot(
        self, topic: str, token: str, now_ms: int, until_ms: int, limit: int, *, message_ms: int | None = None
    ) -> bool:
        def take() -> bool:
            slots = _unexpired(self._locked_slots(topic), now_ms)
            if message_ms is not None and token not in slots:
                slots.pop(_MESSAGE, None)
            has_slot = token in slots or len(slots.keys() - {_MESSAGE}) < limit
            self._store(topic, slots | {token: until_ms} if has_slot else slots)
            return has_slot

        return in_transaction(self._using, take)

    def is_superseded(self, topic: str, message_ms: int) -> bool:
        return False  # not known

    def free_slot(self, topic: str, token: str) -> None:
        def free() -> None:
            slots = self._locked_slots(topic)
            self._store(topic, {held: until for held, until in slots.items() if held != token})

        in_transaction(self._using, free)

    def slot_tokens(self, topic: str) -> list[str]:
        from ..models import Topic

        slots = Topic.objects.using(self._using).filter(name=topic).values_list("slots", flat=True).first()
        return [token for token in slots or {} if token != _MESSAGE]

    def call_runner(self, topic: str, runner_group: str, now_ms: int, limit: int) -> CallResult:
        def call() -> CallResult:
            slots = _unexpired(self._locked_slots(topic), now_ms)
            if len(slots.keys() - {_MESSAGE}) >= limit:
                return CallResult.BUSY
            if _MESSAGE in slots:
                return CallResult.SENT
            self._store(topic, slots | {_MESSAGE: now_ms + conf.get().guard_tick_ms})
            return CallResult.SEND

        return in_transaction(self._using, call)

    def wait_for_ready(self, runner_group: str, token: str, now_ms: int, wait_ms: int) -> None:
        return None

    def _locked_slots(self, topic: str) -> dict[str, int]:
        from ..models import Topic  # imported late: schedule() may be imported before Django's apps are loaded

        rows = Topic.objects.using(self._using)
        rows.bulk_create([Topic(name=topic)], ignore_conflicts=True)
        return rows.select_for_update().values_list("slots", flat=True).get(name=topic)

    def _store(self, topic: str, slots: dict[str, int]) -> None:
        from ..models import Topic

        Topic.objects.using(self._using).filter(name=topic).update(slots=slots)


def _unexpired(slots: dict[str, int], now_ms: int) -> dict[str, int]:
    return {held: until for held, until in slots.items() if until > now_ms}
