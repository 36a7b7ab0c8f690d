"""Batches of some seconds become parts of some hours or a day, so that neither files nor the document grow without end.

A fold is published like a batch: the document names the new part in the place of the old ones, whose folders go a
while later, when nobody reads them any more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from . import parts as files
from . import steps, streamed
from .comparing import Differs
from .lake import Lake
from .streamed import Part, Streamed

DAY_MS = 86_400_000
WAITING = 60  # batches that are folded together when there are so many
TINY_EVENTS = 50_000  # a larger one is no nuisance until its day is over
FULL_EVENTS = 2_000_000  # a part of so many stays as it is
FILE_EVENTS = 1_000_000  # of one file of such a part
RETIRED_MS = 600_000  # how long a reader may take


def chosen(parts: Sequence[Part], now_ms: int) -> list[Part]:
    """The parts that are to be folded into one now; none: nothing is to be done.

    Those of a day that is over, or else the batches of today when there are many.
    """
    today = now_ms // DAY_MS
    days: dict[int, list[Part]] = {}
    for part in parts:
        if part.events < FULL_EVENTS and part.published_ms // DAY_MS < today:
            days.setdefault(part.published_ms // DAY_MS, []).append(part)
    for _, each in sorted(days.items()):
        if len(each) > 1:
            return _until_full(each)
    tiny = [part for part in parts if part.batches == 1 and part.events < TINY_EVENTS]
    return _until_full(tiny) if len(tiny) >= WAITING else []


def _until_full(parts: Iterable[Part]) -> list[Part]:
    found: list[Part] = []
    for part in parts:
        if sum(each.events for each in found) >= FULL_EVENTS:
            break
        found.append(part)
    return found


def folded(spark: SparkSession, lake: Lake, parts: Sequence[Part]) -> Part:
    """One part, written, that tells what these do. Raises comparing.Differs, and LakeError if one is not whole."""
    for each in parts:
        streamed.check(lake, each)
    folder, folders = lake.new_run("stream"), [each.folder for each in parts]
    expected = sum(each.events for each in parts)
    number = -(-expected // FILE_EVENTS)
    files.write_events(lake, folder, files.read_events(spark, lake, *folders).coalesce(number))
    files.write_counts(lake, folder, steps.together(files.read_counts(spark, lake, *folders)))
    made = streamed.measured(lake, folder, max(each.published_ms for each in parts))
    if made is None or made.events != expected:
        raise Differs(
            f"{len(parts)} parts of the stream have {expected} events, and folded into one {made.events if made else 0}"
            ". Nothing was changed: start it again, and look at the disk if it stays so."
        )
    lake.settle(folder)
    return replace(made, batches=sum(each.batches for each in parts))


def instead(state: Streamed, parts: Sequence[Part], made: Part, now_ms: int) -> Streamed:
    """The new part in the place of the first of the old ones, which retire."""
    gone = {each.folder for each in parts}
    kept = [made if each.folder == parts[0].folder else each for each in state.parts
            if each.folder not in gone or each.folder == parts[0].folder]  # fmt: skip
    return replace(state, parts=tuple(kept), retired={**state.retired, **dict.fromkeys(gone, now_ms)})


def outlived(state: Streamed, now_ms: int, keep_days: float) -> list[Part]:
    """Parts whose last event happened longer ago than they are to be kept."""
    return [each for each in state.parts if keep_days and each.last_ms < now_ms - keep_days * DAY_MS]


def forgotten(state: Streamed, now_ms: int) -> list[str]:
    """Folders that nobody can be reading any more."""
    return sorted(folder for folder, since_ms in state.retired.items() if since_ms < now_ms - RETIRED_MS)


def without(state: Streamed, parts: Sequence[Part], folders: Sequence[str], now_ms: int) -> Streamed:
    """These parts retire, and these folders are not spoken of any more."""
    retired = {folder: since_ms for folder, since_ms in state.retired.items() if folder not in folders}
    retired |= {each.folder: now_ms for each in parts}
    return replace(state, parts=tuple(each for each in state.parts if each not in parts), retired=retired)
