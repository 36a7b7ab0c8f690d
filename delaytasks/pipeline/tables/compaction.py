"""Compaction of the stream's small parts into larger ones, to bound the number of files and the document's size.

A compaction is published like a batch: the document names the new part instead of the old ones. The old folders are
removed later, when no reader can be using them any more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from ..transforms import lateness
from . import parts as files
from . import stream_batches
from .checksums import Differs
from .lake import Lake
from .stream_batches import Part, Streamed

DAY_MS = 86_400_000
MIN_BATCHES = 60  # minimum number of small batches for a compaction during their day
SMALL_EVENTS = 50_000  # a batch with more events is compacted only after its day (UTC)
FULL_EVENTS = 2_000_000  # a part with so many events is not compacted again
FILE_EVENTS = 1_000_000  # events per file of a compacted part
READER_MS = 600_000  # longest time that a reader may use a folder after it was retired


def select_parts(parts: Sequence[Part], now_ms: int) -> list[Part]:
    """Return the parts to compact into one; an empty list if no compaction is due.

    Parts of the earliest UTC day that is over come first. Without such parts, small batches are compacted if there
    are at least MIN_BATCHES.
    """
    today = now_ms // DAY_MS
    days: dict[int, list[Part]] = {}
    for part in parts:
        if part.events < FULL_EVENTS and part.published_ms // DAY_MS < today:
            days.setdefault(part.published_ms // DAY_MS, []).append(part)
    for _, each in sorted(days.items()):
        if len(each) > 1:
            return _take_until_full(each)
    tiny = [part for part in parts if part.batches == 1 and part.events < SMALL_EVENTS]
    return _take_until_full(tiny) if len(tiny) >= MIN_BATCHES else []


def _take_until_full(parts: Iterable[Part]) -> list[Part]:
    found: list[Part] = []
    for part in parts:
        if sum(each.events for each in found) >= FULL_EVENTS:
            break
        found.append(part)
    return found


def compact(spark: SparkSession, lake: Lake, parts: Sequence[Part]) -> Part:
    """Write one part with the events and counts of these parts, and return it. Does not publish it.

    Raises checksums.Differs if the new part has another number of events, and LakeError if an old part is damaged.
    """
    for each in parts:
        stream_batches.verify(lake, each)
    folder, folders = lake.new_run("stream"), [each.folder for each in parts]
    expected = sum(each.events for each in parts)
    file_count = -(-expected // FILE_EVENTS)
    files.write_events(lake, folder, files.read_events(spark, lake, *folders).coalesce(file_count))
    files.write_counts(lake, folder, lateness.merge_counts(files.read_counts(spark, lake, *folders)))
    compacted = stream_batches.measure(lake, folder, max(each.published_ms for each in parts))
    if compacted is None or compacted.events != expected:
        raise Differs(
            f"The compaction of {len(parts)} parts of the stream has {compacted.events if compacted else 0} events "
            f"instead of {expected}. Nothing was changed. Start this again; if it happens again, check the disk."
        )
    lake.sync(folder)
    return replace(compacted, batches=sum(each.batches for each in parts))


def replace_parts(state: Streamed, parts: Sequence[Part], compacted: Part, now_ms: int) -> Streamed:
    """Return the state with the new part in the place of the first of the old parts, and with these retired."""
    replaced = {each.folder for each in parts}
    kept = [compacted if each.folder == parts[0].folder else each for each in state.parts
            if each.folder not in replaced or each.folder == parts[0].folder]  # fmt: skip
    return replace(state, parts=tuple(kept), retired={**state.retired, **dict.fromkeys(replaced, now_ms)})


def expired_parts(state: Streamed, now_ms: int, keep_days: float) -> list[Part]:
    """Return the parts whose last event is older than `keep_days`; an empty list if it is 0."""
    return [each for each in state.parts if keep_days and each.last_ms < now_ms - keep_days * DAY_MS]


def removable_folders(state: Streamed, now_ms: int) -> list[str]:
    """Return the folders that were retired so long ago that no reader can be using them."""
    return sorted(folder for folder, since_ms in state.retired.items() if since_ms < now_ms - READER_MS)


def retire(state: Streamed, parts: Sequence[Part], folders: Sequence[str], now_ms: int) -> Streamed:
    """Return the state with these parts retired, and without these retired folders, which the caller removes."""
    retired = {folder: since_ms for folder, since_ms in state.retired.items() if folder not in folders}
    retired |= {each.folder: now_ms for each in parts}
    return replace(state, parts=tuple(each for each in state.parts if each not in parts), retired=retired)
