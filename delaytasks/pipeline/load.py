"""Many promises at once, from a file, a folder or a query: judged by schedule()'s rules, then put into the job table.

    load/<run>/staged/     what is good, each topic and key once, as chunks; removed when the run is finished
    load/<run>/rejects/    what is not, with its reason; JSON lines
    load/<run>/run.json    what was asked, what was found, which chunks there are: published when they are on the disk

Nothing is put into the table before the chunks are published, and each is put there in one transaction with its row
of the ledger. So a run that is killed anywhere goes on when it is run again with its name, and doubles nothing.
"""

import math
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from . import intake, querying, staging
from .database import Database, DatabaseAway
from .intake import Source
from .lake import Lake, LakeError
from .ledger import Ledger, Totals, put_chunks
from .mapping import Terms
from .placing import MODES
from .progress import say
from .screening import Limits
from .settings import BadSettings
from .stages import Chunk, Run

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MOST_REJECTS = "5%"


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
    """{"run", "read", "rejected", "rejects", "inserted", "replaced", "kept", "refused_live", "before", "seconds",
    "rows_per_second"}, and "refused", a sentence, if something was.

    source, query   a path or URI; or SQL for the jobs' own database. One of them
    mapping         see mapping.Terms
    limits          topics, max_delay_seconds, max_body_bytes, zone: see screening.Limits
    name            of the run: the same again goes on where it stopped. "": a new one
    reading         kind, encoding, delimiter, where they cannot be told by the file's name
    spread_seconds  each job due later by some part of that, by its key
    on_conflict     see placing
    most_rejects    a number of rows or a share ("5%"): with more rejects nothing is loaded
    by              who asks, for an event of each job
    """
    began = time.monotonic()
    name = _named(name, lake)
    asked = {
        "source": source, "query": query, "mapping": dict(mapping), "zone": limits.get("zone", ""),
        "spread_seconds": spread_seconds, "on_conflict": _checked_mode(on_conflict), "by": by,
        "reading": dict(reading or {}),
    }  # fmt: skip
    terms, share = Terms.told(mapping), Share(most_rejects)
    if bool(source) == bool(query):
        raise BadSettings("Say what to load: a file or folder, or --query SQL.")
    found = intake.look(source, **(reading or {})) if source else None
    with database.alone("load") as still:
        load = Load(spark, database, lake, still, name, on_conflict, by)
        say(f"run {name}")
        asked["files"] = [list(each) for each in found.identity] if found else []
        load.begin(asked)
        if not load.document:
            load.stage(found, query, terms, limits, round(spread_seconds * 1000))
        # What has begun to be loaded goes on: it was within the limit then.
        refused = "" if load.before.chunks else share.refusal(load.document, lake.path(load.rejects))
        refused = refused or load.put()
        return load.answer(refused, time.monotonic() - began)


def _named(name: str, lake: Lake) -> str:
    name = name or lake.new_run("load").split("/")[1]
    if not NAME.fullmatch(name):
        raise BadSettings(f"{name!r} is no name of a run: use up to 64 of A-Z a-z 0-9 . _ -.")
    return name


def _checked_mode(mode: str) -> str:
    if mode not in MODES:
        raise BadSettings(f"on_conflict is {mode!r}; it is {', '.join(MODES)}.")
    return mode


class Share:
    """How many rejects are too many."""

    def __init__(self, text: str) -> None:
        number, percent, _ = text.partition("%")
        try:
            self.number, self.percent = float(number), bool(percent)
        except ValueError:
            self.number = -1
        if not 0 <= self.number < math.inf or not (text == f"{number}%" or number.isdecimal()):
            raise BadSettings(f"--most-rejects is {text!r}: give a number of rows, or a share such as 5%.")
        self.text = text

    def refusal(self, document: Mapping[str, Any], path: str) -> str:
        """A sentence, or ""."""
        rejected = sum(each["rows"] for each in document["rejected"].values())
        fatal = [each["first"] for reason, each in document["rejected"].items() if reason in staging.FATAL]
        if fatal:
            return f"Nothing was loaded: {fatal[0]} What follows there cannot be told."
        if rejected <= (document["read"] * self.number / 100 if self.percent else self.number):
            return ""
        worst = max(document["rejected"].values(), key=lambda each: int(each["rows"]))
        return (
            f"Nothing was loaded: {rejected} of {document['read']} rows were rejected, more than {self.text} "
            f"(--most-rejects). {worst['rows']} of them as the first: {worst['first']} All are in {path}."
        )


