"""Subcommands that run a maintenance task once: move, sweep, rebuild, audit, prune. Workers run them regularly."""

import math

from django.core.management.base import CommandError, CommandParser

from ... import conf, mirror
from ...jobs.inputs import check_known
from ...maintenance import audit, feed, retention, sweep
from ...models import Job
from ...worker import dispatch
from . import arguments, audited
from .output import Answer, Options, Verb

DIFFERENCES = ("missing", "ghosts", "late", "doubled")
NO_MIRROR = "No Redis is configured, so there is no mirror."
MAX_PASSES = 10_000
SEND_SECONDS = 10.0  # how long the command waits for its messages to be sent


def _move_arguments(parser: CommandParser) -> None:
    parser.add_argument("--until-idle", action="store_true", help="repeat until nothing is due")


def _move(options: Options, using: str) -> Answer:
    mover = dispatch.new_mover(using)
    passes, rest_ms = 1, mover.move_due()
    while options["until_idle"] and rest_ms == 0 and passes < MAX_PASSES:
        passes, rest_ms = passes + 1, mover.move_due()
    dispatch.sender().wait_until_sent(SEND_SECONDS)
    whole_ms = math.ceil(rest_ms)
    status = "more jobs are due" if rest_ms == 0 else f"next pass in {whole_ms} ms"
    return Answer({"passes": passes, "rest_ms": whole_ms}, f"{passes} {'pass' if passes == 1 else 'passes'}; {status}")


def _sweep(options: Options, using: str) -> Answer:
    counts = sweep.sweep(using=using)
    return Answer(counts, _format_counts(counts))


def _rebuild(options: Options, using: str) -> Answer:
    if mirror.connect(using) is None:
        return Answer({"fed_entries": 0, "mirror": "off"}, NO_MIRROR)
    fed = feed.rebuild(using=using)
    if fed is None:
        return Answer({"fed_entries": 0, "mirror": "up"}, "", "Another process is rebuilding the mirror.")
    were = "entry was" if fed == 1 else "entries were"
    return Answer({"fed_entries": fed, "mirror": "up"}, f"{fed} missing {were} restored")


def _audit_arguments(parser: CommandParser) -> None:
    parser.add_argument("--check", action="store_true", help="do not repair; the exit code is 1 if anything differs")


def _audit(options: Options, using: str) -> Answer:
    """Audit the mirror. Without --check, repair it and audit again: the exit code is 1 only if differences remain."""
    if mirror.connect(using) is None:
        return Answer({"mirror": "off"}, NO_MIRROR)
    counts = audit.audit(using=using, repair=not options["check"])
    if options["check"] or not _has_differences(counts):
        refused = (
            "The mirror and the database differ. Run without --check to repair." if _has_differences(counts) else ""
        )
        return Answer(counts | {"mirror": "up"}, _format_counts(counts), refused)
    after = audit.audit(using=using, repair=False)
    remaining = {kind: after[kind] for kind in DIFFERENCES}
    text = f"found\n{_format_counts(counts)}\nremaining after the repair\n{_format_counts(remaining)}"
    refused = "Some differences could not be repaired." if _has_differences(after) else ""
    return Answer(counts | {"mirror": "up", "left": remaining}, text, refused)


def _has_differences(counts: dict[str, int]) -> bool:
    return any(counts.get(kind) for kind in DIFFERENCES)


def _format_counts(counts: dict[str, int]) -> str:
    width = max(map(len, counts))
    return "\n".join(f"{name:<{width}}  {count}" for name, count in counts.items())


def _prune_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--older-than", type=arguments.age, metavar="AGE",
        help="delete jobs that finished or were cancelled at least this long ago: 30d, 12h, 45m, 90s (without this and "
        "--dead-older-than: as the RETENTION setting says)",
    )  # fmt: skip
    parser.add_argument(
        "--dead-older-than", type=arguments.age, metavar="AGE",
        help="delete jobs that died at least this long ago (without --older-than: only these)",
    )  # fmt: skip
    parser.add_argument("--topic", help="only this topic")


def _prune(options: Options, using: str) -> Answer:
    policy, topic = _retention(options), options["topic"]
    if topic and not Job.objects.using(using).filter(topic=topic).exists():
        check_known(using, topic)
    archive = retention.archive_directory(using)
    if archive is not None:
        return Answer(
            {"pruned": 0, "orphans": 0, "archive": archive},
            "",
            f"The pipeline archives these jobs in {archive}, and deletes only what it has archived. "
            "Run `manage.py delaytasks pipeline archive` instead.",
        )
    missing = retention.missing_archive(using)
    if missing is not None:
        return Answer({"pruned": 0, "orphans": 0}, "", f"{missing} {retention.MISSING_ADVICE}")
    counts = {"pruned": 0, "orphans": 0}
    older_than = {
        topic: {kind: str(age) for kind, age in ages.items() if age is not None}
        for topic, ages in policy.topics.items()
    }
    with audited.many(using, "jobs.pruned", "jobs", topic=topic) as after:
        for batch in retention.prune(using, policy):
            counts["pruned" if batch.table == "job" else "orphans"] += batch.deleted
            after |= {"older_than": older_than, **counts}
    text = f"deleted {_plural(counts['pruned'], 'job')} and {_plural(counts['orphans'], 'event')} without a job"
    return Answer(counts, text)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _retention(options: Options) -> retention.Retention:
    ages = {"ended": options["older_than"], "dead": options["dead_older_than"]}
    is_given = any(age is not None for age in ages.values())
    topics = {conf.ALL_TOPICS: ages} if is_given else conf.get().retention
    policy = retention.Retention(topics, options["topic"])
    if policy.shortest is None:
        raise CommandError(
            "Give the age of the jobs to delete: --older-than, such as --older-than 30d, or DELAYTASKS['RETENTION'].",
            returncode=arguments.USAGE,
        )
    return policy


VERBS = {
    "move": Verb("Run one pass of the mover: make due jobs ready and notify workers.", _move_arguments, _move),
    "sweep": Verb(
        "Run the sweep: take back jobs whose leases have expired, and add jobs that are due soon to the mirror.",
        arguments.none,
        _sweep,
    ),
    "rebuild": Verb("Rebuild the mirror: add all jobs that are due within the horizon.", arguments.none, _rebuild),
    "audit": Verb(
        "Compare the mirror with the database and repair differences. The exit code is 1 if some remain.",
        _audit_arguments,
        _audit,
    ),
    "prune": Verb(
        "Delete ended jobs of a certain age with their events, in small batches, and events without a job.",
        _prune_arguments,
        _prune,
    ),
}
