"""Load: schedule many jobs from a file, a folder or a query. Each row is validated by the rules of schedule().

    load/<run>/staged/     valid rows, unique by topic and key, as chunks; removed when the run is finished
    load/<run>/rejects/    rejected rows with their reason, as JSON lines
    load/<run>/run.json    request, result of reading, list of chunks; published when all files are on the disk

Chunks are loaded only after run.json is published. The jobs of a chunk and its row in the ledger (the table
delaytasks_loadchunk) are committed in one transaction. So a killed run is continued by starting it again under its
name, and no row is loaded twice.
"""

import math
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from ..config import BadSettings
from ..exit_codes import ExitCode
from ..sinks import staging
from ..sinks.inserts import MODES
from ..sinks.jobs import Chunk, Run
from ..sinks.ledger import Ledger, Totals, load_pending_chunks
from ..sources import files
from ..sources import query as query_source
from ..sources.database import Database, DatabaseUnavailable
from ..sources.files import Source
from ..spark.progress import report_progress
from ..tables import row_counts
from ..tables.lake import Lake, LakeError
from ..transforms.mapping import Terms
from ..transforms.screening import Limits

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST_REJECTS = "5%"
EXECUTOR_MODULES = ("psycopg",)  # for PostgreSQL


def run(
    spark: SparkSession,
    database: Database,
    lake: Lake,
    *,
    source: str = "",
    query: str = "",
    mapping: Mapping[str, Any],
    limits: Mapping[str, Any],
    name: str = "",
    reading: Mapping[str, str] | None = None,
    spread_seconds: float = 0,
    on_conflict: str = "reject",
    most_rejects: str = MOST_REJECTS,
    by: str = "",
) -> dict[str, Any]:
    """Load jobs. Return {"run", "read", "skipped", "rejected", "rejects", "inserted", "replaced", "kept",
    "refused_live", "before", "seconds", "rows_per_second"}. If nothing or not everything was loaded, or too many rows
    were rejected, the answer also has "refused", a sentence that says so. If chunks could not be loaded, it also has
    "exit_code".

    source, query   a path or URI; or SQL for the jobs' own database. Exactly one of them
    mapping         see mapping.Terms
    limits          topics, max_delay_seconds, max_body_bytes, zone, calendar: see screening.Limits
    name            of the run; an unfinished run of this name is continued. "": a new run
    reading         kind, encoding and delimiter of the input, where they do not follow from its file names
    spread_seconds  delay each job by a part of this time, derived from its key
    on_conflict     one of inserts.MODES; see sinks/inserts.py
    most_rejects    a number of rows or a share ("5%"): if more rows are rejected, nothing is loaded. Rows whose job is
                    live are rejected later: then the others stay loaded
    by              actor of the jobs' events; "": write no `scheduled` events

    "before" is the number of rows that this run had loaded before it was started again.
    """
    began = time.monotonic()
    name = _run_name(name, lake)
    request = {
        "source": source, "query": query, "mapping": dict(mapping), "zone": limits.get("zone", ""),
        "spread_seconds": spread_seconds, "on_conflict": _check_mode(on_conflict), "by": by,
        "reading": dict(reading or {}),
    }  # fmt: skip
    terms, reject_limit = Terms.from_dict(mapping), RejectLimit(most_rejects)
    if terms.calendar and not limits.get("calendar"):
        raise BadSettings(f"The run was started without the calendar {terms.calendar!r}.")
    if bool(source) == bool(query):
        raise BadSettings("Name the input: a file or folder, or --query SQL.")
    source_files = files.inspect(source, **(reading or {})) if source else None
    with database.lock("load") as check_lock:
        load = Load(spark, database, lake, check_lock, name, on_conflict, by)
        report_progress(f"run {name}")
        request["files"] = [list(each) for each in source_files.identity] if source_files else []
        load.open(request)
        if not load.document:
            load.write_chunks(source_files, query, terms, limits, round(spread_seconds * 1000))
        # A run that has loaded chunks has passed the reject limit before.
        rejects = lake.path(load.rejects)
        refused = "" if load.totals_before.chunks else reject_limit.check(load.document, rejects)
        problem = "" if refused else load.load_chunks()
        refused = refused or problem or reject_limit.check_loaded(load.document, load.totals_after, rejects)
        answer = load.answer(refused, time.monotonic() - began)
    return answer | ({"exit_code": ExitCode.COULD_NOT_RUN} if problem else {})


