"""Add the jobs of a pipeline load to the mirror: the load inserts rows itself and does not call schedule().

The transaction that inserts a chunk of jobs also records in LoadChunk that the mirror does not have them yet. So any
process can add them: the command that loads, after each chunk, or the sweep if the command died.
"""

from collections.abc import Iterator

from .. import clock, conf, databases, mirror
from ..db.retries import retry_conflicts
from ..jobs.on_commit import OVERLAP_MS
from ..mirror.base import Entry
from ..mirror.redis.index import Mirror
from ..models import Job, LoadChunk
from ..states import State

PAGE = 1000  # jobs


def add_to_mirror(using: str) -> int:
    """Add the loaded jobs that are due within the horizon to the mirror. Return how many had no entry before.

    feed() adds the other jobs when they come within the horizon. If Redis is off or down, nothing is added, and the
    chunks are tried again later. Raises MirrorDown.
    """
    index = mirror.connect(using)
    if index is None or index.down:
        return 0
    chunks = LoadChunk.objects.using(using).filter(mirrored=False).order_by("id")
    return sum(_add_chunk(index, using, chunk) for chunk in chunks)


def _add_chunk(index: Mirror, using: str, chunk: LoadChunk) -> int:
    until_ms = int(databases.now_ms(using)) + conf.get().horizon_ms + OVERLAP_MS
    added = sum(index.feed(page) for page in _inserted(using, chunk, until_ms))
    for page in _replaced(using, chunk, until_ms):
        added += index.feed(page, mark=True)
    rows = LoadChunk.objects.using(using).filter(pk=chunk.pk)
    retry_conflicts(lambda: rows.update(mirrored=True, replaced_ids=[]), using)
    return added


def _inserted(using: str, chunk: LoadChunk, until_ms: int) -> Iterator[list[Entry]]:
    """Yield pages of entries for the jobs that the load inserted, selected by the range of their ids.

    The range may contain other jobs; adding these again changes nothing.
    """
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


def _entries(using: str, until_ms: int, **filters: object) -> list[Entry]:
    """Return a page of entries for delayed jobs due up to `until_ms`.

    Reserved jobs are left out: they have an entry, or the sweep takes them back when their lease has expired.
    """
    jobs = Job.objects.using(using).filter(state=State.DELAYED, due_at__lte=clock.from_ms(until_ms), **filters)
    rows = jobs.order_by("pk").values_list("pk", "topic", "due_at", "priority")[:PAGE]
    return [Entry(pk, topic, clock.to_ms(due_at), priority) for pk, topic, due_at, priority in rows]
