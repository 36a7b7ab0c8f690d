"""The session of every run."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.session import SparkSession as ConnectSession

from delaytasks.pipeline.applications import audit
from delaytasks.pipeline.spark import java, python, session


def test_sparks_warehouse_folder_is_not_in_the_working_directory(spark: Any) -> None:
    spark.sql("SHOW DATABASES").collect()  # as whatever looks up a name does
    warehouse = Path(urlsplit(spark.conf.get("spark.sql.warehouse.dir")).path)

    assert warehouse.is_dir()
    assert Path(tempfile.gettempdir()) in warehouse.parents


def test_a_session_has_two_partitions_for_each_core_the_applications_options_and_what_the_site_has_set() -> None:
    (fallback,) = session.SIZES.keys() - {session.PARTITIONS}
    advisory = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
    options = {}
    sites: list[tuple[int, dict[str, str]]] = [
        (2, {}),
        (20, {}),
        (20, {session.PARTITIONS: "7", advisory: "8m"}),
        (0, {}),
    ]
    for cores, site in sites:  # without cores: a session of Spark Connect
        spark = Mock(spec=SparkSession if cores else ConnectSession)
        if cores:
            spark.sparkContext.defaultParallelism = cores
        spark.conf.get.side_effect = site.get
        session.set_sizes(spark, audit.SPARK_OPTIONS)
        options[cores, *site] = {call.args[0]: call.args[1] for call in spark.conf.set.call_args_list}
    assert [each.get(session.PARTITIONS) for each in options.values()] == ["16", "40", "7", "16"]
    assert [each.get(advisory) for each in options.values()] == ["16m", "16m", "8m", "16m"]
    assert {each[fallback] for each in options.values()} == {session.SIZES[fallback]}


def test_sparks_python_does_not_read_pyspark_from_the_zip() -> None:
    (archive,) = Path(pyspark.__file__).parent.glob("python/lib/pyspark.zip")
    (py4j,) = archive.parent.glob("py4j-*.zip")
    paths = [str(archive), str(py4j), "/spark/jars/spark-core.jar", "/shop"]
    program = "import os, pyspark; print(pyspark.__file__); print(os.environ['PYTHONPATH'])"
    found = {}
    for command in (sys.executable, python.command()):
        done = subprocess.run([command, "-c", program], env={"PYTHONPATH": ":".join(paths)}, capture_output=True,
                              text=True, check=True)  # fmt: skip
        found[command] = done.stdout.split()
    assert found[sys.executable][0].startswith(str(archive))  # or Spark has changed and the command is not needed
    assert found[python.command()] == [pyspark.__file__, "/shop"]


def test_sparks_python_is_python_itself_where_temporary_files_may_not_be_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert python.command() == sys.executable


def test_java_gets_our_options_before_those_of_the_site(spark: Any) -> None:
    beans = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    given = list(beans.getRuntimeMXBean().getInputArguments())
    ours = java.COMPILE_LESS.split()
    assert [each for each in given if each in ours] == ours
    assert given.index(ours[-1]) < given.index("-XX:TieredStopAtLevel=1"), "of spark.driver.extraJavaOptions"


def test_our_options_are_added_once_to_those_of_the_sites_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(java.VARIABLE, "-Dsite=1 -XX:+UseG1GC")
    variables = session.environment("local[*]")
    assert variables[java.VARIABLE] == f"{java.COMPILE_LESS} -Dsite=1 -XX:+UseG1GC"

    monkeypatch.setenv(java.VARIABLE, variables[java.VARIABLE])  # a second session of this process
    assert java.VARIABLE not in session.environment("local[*]")
