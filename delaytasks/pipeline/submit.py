"""A run by Spark's own spark-submit, with this package along: what a site's cluster expects, and its defaults apply."""

import os
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from . import package, session
from .settings import BadSettings, Settings

DEPLOY_MODE = "spark.submit.deployMode"


def command(question: str, settings: Settings, folder: Path) -> list[str]:
    """The command line. It names no setting but the master: options are in a file of the folder, for us alone to read.

    Raises BadSettings for what spark-submit could not do from here.
    """
    if settings.master.startswith("sc://"):
        raise BadSettings(f"{settings.master} is a server that has a Spark already: ask it without --submit.")
    if settings.spark.get(DEPLOY_MODE) == "cluster":
        raise BadSettings(
            f"With {DEPLOY_MODE}=cluster the driver runs where this environment is not, and answers to nobody here. "
            "docs/pipeline.md says, under 'Where it runs', what such a run needs."
        )
    options = folder / "options.properties"
    with os.fdopen(os.open(options, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        for name, value in session.chosen(settings.master, settings.spark).items():
            file.write(f"{_escaped(name)}={_escaped(value)}\n")
    return [
        f"{_find_spark_home()}/bin/spark-submit", "--master", settings.master, "--name", f"delaytasks {question}",
        "--load-spark-defaults", "--properties-file", str(options), "--py-files", str(package.zipped(folder)),
        str(package.ROOT / "pipeline" / "run.py"), question,
    ]  # fmt: skip


def environment(settings: Settings) -> dict[str, str]:
    """What spark-submit itself needs; the run's settings are not in it. Raises JavaMissing."""
    found = session.environment(settings.master)
    del found["PYTHONPATH"]  # it brings the package to its Python by itself
    return found


def _escaped(text: str) -> str:
    """As a Java properties file has it."""
    plain = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    escaped = "".join(f"\\{each}" if each in "=:#! " else each for each in plain)
    return "".join(each if " " <= each <= "~" else f"\\u{ord(each):04x}" for each in escaped)
