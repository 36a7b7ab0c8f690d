"""move, sweep, rebuild, audit: what the workers do by themselves, done once by hand."""

from django.core.management.base import CommandParser

from ... import audit, engine, sweeper, tasks
from .answer import Answer, Options, Verb

FOUND = ("missing", "ghosts", "late", "doubled")
NO_MIRROR = "No Redis is configured: there is no mirror."
PASSES_MOST = 10_000


def _move_arguments(parser: CommandParser) -> None:
    parser.add_argument("--until-idle", action="store_true", help="pass after pass, until nothing more is due")


def _move(options: Options, using: str) -> Answer:
    mover = tasks.new_mover(using)
    passes, rest_ms = 1, mover.move_due()
    while options["until_idle"] and rest_ms == 0 and passes < PASSES_MOST:
        passes, rest_ms = passes + 1, mover.move_due()
    said = "more is due" if rest_ms == 0 else f"the next look is in {rest_ms} ms"
    return Answer({"passes": passes, "rest_ms": rest_ms}, f"{passes} {'pass' if passes == 1 else 'passes'}; {said}")


def _sweep(options: Options, using: str) -> Answer:
    done = sweeper.sweep(using=using)
    return Answer(done, _counts(done))


def _rebuild(options: Options, using: str) -> Answer:
    if engine.mirror_of(using) is None:
        return Answer({"fed_entries": 0, "mirror": "off"}, NO_MIRROR)
    fed = sweeper.rebuild(using=using)
    if fed is None:
        return Answer({"fed_entries": 0, "mirror": "up"}, "", "Another process is rebuilding it right now.")
    return Answer({"fed_entries": fed, "mirror": "up"}, f"{fed} entries were missing and are back")


def _audit_arguments(parser: CommandParser) -> None:
    parser.add_argument("--check", action="store_true", help="repair nothing; the exit code is 1 if anything is wrong")


def _audit(options: Options, using: str) -> Answer:
    """Without --check, what was found is repaired and looked at again: only what is left makes the exit code 1."""
    if engine.mirror_of(using) is None:
        return Answer({"mirror": "off"}, NO_MIRROR)
    counts = audit.audit(using=using, repair=not options["check"])
    if options["check"] or not _wrong(counts):
        refused = "The mirror and the database disagree; run it without --check to repair." if _wrong(counts) else ""
        return Answer(counts | {"mirror": "up"}, _counts(counts), refused)
    left = audit.audit(using=using, repair=False)
    remaining = {kind: left[kind] for kind in FOUND}
    text = f"found\n{_counts(counts)}\nleft after the repair\n{_counts(remaining)}"
    refused = "Not everything could be repaired." if _wrong(left) else ""
    return Answer(counts | {"mirror": "up", "left": remaining}, text, refused)


def _wrong(counts: dict[str, int]) -> bool:
    return any(counts.get(kind) for kind in FOUND)


def _counts(counts: dict[str, int]) -> str:
    return "\n".join(f"{name:<8} {count}" for name, count in counts.items())


def _nothing(parser: CommandParser) -> None:
    """These take no arguments of their own."""


VERBS = {
    "move": Verb("Make what is due ready and ring for it: one pass of the mover.", _move_arguments, _move),
    "sweep": Verb("Take back ended leases, bring the next window of the horizon into the mirror.", _nothing, _sweep),
    "rebuild": Verb("Enter everything within the horizon into the mirror again.", _nothing, _rebuild),
    "audit": Verb(
        "Compare the mirror with the database and repair what differs. The exit code is 1 if something is left.",
        _audit_arguments,
        _audit,
    ),
}
