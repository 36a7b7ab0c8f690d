"""Read-only subcommands: stats, health, list, show."""

import json
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from ... import clock, conf, formatting, handlers, topics
from ...db import dialects, pagination
from ...db.scans import JobFilter
from ...jobs import history
from ...jobs.inputs import check_known
from ...models import Job, JobEvent
from ...monitoring import advice, metrics, readiness
from ...outcomes import error_text
from ...states import State
from . import arguments
from .output import Answer, Options, Verb, event_data, job_data, printable, table

LIVE_WORD = "live"
STATE_WORDS = (LIVE_WORD, *(state.word for state in State))
COUNT_COLUMNS = ("delayed", "ready", "reserved", "dead")


def _stats(options: Options, using: str) -> Answer:
    snapshot = metrics.snapshot(using=using)
    checks = readiness.run(using)
    rows = [
        (name, *(counts[word] for word in COUNT_COLUMNS), _age(counts["oldest_ready_ms"]))
        for name, counts in sorted(snapshot["topics"].items())
    ]
    lines = [
        table(("topic", *COUNT_COLUMNS, "oldest ready"), rows, right=(*COUNT_COLUMNS, "oldest ready")),
        "",
        f"delayed  only jobs that are due within {formatting.duration(conf.get().horizon_ms)}",
        f"mirror   {snapshot['mirror']}",
        f"overdue  {snapshot['overdue']}",
        f"skew     {snapshot['skew_ms']} ms (this host's clock minus the database's)",
    ]
    if snapshot["counters"]:
        lines += ["", table(("counter", "count"), sorted(snapshot["counters"].items()), right=("count",))]
    lines += ["", *_check_lines(checks)]
    return Answer(snapshot | {"health": {check.name: check.state for check in checks}}, "\n".join(lines))


def _health_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--check", action="append", choices=readiness.NAMES, help="only this check; may be repeated (default: all)"
    )


def _health(options: Options, using: str) -> Answer:
    checks = readiness.run(using, options["check"] or ())
    failing = [check.name for check in checks if check.state is readiness.State.FAILING]
    unknown = [check.name for check in checks if check.state is readiness.State.UNKNOWN]
    data = {"status": readiness.worst(check.state for check in checks), "checks": [each._asdict() for each in checks]}
    found = f"Failing: {', '.join(failing)}" if failing else f"Unknown: {', '.join(unknown)}"
    refused = f"{found}. See {advice.runbook()}." if failing or unknown else ""
    return Answer(data, "\n".join(_check_lines(checks)), refused)


def _check_lines(checks: list[readiness.Check]) -> list[str]:
    lines = []
    for check in checks:
        lines.append(f"{check.name:<9} {check.state:<9} {check.message}")
        if check.advice:
            lines.append(f"{'':<19} {check.advice}")
    return lines


def _age(ms: int | None) -> str:
    return "-" if ms is None else formatting.duration(ms)


def _list_arguments(parser: CommandParser) -> None:
    parser.add_argument("--topic", help="only this topic")
    parser.add_argument("--state", choices=STATE_WORDS, help="displayed state; ready means delayed and due")
    parser.add_argument("--key-prefix", metavar="TEXT", help="only keys with this prefix")
    parser.add_argument(
        "--due-before", type=arguments.moment, metavar="TIME", help="due before this time; live jobs only"
    )
    parser.add_argument(
        "--due-after", type=arguments.moment, metavar="TIME", help="due at or after this time; live jobs only"
    )
    parser.add_argument("--limit", type=arguments.limit, default=50, help="largest number of jobs (default: 50)")


def _list(options: Options, using: str) -> Answer:
    now = dialects.database_now(using)
    ids, more = pagination.find_first(using, _filter(options, using, now), options["limit"])
    if not ids and options["topic"]:
        check_known(using, options["topic"])
    jobs = pagination.fetch(Job.objects.using(using).defer("body"), ids)
    rows = [
        (j.pk, j.shown_state(now).word, j.topic, j.key, formatting.absolute(j.due_at),
         "" if j.ended_at else formatting.relative(j.due_at, now), j.attempt, j.failures,
         formatting.last_line(error_text(j.error)))
        for j in jobs
    ]  # fmt: skip
    head = ("id", "state", "topic", "key", "due", "", "attempt", "failures", "error")
    text = table(head, rows, right=("id", "attempt", "failures")) if jobs else "No jobs."
    if more:
        text += f"\nThere are more than {options['limit']} jobs: raise --limit or add filters."
    return Answer({"jobs": [job_data(job, now) for job in jobs], "more": more}, text)


