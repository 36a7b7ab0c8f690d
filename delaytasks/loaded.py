"""Tells the mirror of jobs that the pipeline's load put into the tables: it went past schedule(), which would have.

The load's ledger says what is still to be told, in the very commit that made the jobs. So it does not matter who
tells, or who died before: the load's command does after each chunk, the sweep whatever is left.
"""

from collections.abc import Iterator

from . import clock, conf, engine
from .mirror.index import Mirror
from .models import Job, LoadChunk
from .on_commit import OVERLAP_MS
from .places import Entry
from .states import State

PAGE = 1000  # jobs


def tell(using: str) -> int:
    """Enter what loads put there and is due within the horizon; how many entries were new in the mirror.

    What is due later the feeder brings in as its time comes: it has not passed there yet. Without a mirror it
    stays to be told. Raises MirrorDown.
    """
    found = engine.mirror_of(using)
    if found is None or found.down:
        return 0
    return sum(_tell(found, using, chunk) for chunk in LoadChunk.objects.using(using).filter(told=False).order_by("id"))


def _tell(found: Mirror, using: str, chunk: LoadChunk) -> int:
    until_ms = int(engine.now_ms(using)) + conf.get().horizon_ms + OVERLAP_MS
    added = sum(found.feed(page) for page in _inserted(using, chunk, until_ms))
    for page in _replaced(using, chunk, until_ms):
        added += found.feed(page, mark=True)
    LoadChunk.objects.using(using).filter(pk=chunk.pk).update(told=True, replaced_ids=[])
    return added


def _inserted(using: str, chunk: LoadChunk, until_ms: int) -> Iterator[list[Entry]]:
    """By the range of their ids. Others' jobs may be in between: to enter them again changes nothing."""
    if chunk.low_id is None or chunk.high_id is None:
        return
    after = chunk.low_id - 1
    while page := _entries(using, until_ms, pk__gt=after, pk__lte=chunk.high_id):
        yield page
        after = page[-1].id


def _replaced(using: str, chunk: LoadChunk, until_ms: int) -> Iterator[list[Entry]]:
    ids = chunk.replaced_ids
    for start in range(0, len(ids), PAGE):
        yield _entries(using, until_ms, pk__in=ids[start : start + PAGE])


def _entries(using: str, until_ms: int, **which: object) -> list[Entry]:
    """Those that wait and are due by then. One that is held was in the mirror, or its lease's end will be seen."""
    found = Job.objects.using(using).filter(state=State.DELAYED, due_at__lte=clock.from_ms(until_ms), **which)
    rows = found.order_by("pk").values_list("pk", "topic", "due_at")[:PAGE]
    return [Entry(pk, topic, clock.to_ms(due_at)) for pk, topic, due_at in rows]
