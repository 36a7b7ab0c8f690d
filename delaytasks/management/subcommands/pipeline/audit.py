"""pipeline audit: check that business rows have their jobs, and show what happened to the jobs."""

import shlex
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ....exceptions import BadCalendar
from ....maintenance import retention
from ....pipeline.page.charts import percent
from .. import arguments
from ..output import Answer, Options, Verb, table
from . import calendars, html_file
from .process import needs_spark, run_application, to_answer

MAX_SAMPLES = 3  # keys of each class in the text
HEAD = ("class", "keys", "must be empty", "for example")
MAX_AUDITS = 5  # last audits in the text
MAX_WEEKS = 5  # newest weeks in the text
MAX_VALUES = 5  # worst values of each dimension in the text


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "--rule", required=True, metavar="FILE",
        help="TOML file that says which business rows should have a job (docs/pipeline.md)",
    )  # fmt: skip
    html_file.add_argument(parser)


def _run(options: Options, using: str) -> Answer:
    needs_spark()
    from ....pipeline.rules import rules

    file = options["rule"]
    try:
        tables = rules.read(file)
        declared = rules.rules_of(file, tables)
    except rules.BadRule as error:
        raise CommandError(str(error), returncode=arguments.USAGE) from error
    parameters = {
        "file": file,
        "calendars": _calendars(declared),
        "html": html_file.writable(options),
        "rules": [each | _absolute(rule) for each, rule in zip(tables, declared, strict=True)],
    }
    answer = run_application("audit", options, using, parameters)
    load = ["manage.py", "delaytasks", "pipeline", "load"]
    lake = ["--lake", options["lake"]] if options["lake"] else []
    database = ["--database", options["database"]] if options["database"] else []
    sections = [_section(each, [*load, each["missing"], *lake, *database]) for each in answer["rules"]]
    end = f"as of {answer['as_of']}, in {answer['seconds']} s\n{answer['page']}"
    if any(each["missing"] for each in answer["rules"]):
        sections += _retention_warning(using, options["lake"] or None)
    return to_answer(answer, "\n\n".join([*sections, end]))


def _retention_warning(using: str, lake: str | None) -> list[str]:
    """Return a sentence if jobs are deleted that no archive has: the audit cannot tell them from missing ones."""
    age = retention.configured().shortest
    if age is None or retention.archive_directory(using, lake) is not None:
        return []
    warning = (
        f"RETENTION deletes ended jobs after {age}, and no archive has them. A row whose job was deleted is reported "
        "as missing: do not schedule such jobs again. Leave out old rows with the rule's `when`."
    )
    return [warning]


def _calendars(declared: list[Any]) -> dict[str, dict[str, Any]]:
    found = {}
    for rule in declared:
        try:
            if rule.calendar:
                found[rule.calendar] = calendars.snapshot_of(rule.calendar)
        except BadCalendar as error:
            raise CommandError(str(rule.bad("calendar", str(error))), returncode=arguments.USAGE) from error
    return found


def _absolute(rule: Any) -> dict[str, str]:
    return {"parquet": rule.parquet} if rule.parquet else {}


def _section(rule: dict[str, Any], load: list[str]) -> str:
    rows = [
        (name, each["count"], "yes" if each["must_be_empty"] else "", _keys(each["samples"], each["count"]))
        for name, each in rule["classes"].items()
    ]
    lines = [
        f"{rule['name']}: {rule['rows']} rows of {rule['source']}, {rule['jobs']} jobs of {rule['topic']}",
        table(HEAD, rows, right=("keys",)),
        f"all keys with their class: {rule['folder']}",
    ]
    total = rule["total"]
    if total["outcome_yes"] is not None:
        share = "" if total["outcome_share"] is None else f" ({percent(total['outcome_share'])})"
        no, unknown = total["outcome_no"], total["outcome_unknown"]
        lines.append(f"outcome: {total['outcome_yes']} yes{share}, {no} no, {unknown} not yet known")
    if len(rule["trend"]) > 1:
        lines.append(f"last audits: {', '.join(map(_to_audit, rule['trend'][-MAX_AUDITS:]))}")
    if rule["weeks"]:
        lines.append(_weeks(rule["weeks"][-MAX_WEEKS:]))
    lines += [_dimension(name, values) for name, values in rule["dimensions"].items()]
    if rule["missing"]:
        lines.append(f"to schedule the missing jobs: {shlex.join(load)}")
    return "\n".join(lines)


def _to_audit(each: dict[str, Any]) -> str:
    share = "" if each["kept_share"] is None else f" {percent(each['kept_share'])} kept and"
    return f"{each['as_of'][:10]}{share} {each['faults']} fault{'' if each['faults'] == 1 else 's'}"


def _weeks(weeks: list[dict[str, Any]]) -> str:
    from ....pipeline.rules.rules import STATUSES

    head = ("week made", "jobs", *(name.replace("_", " ") for name in STATUSES))
    counts = [[each[name] for name in STATUSES] for each in weeks]
    rows = [(each["value"], sum(found), *found) for each, found in zip(weeks, counts, strict=True)]
    return table(head, rows, right=head[1:])


def _dimension(name: str, values: list[dict[str, Any]]) -> str:
    priced = any(each["cost"] is not None for each in values)
    rows = [_cells(each)[: 5 if priced else 4] for each in values[:MAX_VALUES]]
    more = f"\n... {len(values) - MAX_VALUES} more values, on the page" if len(values) > MAX_VALUES else ""
    head = (name, "rows", "faults", "kept", *(["cost"] if priced else []))
    return table(head, rows, right=head[1:]) + more


def _cells(each: dict[str, Any]) -> tuple[Any, ...]:
    share = "" if each["kept_share"] is None else percent(each["kept_share"])
    return "(none)" if each["value"] is None else each["value"], each["rows"], each["faults"], share, each["cost"]


def _keys(samples: list[dict[str, Any]], count: int) -> str:
    shown = ", ".join(str(each["key"]) for each in samples[:MAX_SAMPLES])
    return f"{shown}, ..." if count > MAX_SAMPLES else shown


VERB = Verb(
    "Check that each business row that should have a job has exactly one, and show what happened to it. The exit code "
    "is 1 if a class that must be empty is not.",
    _arguments,
    _run,
)
