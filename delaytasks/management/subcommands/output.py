"""Output of subcommands: columns for people, JSON for programs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.core.management.base import CommandParser

from ... import clock, formatting
from ...models import Job, JobEvent
from ...outcomes import error_text, short_error_code

Options = Mapping[str, Any]


class Answer(NamedTuple):
    """The result of a subcommand.

    data      output with --json
    text      output without --json
    refused   error message; if it is not empty, the exit code is `code`
    """

    data: Any
    text: str
    refused: str = ""
    code: int = 1


class Verb(NamedTuple):
    """A subcommand.

    failure   exit code if the subcommand could not run; if it ran and found problems, the exit code is Answer.code
    """

    help: str
    arguments: Callable[[CommandParser], None]
    run: Callable[[Options, str], Answer]  # (options, database alias)
    failure: int = 1


def rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else clock.rfc3339(moment)


def rfc3339_ms(ms: int | None) -> str | None:
    return None if ms is None else clock.rfc3339_of(ms)


def job_data(job: Job, now: datetime) -> dict[str, Any]:
    return {
        "id": job.pk,
        "topic": job.topic,
        "key": job.key,
        "state": job.shown_state(now).word,
        "due_at": rfc3339(job.due_at),
        "ttr_ms": job.ttr_ms,
        "expires_ms": job.expires_ms,
        "priority": job.priority,
        "attempt": job.attempt,
        "failures": job.failures,
        "polls": job.polls,
        "created_at": rfc3339(job.created_at),
        "reserved_at": rfc3339(job.reserved_at),
        "lease_until": rfc3339(job.lease_until),
        "ended_at": rfc3339(job.ended_at),
        "worker": job.worker,
        "error": error_text(job.error),
        "error_code": short_error_code(job.error),
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
        "reason": event.reason,
        "error": error_text(event.error),
        "error_code": short_error_code(event.error),
    }


def job_line(job: Job, now: datetime) -> str:
    """Return a one-line description of a job, for the output of the subcommands that change a job."""
    due = f"{formatting.absolute(job.due_at, ms=True)} ({formatting.relative(job.due_at, now)})"
    return f"job {job.pk}  {job.topic}  {printable(job.key)}  {job.shown_state(now).word}, due {due}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> str:
    """Format rows as aligned columns; the columns in `right` are right-aligned. Lines have no trailing spaces."""
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
    """Escape control characters, which a terminal would interpret: stored keys and errors are untrusted."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
