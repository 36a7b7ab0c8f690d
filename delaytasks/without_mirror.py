"""What stands in for the mirror while there is no Redis: the same questions, put to the database.

Slower, still correct: due jobs are found by the due index, run slots are kept in the Topic row.
There is nothing to be told, so telling does nothing.
"""

from collections.abc import Iterable, Sequence

from django.db import transaction

from . import conf, watching
from .models import Topic
from .places import Call, Entry, Promotion, Settlement

_BELL = "bell"  # beside the slots' tokens: a bell was rung and not answered yet


class WithoutMirror:
    def __init__(self, using: str) -> None:
        self._using = using

    def add(self, entries: Iterable[Entry], *, mark: bool = False) -> int:
        return 0

    def settle(self, settlements: Iterable[Settlement]) -> int:
        return 0

    def count(self, name: str, by: int = 1) -> None:
        return None

    def promote_due(self, now_ms: int, topics: Sequence[str], *, look: bool = False) -> Promotion:
        return Promotion(set(self.ready_counts(topics)), watching.next_due_ms(self._using), full=False)

    def reserve(self, topic: str, count: int, now_ms: int, until_ms: int) -> None:
        return None

    def ready_counts(self, topics: Sequence[str]) -> dict[str, int]:
        return {topic: 1 for topic in topics if watching.has_ready(self._using, topic)}

    def take_slot(self, topic: str, token: str, now_ms: int, until_ms: int, limit: int) -> bool:
        with transaction.atomic(self._using):
            slots = _unexpired(self._locked_slots(topic), now_ms)
            if token not in slots:
                slots.pop(_BELL, None)  # it is answered
                if len(slots) >= limit:
                    return False
            self._store(topic, slots | {token: until_ms})
        return True

    def free_slot(self, topic: str, token: str) -> None:
        with transaction.atomic(self._using):
            slots = self._locked_slots(topic)
            self._store(topic, {held: until for held, until in slots.items() if held != token})

    def call_runner(self, topic: str, crew: str, now_ms: int, limit: int) -> Call:
        with transaction.atomic(self._using):
            slots = _unexpired(self._locked_slots(topic), now_ms)
            if len(slots.keys() - {_BELL}) >= limit:
                return Call.BUSY
            if _BELL in slots:
                return Call.RUNG
            self._store(topic, slots | {_BELL: now_ms + conf.get().guard_tick_ms})
        return Call.RING

    def linger(self, crew: str, token: str, now_ms: int, wait_ms: int) -> None:
        return None

    def _locked_slots(self, topic: str) -> dict[str, int]:
        rows = Topic.objects.using(self._using)
        rows.bulk_create([Topic(name=topic)], ignore_conflicts=True)
        return rows.select_for_update().values_list("slots", flat=True).get(name=topic)

    def _store(self, topic: str, slots: dict[str, int]) -> None:
        Topic.objects.using(self._using).filter(name=topic).update(slots=slots)


def _unexpired(slots: dict[str, int], now_ms: int) -> dict[str, int]:
    return {held: until for held, until in slots.items() if until > now_ms}
