"""Start a run with spark-submit, which applies the site's Spark defaults and sends this package to the executors."""

import os
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from ..config import BadSettings, Settings, without_parameters
from . import package, session

DEPLOY_MODE = "spark.submit.deployMode"


def command(application: str, settings: Settings, folder: Path) -> list[str]:
    """Write the files for spark-submit into the folder. Return the command line.

    Spark's options are in a file that only this user can read, not on the command line, which is visible to all users.
    Raises BadSettings for a Spark Connect server and for the deploy mode "cluster".
    """
    if settings.master.startswith("sc://"):
        raise BadSettings(f"{without_parameters(settings.master)} is a Spark Connect server: leave out --submit.")
    if settings.spark.get(DEPLOY_MODE) == "cluster":
        raise BadSettings(
            f"{DEPLOY_MODE}=cluster runs the driver on another machine, without this environment and without a way to "
            "return the answer. See 'Two ways to start' in docs/howto/cluster.md."
        )
    options = folder / "options.properties"
    with os.fdopen(os.open(options, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        for name, value in session.spark_options(settings.master, settings.spark).items():
            file.write(f"{_escaped(name)}={_escaped(value)}\n")
    program = f"{_find_spark_home()}/bin/spark-submit"
    if not os.path.exists(program):
        raise BadSettings(f"There is no {program}: set SPARK_HOME to Spark's folder, or unset it to use pyspark's.")
    return [
        program, "--master", settings.master, "--deploy-mode", "client", "--name", f"delaytasks {application}",
        "--load-spark-defaults", "--properties-file", str(options), "--py-files", str(package.zipped(folder)),
        str(package.ROOT / "pipeline" / "__main__.py"), application,
    ]  # fmt: skip


def environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables of spark-submit itself, without the run's settings. Raises JavaMissing."""
    variables = session.environment(settings.master)
    del variables["PYTHONPATH"]  # spark-submit itself adds the package to the path of its Python processes
    return variables


def _escaped(text: str) -> str:
    """Escape a name or value for a Java properties file."""
    plain = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    escaped = "".join(f"\\{each}" if each in "=:#! " else each for each in plain)
    return "".join(each if " " <= each <= "~" else f"\\u{ord(each):04x}" for each in escaped)
