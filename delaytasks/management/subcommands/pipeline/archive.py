"""pipeline archive, pipeline forget-archive: move ended jobs from the database to the lake, or stop it for good."""

from datetime import timedelta

from django.core.management.base import CommandError, CommandParser

from .... import clock, databases
from ....maintenance import retention, runs
from ....timeouts import retained_jobs
from .. import arguments, audited
from ..output import Answer, Options, Verb
from .process import folder, run_application, to_answer


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--older-than-days", type=arguments.number("days", 0, 36_500), default=30.0, metavar="DAYS",
        help="archive jobs that ended more than DAYS ago; if DAYS is 1 or more, in whole UTC days, each archived once "
        "(default: 30)",
    )  # fmt: skip
    parser.add_argument("--dead", action="store_true", help="also archive dead jobs; they cannot be retried afterwards")
    parser.add_argument("--keep", action="store_true", help="archive without deleting rows")


def _run(options: Options, using: str) -> Answer:
    now = databases.now(using)
    before = now - timedelta(days=options["older_than_days"])
    parameters = {
        "older_than_days": options["older_than_days"], "dead": options["dead"], "prune": not options["keep"],
    }  # fmt: skip
    with audited.many(using, "jobs.archived", "jobs") as after:
        after |= parameters
        retained_jobs.forget_others(using, before)  # jobs that keep a declared time stay in the database
        if not options["keep"]:
            runs.note(using, before)
        answer = run_application("archive", options, using, parameters | {"now_ms": clock.to_ms(now)})
        retention.note_archive(using, now)
        after |= {name: answer[name] for name in ("jobs", "events", "pruned")}
    text = (
        f"{answer['jobs']} jobs with {answer['events']} events archived, {answer['pruned']} jobs pruned, "
        f"in {answer['seconds']} s"
    )
    if answer["withdrawn"]:
        text += f"\n{answer['withdrawn']} jobs changed meanwhile and were not archived"
    if answer["left"]:
        text += f"\n{answer['left']} jobs were locked; the next run prunes them"
    if retention.configured().shortest is not None and not retention.is_left_to_pipeline(using):
        text += (
            "\nRETENTION deletes jobs before they are archived, because DELAYTASKS['LAKE'] does not name this lake. "
            "Set it to the value of --lake."
        )
    return to_answer(answer, text)


def _forget(options: Options, using: str) -> Answer:
    root = folder(options, using)
    if retention.archive_directory(using, options["lake"] or None) is not None:
        raise CommandError(
            f"{root} has an archive, or is not a local folder. Move archive.json and archive away first, or unset "
            "LAKE.",
            returncode=arguments.USAGE,
        )
    retention.note_archive(using, None)
    audited.write_named(using, "archive.forgotten", root)
    text = "From now on, jobs are deleted as RETENTION says. The next `pipeline archive` begins a new archive."
    return Answer({"lake": root}, text)


FORGET = Verb(
    "Say that the archive was given up, or that its lake is lost: jobs are deleted as RETENTION says, and the next "
    "`pipeline archive` begins a new archive.",
    arguments.none,
    _forget,
)
VERB = Verb(
    "Move ended jobs from the database to Delta tables: write, compare, commit, then prune. `show` and the admin "
    "still find them there.",
    _arguments,
    _run,
)
