"""Check a cluster before a run: each executor must use the same lake, inputs, database and time zones as the driver.

The driver writes a token file into the lake. Tasks on all executors read the token, write a marker file beside it, read
the inputs, query the database server's identity and compute the offsets of the run's time zones. The results are
compared with the driver's. SQLite has no server: its file is copied to the driver's temporary files for a run
(sources/snapshot.py), so the tasks read a token there instead. With local[*], check() only checks that Java knows the
zones. Executors that join later are not checked, but the rows that they write are counted (tables/row_counts.py).
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from pyarrow import ArrowException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ...exceptions import BadTimeZone
from ..delays import zone_databases
from ..delays.zone_databases import Offsets
from ..sources.database import SERVER, Database
from ..tables.lake import WRITE_TIMEOUT, Lake, LakeError
from . import errors
from .errors import ExecutorCheckFailed
from .progress import report_progress

if TYPE_CHECKING:
    import pyarrow

FOLDER = "preflight"
HEAD_BYTES = 65_536  # bytes at the start of an input that are compared, besides its size
MAX_INPUTS = 100  # if there are more inputs, an evenly spaced selection is checked
ROWS = 1 << 16  # so many that each task gets some
ROUNDS = 5  # maximum; more than one, for executors that register or are busy while the first tasks run
TASKS_PER_CORE = 2
WAIT_SECONDS = 300.0  # for the first executor
WARNING_SECONDS = 10.0  # then a progress message says that none has registered yet
SHOWN = 5  # maximum number of hosts or problems in a message
REPORT = "host string, process int, wrote string, problems string"
UNREADABLE = (OSError, ArrowException, LakeError)

ADVICE = {
    "lake": "Mount the same folder under the same path on every host, or use a lake that all hosts can reach.",
    "write": "Give the executors' user write permission there.",
    "input": "Put the inputs where every host sees the same files under the same path.",
    "zone": "Install the same version of the time zone database on every host: the system's tzdata or Python's package "
    "tzdata, and for Java the same version of Java.",
    "python": "See the executor's log. Install the same Python with delaytasks[pipeline] there on every host.",
    "copy": "Run the Spark server on this machine, as the same user and with the same folder for temporary files.",
    "package": "Install delaytasks[pipeline] there on every host, or set PYSPARK_PYTHON to a Python that has it.",
    "database": "Use a database address that leads to the same server from every host, and allow the hosts to connect.",
}


Input = tuple[str, str]  # (root: argument of lake.Lake, path for pyarrow)
Problem = tuple[str, str]  # (key of ADVICE, predicate whose subject is the executor, such as "cannot write to …")


@dataclass(frozen=True)
class Probe:
    """The checks that run on an executor, with the results that the driver expects.

    root     argument of lake.Lake
    folder   folder of the token and the markers, relative to the lake's root
    token    expected contents of the token file
    inputs   input files, each with its fingerprint() on the driver
    server   expected result of _server(); None for SQLite
    copy     for SQLite: path of a temporary file of the driver that contains the token; otherwise ""
    zones    (name, expected offsets) of each time zone that executors use
    modules  names of modules that the executors import
    """

    root: str
    folder: str
    token: bytes
    inputs: tuple[tuple[Input, tuple[int, str]], ...]
    database: Database
    server: tuple[str, ...] | None
    copy: str = ""
    zones: tuple[tuple[str, Offsets], ...] = ()
    modules: tuple[str, ...] = ()

    def report(self, java_offsets: Mapping[str, Sequence[int]] | None = None) -> dict[str, Any]:
        """Run the checks and return their results, as a row with the columns REPORT.

        java_offsets   zone -> the offsets that the executor's Java computed

        `process` is the id of the parent process: it identifies the executor, because all Python processes of an
        executor have the same parent.
        """
        marker = f"{self.folder}/{uuid4().hex}"
        problems = [*self._check_lake(marker), *self._check_inputs(), *self._check_modules(), *self._check_database(),
                    *self._check_copy(), *self._check_zones(java_offsets or {})]  # fmt: skip
        return {
            "host": socket.gethostname(), "process": os.getppid(), "wrote": marker, "problems": json.dumps(problems),
        }  # fmt: skip

    def _check_lake(self, marker: str) -> Iterator[Problem]:
        try:
            lake = Lake(self.root)
            with lake.files.open_input_stream(lake.path(f"{self.folder}/token")) as stream:
                seen = bytes(stream.read())
        except UNREADABLE as error:
            yield "lake", f"does not see the lake {self.root} ({_first_line(error)})"
            return
        if seen != self.token:
            yield "lake", f"has another folder as the lake {self.root}"
            return
        try:
            with lake.files.open_output_stream(lake.path(marker)) as out:
                out.write(self.token)
        except UNREADABLE as error:
            yield "write", f"cannot write to the lake {self.root} ({_first_line(error)})"

    def _check_inputs(self) -> Iterator[Problem]:
        for (root, path), expected in self.inputs:
            try:
                found = fingerprint(root, path)
            except UNREADABLE as error:
                yield "input", f"does not see {path} ({_first_line(error)})"
                return
            if found != expected:
                sizes = f"{found[0]} bytes instead of {expected[0]}"
                difference = "other contents" if found[0] == expected[0] else sizes
                yield "input", f"has another {path} ({difference})"
                return

    def _check_modules(self) -> Iterator[Problem]:
        for name in self.modules:
            if importlib.util.find_spec(name) is None:
                yield "package", f"lacks the Python package {name}"

    def _check_database(self) -> Iterator[Problem]:
        if self.server is None:
            return
        try:
            found = _server(self.database)
        except Exception as error:  # the class depends on the driver, and after any exception the run would fail, too
            yield "database", f"does not reach the database {self.database} ({_first_line(error)})"
            return
        if found != self.server:
            yield "database", f"reaches another server as {self.database}"

    def _check_copy(self) -> Iterator[Problem]:
        if not self.copy:
            return
        try:
            readable = Path(self.copy).read_bytes() == self.token
        except OSError:
            readable = False
        if not readable:
            yield "copy", f"cannot read the temporary files of this process in {Path(self.copy).parents[1]}"

    def _check_zones(self, java_offsets: Mapping[str, Sequence[int]]) -> Iterator[Problem]:
        for zone, expected in self.zones:
            try:
                offsets = [zone_databases.offset_at(zone, instant) for instant, _ in expected]
            except BadTimeZone:
                yield "zone", f"has no time zone {zone} in Python"
                return
            for program, found in (("Python", offsets), ("Java", java_offsets.get(zone))):
                if found and (difference := zone_databases.difference(expected, found)):
                    yield "zone", f"computes {zone} differently in {program}: {difference}"
                    return


def check(
    spark: SparkSession, database: Database, lake: Lake, inputs: Sequence[Input] = (),
    zones: Mapping[str, bool] | None = None, modules: Iterable[str] = (),
) -> None:  # fmt: skip
    """Check that every executor sees the same lake, inputs, database and time zones as this process.

    zones     zone used by Python on the executors -> whether Java also uses it
    modules   names of Python modules that the executors need for PostgreSQL

    Raises ExecutorCheckFailed; DatabaseUnavailable if this process does not reach the database; and BadSettings,
    also with local[*], if Java does not know a zone that it uses.
    """
    zone_databases.check_java(spark, [name for name, of_java in (zones or {}).items() if of_java])
    if not is_needed(spark):
        return
    began, folder, token = time.monotonic(), lake.new_run(FOLDER), uuid4().hex.encode()
    chosen = inputs[:: max(1, -(-len(inputs) // MAX_INPUTS))]
    fingerprints = tuple((each, fingerprint(*each)) for each in chosen)
    expected_offsets = tuple((name, zone_databases.offsets(name)) for name in zones or {})
    of_java = [each for each in expected_offsets if (zones or {})[each[0]]]
    with _temporary_token(database, token) as copy:
        probe = Probe(
            lake.root, folder, token, fingerprints, database, database.server(), copy, expected_offsets,
            tuple(modules) if database.vendor == "postgresql" else (),
        )  # fmt: skip
        lake.write(f"{folder}/token", token)
        try:
            reports = _run_on_executors(spark, probe, of_java)
            problems = [each for report in reports for each in _problems(lake, report)]
        finally:
            _clear(lake, folder)
    executors = {(row.host, row.process) for row in reports}
    if problems:
        raise ExecutorCheckFailed(_sentence(problems, len(executors)))
    hosts = ", ".join(sorted({host for host, _ in executors})[:SHOWN])
    report_progress(f"{len(executors)} executors ({hosts}) passed the checks: {time.monotonic() - began:.1f} s")


def is_needed(spark: Any) -> bool:
    """Return whether executors may be on other machines. Always True with Spark Connect."""
    return not (isinstance(spark, SparkSession) and (spark.conf.get("spark.master") or "").startswith("local"))


def fingerprint(root: str, path: str) -> tuple[int, str]:
    """Return (size in bytes, digest of the first HEAD_BYTES) of a file. root: argument of lake.Lake."""
    with Lake(root).files.open_input_file(path) as file:
        return int(file.size()), hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()


@contextlib.contextmanager
def _temporary_token(database: Database, token: bytes) -> Iterator[str]:
    """For SQLite, write the token to a temporary file. Yield its path; for PostgreSQL "".

    The file has the folder and the permissions of the copy that a run makes of the database.
    """
    if database.vendor != "sqlite":
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="delaytasks-preflight-") as folder:
        path = Path(folder) / "token"
        path.write_bytes(token)
        yield str(path)


def _server(database: Database) -> tuple[str, ...]:
    """Return the identity of the database server, queried through the ADBC driver that the readers use."""
    dbapi = importlib.import_module(f"adbc_driver_{database.vendor}.dbapi")
    with dbapi.connect(database.uri) as connection, connection.cursor() as cursor:
        cursor.execute(SERVER)
        return tuple(cursor.fetchone())


def _run_on_executors(spark: SparkSession, probe: Probe, of_java: Sequence[tuple[str, Offsets]]) -> list[Any]:
    """Return the reports of the executors. Raises ExecutorCheckFailed if Python does not run the probe on some of them.

    A task that fails on an executor is repeated on others. So it may have succeeded, although this executor cannot run
    Python. Raises ExecutorCheckFailed also if no executor registers within WAIT_SECONDS, or one runs no task.
    """
    before = _executors(spark)

    def failing() -> str:
        return _names(each for each in _executors(spark) if each.failed > _with_id(before, each.id).failed)

    try:
        with _cancel_without_executors(spark) as cancelled:
            reports, silent = _reports(spark, probe, of_java)
    except Exception as error:
        if cancelled.is_set():
            raise ExecutorCheckFailed(
                f"No executor has registered in {WAIT_SECONDS:g} s: the cluster has no free cores or memory, or "
                "executors cannot connect to this host (set spark.driver.host). Another application, such as `serve`, "
                "may use all cores: limit it by --conf spark.cores.max."
            ) from error
        if failed := failing():
            raise ExecutorCheckFailed(f"Python fails on {failed}: {errors.summary(error)[1]}") from error
        raise
    if failed := failing():
        raise ExecutorCheckFailed(f"Python fails on {failed}. {ADVICE['python']}")
    if silent:
        raise ExecutorCheckFailed(
            f"{_names(silent)} took none of the check's tasks. Another job may use all of its cores: run this again."
        )
    return reports


class Executor(NamedTuple):
    """failed, completed   number of tasks of this application"""

    id: str
    host: str = ""
    cores: int = 0
    failed: int = 0
    completed: int = 0


def _executors(spark: Any) -> list[Executor]:
    """Return the registered executors; [] with Spark Connect, where they are unknown, and if Spark has stopped."""
    if not isinstance(spark, SparkSession):
        return []
    try:
        context = spark.sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty()  # Spark counts tasks a little later
        found = context.statusStore().executorList(True)
        return [
            Executor(each.id(), each.hostPort().rpartition(":")[0], each.totalCores(), each.failedTasks(),
                     each.completedTasks())
            for each in map(found.apply, range(found.size()))
            if each.id() != "driver"
        ]  # fmt: skip
    except Exception:  # of Java
        return []


def _with_id(executors: Iterable[Executor], name: str) -> Executor:
    return next((each for each in executors if each.id == name), Executor(name))


def _names(executors: Iterable[Executor]) -> str:
    return ", ".join(sorted(f"{each.host} (executor {each.id})" for each in executors)[:SHOWN])


@contextlib.contextmanager
def _cancel_without_executors(spark: Any) -> Iterator[threading.Event]:
    """Cancel the jobs of the block if no executor registers within WAIT_SECONDS, and set the event. Spark would wait.

    Executors may be requested only when there is a job, so that they cannot be waited for before it. With Spark Connect
    the server has the executors, and nothing is cancelled.
    """
    cancelled, done = threading.Event(), threading.Event()

    def watch() -> None:
        for seconds in (WARNING_SECONDS, WAIT_SECONDS - WARNING_SECONDS):
            if done.wait(seconds) or _executors(spark):
                return
            report_progress("no executor has registered yet")
        cancelled.set()
        while True:  # again and again: the job may not have been submitted yet
            spark.sparkContext.cancelAllJobs()
            if done.wait(WARNING_SECONDS):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    if isinstance(spark, SparkSession):
        watcher.start()
    try:
        yield cancelled
    finally:
        done.set()


def _reports(
    spark: SparkSession, probe: Probe, of_java: Sequence[tuple[str, Offsets]]
) -> tuple[list[Any], list[Executor]]:
    """Run the probe up to ROUNDS times, until each executor has run it that was registered when a round began.

    Return the reports, and the executors that have run none. With Spark Connect, where the executors are unknown, the
    last round is the one in which no other executor has reported.

    of_java   zones whose offsets Java computes as well, once in each partition
    """
    found: list[Any] = []
    begun: dict[str, int] = {}  # executor -> tasks completed before it was first asked
    silent: list[Executor] = []
    for _ in range(ROUNDS):
        asked, heard = _executors(spark), {(row.host, row.process) for row in found}
        for each in asked:
            begun.setdefault(each.id, each.completed)
        # With fewer tasks than cores, an executor could get none.
        tasks = TASKS_PER_CORE * max(2, sum(each.cores for each in asked)) if isinstance(spark, SparkSession) else None
        rows = spark.range(0, ROWS, 1, tasks)
        if of_java:
            first = F.monotonically_increasing_id() % (1 << 33) == 0
            rows = rows.select(F.when(first, zone_databases.java_offsets(of_java, F.col("id"))).alias("offsets"))
        found += rows.mapInArrow(partial(_run_probe, probe), REPORT).collect()
        now = _executors(spark)
        silent = [each for each in now if each.completed <= begun.get(each.id, 0)]
        if not silent and (now or heard == {(row.host, row.process) for row in found}):
            break
    return found, [each for each in silent if each.id in begun]


def _run_probe(probe: Probe, batches: Iterator["pyarrow.RecordBatch"]) -> Iterator["pyarrow.RecordBatch"]:
    import pyarrow

    computed = None
    for batch in batches:
        column = batch.column(0)
        if computed is None and pyarrow.types.is_map(column.type) and len(column):
            computed = column[0].as_py()
    schema = pyarrow.schema([("host", "string"), ("process", "int32"), ("wrote", "string"), ("problems", "string")])
    yield pyarrow.RecordBatch.from_pylist([probe.report(dict(computed or []))], schema=schema)


def _problems(lake: Lake, report: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (executor, kind, problem) for each problem in a report.

    A missing marker is a problem, too: the executor wrote it to another place than the lake that the driver sees.
    """
    executor, problems = f"{report.host} (process {report.process})", json.loads(report.problems)
    if not any(kind in ("lake", "write") for kind, _ in problems) and not lake.has(report.wrote):
        problems.append(("lake", f"writes to another place than the lake {lake.root} that this process sees"))
    for kind, problem in problems:
        yield executor, kind, problem


def _sentence(problems: Iterable[tuple[str, str, str]], executors: int) -> str:
    unique = list(dict.fromkeys(problems))
    failed = {executor for executor, _, _ in unique}
    named = "; ".join(f"{executor} {problem}" for executor, _, problem in unique[:SHOWN])
    more = f"; and {len(unique) - SHOWN} more" if len(unique) > SHOWN else ""
    advice = " ".join(dict.fromkeys(ADVICE[kind] for _, kind, _ in unique))
    return f"{len(failed)} of {executors} executors cannot take part: {named}{more}. {advice}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _clear(lake: Lake, folder: str) -> None:
    """Remove this run's folder, and folders older than WRITE_TIMEOUT, which killed runs left."""
    oldest = f"{FOLDER}/{datetime.now(UTC) - WRITE_TIMEOUT:%Y%m%dT%H%M%S}"
    for each in lake.runs(FOLDER):
        if each == folder:
            lake.remove(each)
        elif each < oldest:
            with contextlib.suppress(OSError):  # another run is removing it
                lake.remove(each)
