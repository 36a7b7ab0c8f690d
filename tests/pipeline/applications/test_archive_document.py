"""A lost, outdated or foreign archive document is refused, and nothing is changed."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from django.db import connection

from delaytasks.models import Job
from delaytasks.pipeline.applications import archive, report
from delaytasks.pipeline.sources import identity, snapshot
from delaytasks.pipeline.sources.database import Busy, Database
from delaytasks.pipeline.tables import archived_history, archives, history
from delaytasks.pipeline.tables.archives import Archive
from delaytasks.pipeline.tables.lake import Lake, LakeError
from delaytasks.pipeline.transforms import promises

pytestmark = pytest.mark.only_on("sqlite")  # most are about the files; the others are marked

READER = "delaytasks_archivist"


def asking(spark: Any, database: Database, lake: Lake) -> dict[str, Callable[[], Any]]:
    """Return all readers and writers of the archive."""

    def jobs() -> None:
        with snapshot.take(database) as taken:
            history.jobs(spark, taken, lake, promises.JOBS, "order.close")

    return {
        "archive": lambda: archive.run(spark, database, lake),
        "report": lambda: report.run(spark, database, lake),
        "audit": jobs,
        "show": lambda: archived_history.by_id(lake, 1),
    }


def files(lake: Lake) -> set[str]:
    return {str(path) for path in Path(lake.path("archive")).rglob("*")}


def keys(lake: Lake) -> list[str]:
    return sorted(DeltaTable(lake.path(archives.JOBS)).to_pyarrow_table()["key"].to_pylist())


def test_an_archive_without_its_document_is_refused_until_it_is_restored(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    ended("order:1")
    archive.run(spark, database, lake)
    ended("order:2")
    document, there = Path(lake.path(archives.DOCUMENT)), files(lake)
    text = document.read_text()

    document.unlink()
    for name, ask in asking(spark, database, lake).items():
        with pytest.raises(LakeError, match=r"archive\.json is missing, .* was not changed.* move .*archive away"):
            ask()
        assert files(lake) == there, name
    assert not document.exists()
    assert list(Job.objects.values_list("key", flat=True)) == ["order:2"]

    document.write_text(text)
    archive.run(spark, database, lake)
    assert keys(lake) == ["order:1", "order:2"]


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (archives.JOBS, r"archive/jobs is an outdated copy: jobs up to run 2 .* ends with run 1"),
        (archives.EVENTS, r"archive/events is an outdated copy: it ends with run 1, but .*archive/jobs with run 2"),
    ],
)
def test_tables_that_lack_a_pruned_run_are_refused_and_an_older_document_is_not(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], table: str, problem: str
) -> None:
    document, log = Path(lake.path(archives.DOCUMENT)), Path(lake.path(table)) / "_delta_log"
    ended("order:1")
    archive.run(spark, database, lake)
    older = document.read_text()
    ended("order:2")
    archive.run(spark, database, lake)
    away = [path.rename(f"{path}.away") for path in sorted(log.glob("*.json"))[2:]]
    there = files(lake)

    for name, ask in asking(spark, database, lake).items():
        with pytest.raises(LakeError, match=problem):
            ask()
        assert files(lake) == there, name

    for path in away:
        path.rename(str(path).removesuffix(".away"))
    ended("order:3")
    document.write_text(older)
    archive.run(spark, database, lake)
    assert keys(lake) == ["order:1", "order:2", "order:3"]


@pytest.mark.on_both
def test_another_databases_archive_is_refused_with_the_correction_for_a_renamed_one(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    ended("order:1")
    archive.run(spark, database, lake)
    ended("order:2")
    document, there = lake.document(archives.DOCUMENT, archives.FORMAT), files(lake)
    other = {**document["database"], "name": "elsewhere"}
    lake.publish(archives.DOCUMENT, {**document, "database": other})

    asked = asking(spark, database, lake)
    for name in ("archive", "report", "audit"):
        with pytest.raises(LakeError, match=r"archive of another database \(\w+ elsewhere.*\. The archive") as raised:
            asked[name]()
        assert files(lake) == there, name
    result = re.search(r'change that file to contain "database": (\{.*\})\.$', str(raised.value))
    assert result is not None
    lake.publish(archives.DOCUMENT, {**document, "database": json.loads(result[1])})
    assert archive.run(spark, database, lake)["pruned"] == 1


def test_a_concurrent_publication_is_refused_and_removes_nothing(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("order:1")
    real = archive.commit

    def meanwhile(found: Archive, *written: Any) -> Archive:
        _ = found.jobs, found.events
        real(archives.load(lake), *written)
        return real(found, *written)

    with monkeypatch.context() as patched, pytest.raises(Busy, match=r"Another process changes the table .*events"):
        patched.setattr(archive, "commit", meanwhile)
        archive.run(spark, database, lake)
    assert (archives.load(lake).jobs.run, keys(lake)) == (1, ["order:1"])
    assert Job.objects.count() == 1
    assert archive.run(spark, database, lake)["pruned"] == 1


@pytest.mark.only_on("postgresql")
def test_a_database_is_identified_without_the_system_identifier_if_it_is_unreadable(database: Database) -> None:
    with database.connect() as whole:
        all_of_it = identity.identify(database, whole)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE ROLE {READER} LOGIN")
            cursor.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        with replace(database, user=READER, password="").connect() as limited:
            some_of_it = identity.identify(database, limited)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
            cursor.execute(f"DROP ROLE {READER}")

    assert sorted(all_of_it) == ["name", "schema", "system", "vendor"]
    assert all_of_it == {**some_of_it, "system": all_of_it["system"]}
    assert not identity.differ(all_of_it, some_of_it)
    assert identity.differ({**all_of_it, "system": "1"}, all_of_it)


def test_later_details_of_the_identity_are_added_to_the_known_ones(lake: Lake) -> None:
    archives.open_archive(lake, {"vendor": "postgresql", "name": "shop"})
    archives.open_archive(lake, {"vendor": "postgresql", "name": "shop", "system": "7"})
    found = archives.open_archive(lake, {"vendor": "postgresql", "name": "shop"})
    assert found.database == {"vendor": "postgresql", "name": "shop", "system": "7"}
    with pytest.raises(LakeError, match="postgresql shop, system 7; this one is postgresql shop, system 8"):
        archives.open_archive(lake, {"vendor": "postgresql", "name": "shop", "system": "8"})


@pytest.mark.parametrize("wrong", [{"deleting": "3"}, {"pruned": None}, {"database": None}, {"recent": 5}])
def test_a_value_of_the_wrong_type_is_named(lake: Lake, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    lake.publish(archives.DOCUMENT, {"version": 2, "database": {}, "deleting": 0, "pruned": 0, "recent": {}, **wrong})
    with pytest.raises(LakeError, match=r"archive\.json is damaged" if name == "recent" else f'damaged: "{name}" is'):
        archives.load(lake, {"vendor": "sqlite"})
