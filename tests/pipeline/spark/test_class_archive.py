"""The archive of Spark's classes, which lets Java start faster."""

import os
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from delaytasks.pipeline.spark import class_archive, session
from tests.support import spark_classes
from tests.support.forks import succeeds_in_fork

SITE = "-Dsite=1"
# Writes Java's own classes if it is told to, and the archive for which JDK_JAVA_OPTIONS ask. Cannot run Spark.
FAKE_JAVA = r"""#!/bin/sh
echo "openjdk version \"17.0.1\", options: $JDK_JAVA_OPTIONS." >&2
for word do
  case "$word" in -XX:SharedArchiveFile=*/base) : > "${word#*=}" ;; esac
done
at_exit=$(echo "$JDK_JAVA_OPTIONS" | sed -n 's/.*ArchiveClassesAtExit=\([^"]*\)".*/\1/p')
[ -z "$at_exit" ] || : > "$at_exit"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment's folder for the archive, still empty, and options of the site for Java."""
    monkeypatch.setattr(class_archive, "FOLDER", tmp_path)
    monkeypatch.setenv(class_archive.VARIABLE, SITE)
    return tmp_path


def test_sparks_java_uses_the_archive_that_was_made(spark: Any) -> None:
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert f"{spark_classes.FOLDER}/spark.jsa" in Path(f"/proc/{java}/maps").read_text()


def test_a_run_without_an_archive_starts_java_as_before(folder: Path) -> None:
    assert class_archive.VARIABLE not in session.environment("local[*]")
    assert not session.spark_options("spark://host:7077", {})


def test_executors_of_a_cluster_use_the_archive_unless_the_site_says_otherwise(folder: Path) -> None:
    (folder / "spark.jsa").touch()
    name = f"spark.executorEnv.{class_archive.VARIABLE}"

    assert session.spark_options("spark://host:7077", {}) == {name: class_archive.options()}
    assert session.spark_options("spark://host:7077", {name: SITE}) == {name: SITE}
    assert session.spark_options("sc://localhost:15002", {}) == {}
    assert name not in session.spark_options("local[2]", {})


def test_a_java_that_writes_no_archive_is_an_error_and_the_former_archive_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    (folder / "spark.jsa").write_text("before")
    monkeypatch.setenv("JAVA_HOME", str(folder))

    with pytest.raises(CommandError, match=r"Java wrote no archive .*\s.*17\.0\.1") as refused:
        call_command("delaytasks", "pipeline", "prepare-java")
    assert refused.value.returncode == 3
    assert sorted(os.listdir(folder)) == ["bin", "spark.jsa"]
    assert (folder / "spark.jsa").read_text() == "before"


@pytest.fixture
def fake_java(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JAVA_HOME with FAKE_JAVA."""
    java = folder / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(FAKE_JAVA)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder / "home"))
    return java


def test_a_run_adds_the_archive_to_the_sites_options_once(
    fake_java: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spark.jsa").touch()
    chosen = session.environment("local[*]")[class_archive.VARIABLE]
    assert chosen == f'-Xlog:disable "-XX:SharedArchiveFile={folder}/java.jsa:{folder}/spark.jsa" {SITE}'

    monkeypatch.setenv(class_archive.VARIABLE, chosen)  # a second session of this process
    assert class_archive.VARIABLE not in session.environment("local[*]")


def test_an_archive_of_the_process_that_starts_sparks_java_is_not_taken_for_sparks(
    fake_java: Path, folder: Path
) -> None:
    with pytest.raises(OSError, match="Java wrote no archive"):
        class_archive.make(folder)
    assert not class_archive.options()


def test_the_archive_can_be_made_in_any_current_folder(
    fake_java: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(OSError, match="Java gateway process exited"):
        class_archive.make(folder)


def test_the_archive_is_made_without_the_sites_options(fake_java: Path, folder: Path) -> None:
    fake_java.write_text(FAKE_JAVA.replace("/base)", "/none)"))
    with pytest.raises(OSError, match=r"17\.0\.1\", options: \."):
        class_archive.make(folder)


def test_an_archive_that_this_user_may_not_read_is_not_used(folder: Path) -> None:
    (folder / "spark.jsa").touch()
    folder.chmod(0)

    def uses_none() -> bool:
        os.setuid(os.getuid() or 65534)  # root may read everything
        return class_archive.options() == ""

    assert succeeds_in_fork(uses_none)
    folder.chmod(0o700)


def test_an_error_shows_what_java_wrote_last_after_a_long_log(fake_java: Path, folder: Path) -> None:
    fake_java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"'\nprintf '%03000d\\n' 0 >&2\necho the reason\n")
    with pytest.raises(OSError, match=r"0\nthe reason\n$"):
        class_archive.make(folder)


def test_what_a_killed_command_left_is_removed(fake_java: Path, folder: Path) -> None:
    (folder / "new-killed").mkdir()
    (folder / "new-killed" / "base").touch()
    with pytest.raises(OSError, match="Java wrote no archive"):
        class_archive.make(folder)
    assert not [*folder.glob("new-*")]
