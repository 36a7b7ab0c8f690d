"""python -m delaytasks.pipeline APPLICATION: run one application in its own process, outside web and Celery processes.

The settings are read from an environment variable (config.py). The last line of stdout is a JSON object: the
application's answer, or {"error": the exception's class, "message": ...}. After an unexpected exception there is no
such line, but a traceback on stderr. For the exit codes see exit_codes.py.
"""

import importlib
import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from typing import Any

from pyarrow import ArrowInvalid

from delaytasks.pipeline.config import VARIABLE, BadSettings, Settings, from_environment
from delaytasks.pipeline.exit_codes import ExitCode
from delaytasks.pipeline.sources.database import Busy, DatabaseUnavailable, NotAllowed

# Absolute imports, because spark-submit runs this file by its path.
from delaytasks.pipeline.spark import errors, full_disk
from delaytasks.pipeline.spark.connect import ServerUnavailable
from delaytasks.pipeline.spark.errors import ExecutorCheckFailed
from delaytasks.pipeline.spark.full_disk import DiskFull
from delaytasks.pipeline.spark.java import JavaMissing
from delaytasks.pipeline.spark.preflight import check
from delaytasks.pipeline.tables.checksums import Differs
from delaytasks.pipeline.tables.lake import Lake, LakeError
from delaytasks.pipeline.tables.row_counts import RowsLost

APPLICATIONS = ("report", "archive", "audit", "load", "stream", "serve")
EXPECTED = (
    Busy, DatabaseUnavailable, Differs, DiskFull, ExecutorCheckFailed, JavaMissing, LakeError, NotAllowed, RowsLost,
    ServerUnavailable,
)  # fmt: skip


def main(arguments: list[str], environment: Any = os.environ) -> int:
    try:
        if arguments not in [[name] for name in APPLICATIONS]:
            raise BadSettings(f"Name one application: {', '.join(APPLICATIONS)}.")
        answer = run_application(arguments[0], from_environment(environment))
    except BadSettings as error:
        return _print_answer(ExitCode.BAD_INPUT, _failure(error))
    except EXPECTED as error:
        return _print_answer(ExitCode.COULD_NOT_RUN, _failure(error))
    except (OSError, ArrowInvalid) as error:
        answer = {"error": type(error).__name__, "message": errors.file_error_message(error)}
        return _print_answer(ExitCode.COULD_NOT_RUN, answer)
    except Exception as error:  # for Spark's errors, print the message without the Java stack trace
        if not (type(error).__module__.startswith(("pyspark", "py4j")) or errors.lost_connection_reason(str(error))):
            raise
        if sentence := errors.bad_option(error):
            return _print_answer(ExitCode.BAD_INPUT, {"error": BadSettings.__name__, "message": sentence})
        name, sentence = errors.summary(error)
        return _print_answer(ExitCode.COULD_NOT_RUN, {"error": name, "message": sentence})
    return _print_answer(answer.get("exit_code", ExitCode.FAULTS if answer.get("refused") else ExitCode.DONE), answer)


def run_application(name: str, settings: Settings) -> dict[str, Any]:
    """Run an application and return its answer.

    If the run found faults or left something undone, the answer's `refused` is a sentence that says what.

    The executors are checked before the run. After RowsLost or Differs they are checked again, because an executor
    that cannot reach the lake may have joined during the run. If so, ExecutorCheckFailed is raised instead.
    """
    from delaytasks.pipeline.spark import session

    module, lake = importlib.import_module(f"delaytasks.pipeline.applications.{name}"), Lake(settings.lake)
    try:
        inspect.signature(module.run).bind(None, settings.database, lake, **settings.arguments)
    except TypeError as error:
        raise BadSettings(f"{VARIABLE} has wrong arguments for {name}: {error}.") from error
    with (
        full_disk.translate_errors(lake, settings.spark),
        session.session(f"delaytasks {name}", master=settings.master, options=settings.spark) as spark,
    ):
        inputs = module.inputs(**settings.arguments) if hasattr(module, "inputs") else []
        zones = module.zones(**settings.arguments) if hasattr(module, "zones") else {}
        modules = getattr(module, "EXECUTOR_MODULES", ())
        ask_executors = partial(check, spark, settings.database, lake, inputs, zones, modules)
        ask_executors()
        session.set_sizes(spark, getattr(module, "SPARK_OPTIONS", {}))
        try:
            answer: dict[str, Any] = module.run(spark, settings.database, lake, **settings.arguments)
        except (RowsLost, Differs) as lost:
            try:
                ask_executors()
            except ExecutorCheckFailed as failed:
                raise ExecutorCheckFailed(f"{lost} {failed}") from lost
            raise
    return answer


def _failure(error: Exception) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)}


def exit_code(arguments: list[str]) -> int:
    """Return main()'s exit code, or COULD_NOT_RUN after an unexpected exception.

    Without this, Python would exit with code 1 after an exception, which would mean FAULTS. SIGTERM raises SystemExit
    with COULD_NOT_RUN, so that temporary files, such as the copy of an SQLite database, are removed.
    """

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the removal
        sys.exit(ExitCode.COULD_NOT_RUN)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        return main(arguments)
    except Exception:
        traceback.print_exc()
        return ExitCode.COULD_NOT_RUN
    finally:
        signal.signal(signal.SIGTERM, previous)


def _print_answer(code: int, answer: Mapping[str, Any]) -> int:
    print(json.dumps(answer), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(exit_code(sys.argv[1:]))
