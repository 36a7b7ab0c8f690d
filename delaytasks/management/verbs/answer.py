"""What a verb answers, and how jobs are written down: for people in columns, for programs as JSON."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.core.management.base import CommandParser

from ... import clock, words
from ...models import Job, JobEvent

Options = Mapping[str, Any]


class Answer(NamedTuple):
    """data is the JSON document; text is for people; refused is a sentence, and makes the exit code 1."""

    data: Any
    text: str
    refused: str = ""


class Verb(NamedTuple):
    help: str
    arguments: Callable[[CommandParser], None]
    run: Callable[[Options, str], Answer]  # (options, database alias)


def rfc3339(moment: datetime | None) -> str | None:
    """UTC to the millisecond: 2026-11-20T11:22:33.123Z."""
    if moment is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def rfc3339_ms(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(clock.from_ms(ms))


def job_data(job: Job, now: datetime) -> dict[str, Any]:
    return {
        "id": job.pk,
        "topic": job.topic,
        "key": job.key,
        "state": job.shown_state(now).word,
        "due_at": rfc3339(job.due_at),
        "ttr_ms": job.ttr_ms,
        "attempt": job.attempt,
        "failures": job.failures,
        "created_at": rfc3339(job.created_at),
        "reserved_at": rfc3339(job.reserved_at),
        "lease_until": rfc3339(job.lease_until),
        "ended_at": rfc3339(job.ended_at),
        "worker": job.worker,
        "error": job.error,
    }


def event_data(event: JobEvent) -> dict[str, Any]:
    return {
        "outcome": event.outcome,
        "attempt": event.attempt,
        "due_at": rfc3339_ms(event.due_ms),
        "reserved_at": rfc3339_ms(event.reserved_ms),
        "done_at": rfc3339_ms(event.done_ms),
        "next_due_at": rfc3339_ms(event.next_due_ms),
        "late_ms": event.late_ms,
        "ran_ms": event.ran_ms,
        "worker": event.worker,
        "actor": event.actor,
        "error": event.error,
    }


def job_line(job: Job, now: datetime) -> str:
    """One job in one line: what the changing verbs answer with."""
    due = f"{words.absolute(job.due_at, ms=True)} ({words.relative(job.due_at, now)})"
    return f"job {job.pk}  {job.topic}  {job.key}  {job.shown_state(now).word}, due {due}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> str:
    """Columns, aligned; those named in `right` to the right. The last column is not padded."""
    cells = [list(head), *([printable(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        ).rstrip()
        for row in cells
    )


def printable(text: str) -> str:
    """`text` without what a terminal would obey: stored keys and errors come from anywhere."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