def _filter(options: Options, using: str, now: datetime) -> JobFilter:
    state, by_due = options["state"], options["due_before"] is not None or options["due_after"] is not None
    return JobFilter(
        now,
        _topics(options, using),
        state=None if state in (None, LIVE_WORD) else State[state.upper()],
        live=state == LIVE_WORD or (state is None and by_due),
        key_prefix=options["key_prefix"] or "",
        due_from=options["due_after"],
        due_until=options["due_before"],
    )


def _topics(options: Options, using: str) -> tuple[str, ...] | None:
    if options["topic"]:
        return (options["topic"],)
    if not options["key_prefix"]:
        return None
    return tuple(topics.known(using))


def _show_arguments(parser: CommandParser) -> None:
    arguments.target(parser)
    arguments.lake(parser)


def _show(options: Options, using: str) -> Answer:
    job_id, topic, key = arguments.target_of(options)
    record = history.find(Job.objects.using(using).all(), job_id, topic, key, lake=options["lake"])
    if record is None:
        label = f"id {job_id}" if job_id is not None else f"topic {topic!r} and key {key!r}"
        return Answer({"error": "not found"}, "not found", f"There is no job with {label}.")
    job, events, now = record.job, record.events, dialects.database_now(using)
    is_archived = record.archived is not None
    data = job_data(job, now) | {"body": job.body, "events": [event_data(event) for event in events]}
    where = ["This job is in the archive; its row was deleted.", ""] if is_archived else []
    text = "\n".join([*where, *_facts(job, now), "", *_history(events)])
    return Answer(data | {"archived": True} if is_archived else data, text)


def _facts(job: Job, now: datetime) -> list[str]:
    def at(moment: datetime | None) -> str:
        return "-" if moment is None else f"{formatting.absolute(moment, ms=True)} ({formatting.relative(moment, now)})"

    expires_ms = handlers.expires_ms(job.topic, job.expires_ms)
    subject = "-" if job.subject_pk is None else f"{job.subject_label} {job.subject_pk}"
    facts: list[tuple[str, Any]] = [
        ("job", job.pk), ("topic", job.topic), ("key", job.key), ("subject", subject),
        ("state", job.shown_state(now).word), ("due", at(job.due_at)), ("priority", job.priority),
        ("expires", "-" if expires_ms is None else f"{formatting.duration(expires_ms)} after the due time"),
        ("ttr", formatting.duration(job.ttr_ms)), ("attempt", job.attempt), ("polls", job.polls),
        ("failures", f"{job.failures} of {handlers.max_attempts(job.topic)}"), ("scheduled", at(job.created_at)),
        ("reserved", at(job.reserved_at)), ("lease until", at(job.lease_until)), ("ended", at(job.ended_at)),
        ("worker", job.worker or "-"), ("body", json.dumps(job.body, ensure_ascii=False)),
    ]  # fmt: skip
    lines = [f"{name:<12} {printable(str(value))}" for name, value in facts]
    return [*lines, "last error", _indented(error_text(job.error))] if job.error else lines


def _history(events: list[JobEvent]) -> list[str]:
    if not events:
        return ["This job has no events."]
    head = ("when", "outcome", "attempt", "late ms", "ran ms", "worker", "by", "reason", "error")
    rows = [
        (formatting.absolute(clock.from_ms(e.done_ms), ms=True), e.outcome, e.attempt, _ms(e.late_ms), _ms(e.ran_ms),
         e.worker, e.actor, e.reason, formatting.last_line(error_text(e.error)))
        for e in events
    ]  # fmt: skip
    return [table(head, rows, right=("attempt", "late ms", "ran ms"))]


def _ms(ms: int | None) -> str:
    return "-" if ms is None else str(ms)


def _indented(text: str) -> str:
    return "\n".join("    " + printable(line) for line in text.splitlines())


VERBS = {
    "stats": Verb("Show counts per topic, the state of the mirror, and counters.", arguments.none, _stats),
    "health": Verb(
        f"Check {', '.join(readiness.NAMES)}. Exit code 1: one fails or is unknown.",
        _health_arguments,
        _health,
    ),
    "list": Verb(
        "List jobs: by key with --key-prefix, by due time with a live state or a due time, otherwise newest first.",
        _list_arguments,
        _list,
    ),
    "show": Verb("Show a job and its events, also from the archive.", _show_arguments, _show),
}