def inputs(*, source: str = "", reading: Mapping[str, str] | None = None, **_: Any) -> list[tuple[str, str]]:
    """Return (root, path) of each file that executors will read, for preflight.check(). Raises BadSettings."""
    source_files = files.inspect(source, **(reading or {})) if source else None
    return [(source_files.root, path) for path in source_files.files] if source_files else []


def zones(*, limits: Mapping[str, Any], **_: Any) -> dict[str, bool]:
    """Return the time zones that executors need, each with False: only Python uses them. For preflight.check()."""
    calendar = limits.get("calendar") or {}
    return dict.fromkeys(filter(None, (limits.get("zone"), calendar.get("zone"))), False)


def _run_name(name: str, lake: Lake) -> str:
    name = name or lake.new_run("load").split("/")[1]
    if not NAME.fullmatch(name):
        raise BadSettings(f"{name!r} is not a valid name of a run: use up to 64 of A-Z a-z 0-9 . _ -.")
    return name


def _check_mode(mode: str) -> str:
    if mode not in MODES:
        raise BadSettings(f"on_conflict is {mode!r}; it must be one of {', '.join(MODES)}.")
    return mode


class RejectLimit:
    """Maximum number of rejected rows, or their maximum share of all rows.

    text   a number of rows, or a percentage such as "5%"
    """

    def __init__(self, text: str) -> None:
        number, percent, _ = text.partition("%")
        try:
            self.number, self.percent = float(number), bool(percent)
        except ValueError:
            self.number = -1
        if not 0 <= self.number < math.inf or not (text == f"{number}%" or number.isdecimal()):
            raise BadSettings(f"--most-rejects is {text!r}: give a number of rows, or a share such as 5%.")
        self.text = text

    def check(self, document: Mapping[str, Any], path: str) -> str:
        """Return a message if there are too many rejects or a file could not be read to its end; else an empty string.

        path   of the rejects, for the message
        """
        fatal = [each["first"] for reason, each in document["rejected"].items() if reason in staging.FATAL]
        if fatal:
            return f"Nothing was loaded: {fatal[0]} The rest of the file cannot be read."
        problem = self._problem(document)
        if not problem:
            return ""
        worst = max(document["rejected"].values(), key=lambda each: int(each["rows"]))
        return (
            f"Nothing was loaded: {problem}. {worst['rows']} of them for the same reason, beginning with "
            f"{worst['first']} All rejects are in {path}."
        )

    def check_loaded(self, document: Mapping[str, Any], totals: Totals, path: str) -> str:
        """Return a message if there are too many rejects with the rows that were refused while the others were loaded.

        Otherwise return an empty string.
        """
        problem = self._problem(document, totals.refused) if totals.refused else ""
        return problem and (
            f"{totals.inserted} jobs were inserted, {totals.replaced} replaced and {totals.kept} kept. But {problem}, "
            f"{totals.refused} of them because a job with the topic and key was live or running. All rejects are in "
            f"{path}."
        )

    def _problem(self, document: Mapping[str, Any], refused: int = 0) -> str:
        rejected = refused + sum(each["rows"] for each in document["rejected"].values())
        wanted = document["read"] - document.get("skipped", 0)
        if rejected <= (wanted * self.number / 100 if self.percent else self.number):
            return ""
        return f"{rejected} of {wanted} rows were rejected, more than {self.text} (--most-rejects)"


