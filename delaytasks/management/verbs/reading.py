"""stats, list, show: what is there. These change nothing."""

import json
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from ... import clock, dialect, metrics, stories, topics, words
from ...models import Job, JobEvent, Topic
from ...querysets import JobQuerySet
from ...states import LIVE, State
from . import arguments
from .answer import Answer, Options, Verb, event_data, job_data, printable, table

LIVE_WORD = "live"
STATE_WORDS = (LIVE_WORD, *(state.word for state in State))
COUNTED = ("delayed", "ready", "reserved", "dead")


def _stats(options: Options, using: str) -> Answer:
    snapshot = metrics.snapshot(using=using)
    rows = [
        (name, *(counts[word] for word in COUNTED), _age(counts["oldest_ready_ms"]))
        for name, counts in sorted(snapshot["topics"].items())
    ]
    lines = [
        table(("topic", *COUNTED, "oldest ready"), rows, right=(*COUNTED, "oldest ready")),
        "",
        f"mirror   {snapshot['mirror']}",
        f"overdue  {snapshot['overdue']}",
        f"skew     {snapshot['skew_ms']} ms (this host's clock ahead of the database's)",
    ]
    if snapshot["counters"]:
        lines += ["", table(("counter", "count"), sorted(snapshot["counters"].items()), right=("count",))]
    return Answer(snapshot, "\n".join(lines))


def _age(ms: int | None) -> str:
    return "-" if ms is None else words.span(ms)


def _list_arguments(parser: CommandParser) -> None:
    parser.add_argument("--topic", help="of this topic")
    parser.add_argument("--state", choices=STATE_WORDS, help="as people see it: ready is delayed and due")
    parser.add_argument("--key-prefix", metavar="TEXT", help="whose key begins so")
    parser.add_argument("--due-before", type=arguments.moment, metavar="TIME", help="due before this; live jobs only")
    parser.add_argument("--due-after", type=arguments.moment, metavar="TIME", help="due at this or later; live only")
    parser.add_argument("--limit", type=arguments.limit, default=50, help="at most so many (default: 50)")


def _list(options: Options, using: str) -> Answer:
    """Live jobs by due time, anything else newest first: the two orders that have an index."""
    now = dialect.database_now(using)
    found = _chosen(options, using, now)
    jobs = list(found.defer("body")[: options["limit"] + 1])
    more, jobs = len(jobs) > options["limit"], jobs[: options["limit"]]
    rows = [
        (j.pk, j.shown_state(now).word, j.topic, j.key, words.absolute(j.due_at),
         "" if j.ended_at else words.relative(j.due_at, now), j.attempt, j.failures, words.one_line(j.error))
        for j in jobs
    ]  # fmt: skip
    head = ("id", "state", "topic", "key", "due", "", "attempt", "failures", "error")
    text = table(head, rows, right=("id", "attempt", "failures")) if jobs else "No jobs."
    if more:
        text += f"\nThere are more than {options['limit']}: use --limit, or name what you look for."
    return Answer({"jobs": [job_data(job, now) for job in jobs], "more": more}, text)


def _chosen(options: Options, using: str, now: datetime) -> JobQuerySet:
    found = Job.objects.using(using).all()
    by_due = options["due_before"] is not None or options["due_after"] is not None
    state = options["state"] or (LIVE_WORD if by_due else None)
    if options["topic"]:
        found = found.filter(topic=options["topic"])
    if state is not None:
        found = found.live() if state == LIVE_WORD else found.in_state(State[state.upper()], now)
    if options["due_before"] is not None:
        found = found.filter(due_at__lt=options["due_before"])
    if options["due_after"] is not None:
        found = found.filter(due_at__gte=options["due_after"])
    if options["key_prefix"]:
        found = found.key_starts(options["key_prefix"], topics=_among(options, using))
    live = state in (LIVE_WORD, *(each.word for each in LIVE))
    return found.order_by("due_at", "id") if live else found.order_by("-id")


def _among(options: Options, using: str) -> list[str]:
    if options["topic"]:
        return [options["topic"]]
    return sorted({*topics.known(), *Topic.objects.using(using).values_list("name", flat=True)})


def _show_arguments(parser: CommandParser) -> None:
    arguments.target(parser)
    arguments.lake(parser)


def _show(options: Options, using: str) -> Answer:
    job_id, topic, key = arguments.target_of(options)
    story = stories.find(Job.objects.using(using).all(), job_id, topic, key, lake=options["lake"])
    if story is None:
        asked = f"number {job_id}" if job_id is not None else f"topic {topic!r} and key {key!r}"
        return Answer({"error": "not found"}, "not found", f"No job has the {asked}.")
    job, events, now = story.job, story.events, dialect.database_now(using)
    is_archived = story.archived is not None
    data = job_data(job, now) | {"body": job.body, "events": [event_data(event) for event in events]}
    where = ["It is in the archive; its row is gone.", ""] if is_archived else []
    text = "\n".join([*where, *_facts(job, now), "", *_history(events)])
    return Answer(data | {"archived": True} if is_archived else data, text)


def _facts(job: Job, now: datetime) -> list[str]:
    def at(moment: datetime | None) -> str:
        return "-" if moment is None else f"{words.absolute(moment, ms=True)} ({words.relative(moment, now)})"

    facts: list[tuple[str, Any]] = [
        ("job", job.pk), ("topic", job.topic), ("key", job.key), ("state", job.shown_state(now).word),
        ("due", at(job.due_at)), ("ttr", words.span(job.ttr_ms)), ("attempt", job.attempt),
        ("failures", f"{job.failures} of {topics.max_attempts(job.topic)}"), ("scheduled", at(job.created_at)),
        ("reserved", at(job.reserved_at)), ("lease until", at(job.lease_until)), ("ended", at(job.ended_at)),
        ("worker", job.worker or "-"), ("body", json.dumps(job.body, ensure_ascii=False)),
    ]  # fmt: skip
    lines = [f"{name:<12} {printable(str(value))}" for name, value in facts]
    return [*lines, "last error", _indented(job.error)] if job.error else lines


def _history(events: list[JobEvent]) -> list[str]:
    if not events:
        return ["Nothing has happened to it yet."]
    head = ("when", "outcome", "attempt", "late ms", "ran ms", "worker", "by", "error")
    rows = [
        (words.absolute(clock.from_ms(e.done_ms), ms=True), e.outcome, e.attempt, _ms(e.late_ms), _ms(e.ran_ms),
         e.worker, e.actor, words.one_line(e.error))
        for e in events
    ]  # fmt: skip
    return [table(head, rows, right=("attempt", "late ms", "ran ms"))]


def _ms(ms: int | None) -> str:
    return "-" if ms is None else str(ms)


def _indented(text: str) -> str:
    return "\n".join("    " + printable(line) for line in text.splitlines())


def _nothing(parser: CommandParser) -> None:
    """These take no arguments of their own."""


VERBS = {
    "stats": Verb("Counts per topic, the mirror's health, the counters.", _nothing, _stats),
    "list": Verb(
        "Jobs: live ones by due time when a live state or a due time is asked for, otherwise newest first.",
        _list_arguments,
        _list,
    ),
    "show": Verb("One job with everything that happened to it, also when its row is gone.", _show_arguments, _show),
}