class Load:
    """A run: its folder, its document, and where it stands by the ledger.

    still   raises DatabaseAway where another load may have begun meanwhile; asked before what would take its files away
    """

    def __init__(
        self, spark: SparkSession, database: Database, lake: Lake, still: Callable[[], None], name: str, mode: str,
        by: str,
    ) -> None:  # fmt: skip
        self.spark, self.database, self.lake, self.still = spark, database, lake, still
        self.name, self.mode, self.by = name, mode, by
        self.folder, self.rejects = f"load/{name}", f"load/{name}/rejects"
        self.document: dict[str, Any] = {}
        self.before = self.after = Totals()

    def begin(self, asked: dict[str, Any]) -> None:
        """Read what there is of a run of this name. Raises LakeError: it is of something else."""
        staging.clear(self.lake, self.name)
        found = self.lake.document(f"{self.folder}/run.json")
        self.before = self.after = Ledger(self.database, self.name).totals()
        stamps = self.before.stamps - {found.get("stamp")}
        if stamps:
            raise LakeError(
                f"The run {self.name} has begun with files that are not in {self.lake.path(self.folder)}: "
                "name the lake that it began with, or another run."
            )
        others = [what for what, value in asked.items() if found and found["asked"].get(what) != value]
        if others and (self.before.chunks or found.get("finished")):
            raise LakeError(
                f"The run {self.name} has begun with another {', '.join(others)}: say the same again, or give this "
                "load another name (--run)."
            )
        self.document = {} if others else found
        self.asked = asked

    def stage(self, source: Source | None, query: str, terms: Terms, limits: Mapping[str, Any], spread_ms: int) -> None:
        """Write the chunks and the rejects, and publish which there are."""
        if self.folder in self.lake.runs("load"):
            self.still()
            self.lake.remove(self.folder)  # of a run that was killed before it put anything anywhere
        now_ms = Ledger(self.database, self.name).now_ms()
        about = Limits(**limits, now_ms=now_ms, last_counts=self.mode == "replace")
        rows: DataFrame | None = None
        if source is None:
            querying.copy(self.database, query, self.lake, f"{self.folder}/asked")
            source = intake.look(self.lake.uri(f"{self.folder}/asked"))
            rows = intake.read(self.spark, source, named="the query")
        elif source.files:
            rows = intake.read(self.spark, source)
        shown = source.root if query == "" else "The query's answer"
        found = staging.stage(self.lake, self.folder, rows, terms, about, spread_ms, shown)
        self.document = {"asked": self.asked, "stamp": uuid4().hex, "began_ms": now_ms, **found}
        self.still()
        self.lake.publish(f"{self.folder}/run.json", self.document)

    def put(self) -> str:
        """Put the chunks into the table that are not there yet; a sentence if that did not come to its end."""
        if self.document.get("finished"):
            return ""
        run = Run(self.name, self.document["stamp"], self.mode, self.by)
        chunks = [Chunk(*each) for each in self.document["chunks"]]
        try:
            self.still()
            told = put_chunks(self.spark, self.database, self.lake, run, chunks)
            self.after = Ledger(self.database, self.name).totals() if not told else self.before
        except DatabaseAway as error:
            told = str(error)
        if told:
            return (
                f"{told} What is loaded stays, and is not loaded twice: when that is mended, say the same again with "
                f"--run {self.name}."
            )
        self.document["finished"] = datetime.now(UTC).isoformat()
        self.lake.publish(f"{self.folder}/run.json", self.document)
        staging.forget_chunks(self.lake, self.folder)
        return ""

    def answer(self, refused: str, seconds: float) -> dict[str, Any]:
        rejected = {reason: each["rows"] for reason, each in self.document["rejected"].items()}
        totals, done = self.after, self.after.rows - self.before.rows
        return {
            "run": self.name, "read": self.document["read"], "rejected": rejected,
            "rejects": self.lake.path(self.rejects) if rejected or totals.refused else "",
            "inserted": totals.inserted, "replaced": totals.replaced, "kept": totals.kept,
            "refused_live": totals.refused,
            "before": self.before.rows, "seconds": round(seconds, 1), "rows_per_second": round(done / seconds),
            **({"refused": refused} if refused else {}),
        }  # fmt: skip