class Load:
    """One run of the application: its folder in the lake, its document and its totals in the ledger.

    check_lock   raises DatabaseUnavailable if this run may have lost its lock, so that another load may have begun;
                 called before any change to the run's files
    """

    def __init__(
        self, spark: SparkSession, database: Database, lake: Lake, check_lock: Callable[[], None], name: str, mode: str,
        by: str,
    ) -> None:  # fmt: skip
        self.spark, self.database, self.lake, self.check_lock = spark, database, lake, check_lock
        self.name, self.mode, self.by = name, mode, by
        self.folder, self.rejects = f"load/{name}", f"load/{name}/rejects"
        self.document: dict[str, Any] = {}
        self.totals_before = self.totals_after = Totals()

    def open(self, request: dict[str, Any]) -> None:
        """Read the document of an earlier run of this name, if there is one, so that this run continues it.

        If the earlier run rejected rows and loaded nothing, the input is read again: their cause may be repaired.

        Raises LakeError if the earlier run loaded chunks from files that are not in this lake. Raises BadSettings if
        the earlier run had other arguments and has loaded chunks or is finished.
        """
        staging.clear(self.lake, self.name)
        earlier = self.lake.document(f"{self.folder}/run.json")
        self.totals_before = self.totals_after = Ledger(self.database, self.name).totals()
        stamps = self.totals_before.stamps - {earlier.get("stamp")}
        if stamps:
            raise LakeError(
                f"The run {self.name} began with files that are not in {self.lake.path(self.folder)}: "
                "use the lake that it began with, or another name."
            )
        changed = [name for name, value in request.items() if earlier and earlier["asked"].get(name) != value]
        has_begun = self.totals_before.chunks or earlier.get("finished")
        if changed and has_begun:
            raise BadSettings(
                f"The run {self.name} began with a different {', '.join(changed)}: repeat the original arguments, or "
                "give this load another name (--run)."
            )
        self.document = {} if changed or (earlier.get("rejected") and not has_begun) else earlier
        self.request = request

    def write_chunks(
        self, source: Source | None, query: str, terms: Terms, limits: Mapping[str, Any], spread_ms: int
    ) -> None:
        """Read and validate the input, write the chunks and rejects, then publish the document."""
        if self.folder in self.lake.runs("load"):
            self.check_lock()
            self.lake.remove(self.folder)  # left by a run that was killed before it loaded anything
        now_ms = Ledger(self.database, self.name).now_ms()
        parsed_limits = Limits(**limits, now_ms=now_ms, last_counts=self.mode == "replace")
        rows: DataFrame | None = None
        if source is None:
            query_source.copy(self.database, query, self.lake, f"{self.folder}/asked")
            source = files.inspect(self.lake.uri(f"{self.folder}/asked"))
            rows = files.read(self.spark, source, shown="the query")
        elif source.files:
            rows = files.read(self.spark, source)
        source_name = source.root if query == "" else "The query's result"
        staged = staging.write_chunks(self.lake, self.folder, rows, terms, parsed_limits, spread_ms, source_name)
        if (expected := files.rows_of(source)) is not None:
            row_counts.compare(expected, staged["read"], source.root, "Nothing was loaded.")
        self.document = {"asked": self.request, "stamp": uuid4().hex, "began_ms": now_ms, **staged}
        self.check_lock()
        self.lake.publish(f"{self.folder}/run.json", self.document)

    def load_chunks(self) -> str:
        """Load the chunks that are not loaded yet. Return a message if some cannot be loaded, else an empty string."""
        if self.document.get("finished"):
            return ""
        run = Run(self.name, self.document["stamp"], self.mode, self.by)
        chunks = [Chunk(*each) for each in self.document["chunks"]]
        try:
            self.check_lock()
            problem = load_pending_chunks(self.spark, self.database, self.lake, run, chunks)
            self.totals_after = Ledger(self.database, self.name).totals() if not problem else self.totals_before
            if not problem and len(self.totals_after.numbers) < len(chunks):
                problem = f"Only {len(self.totals_after.numbers)} of {len(chunks)} chunks are loaded."
        except DatabaseUnavailable as error:
            problem = str(error)
        if problem:
            return (
                f"{problem} Loaded rows stay and are not loaded twice: fix the problem, then repeat the command with "
                f"--run {self.name}."
            )
        self.document["finished"] = datetime.now(UTC).isoformat()
        self.lake.publish(f"{self.folder}/run.json", self.document)
        staging.remove_chunks(self.lake, self.folder)
        return ""

    def answer(self, refused: str, seconds: float) -> dict[str, Any]:
        rejected = {reason: each["rows"] for reason, each in self.document["rejected"].items()}
        totals, loaded_rows = self.totals_after, self.totals_after.rows - self.totals_before.rows
        return {
            "run": self.name, "read": self.document["read"], "skipped": self.document.get("skipped", 0),
            "rejected": rejected,
            "rejects": self.lake.path(self.rejects) if rejected or totals.refused else "",
            "inserted": totals.inserted, "replaced": totals.replaced, "kept": totals.kept,
            "refused_live": totals.refused,
            "before": self.totals_before.rows, "seconds": round(seconds, 1),
            "rows_per_second": round(loaded_rows / seconds),
            **({"refused": refused} if refused else {}),
        }  # fmt: skip
