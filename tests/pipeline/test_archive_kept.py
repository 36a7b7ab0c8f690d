"""An archive that lost its document, has an old one, or is another database's is refused, and is not touched."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from delaytasks.models import Job
from delaytasks.pipeline import archive, classes, comparing, history, identity, manifest, report, snapshot, story
from delaytasks.pipeline.database import Busy, Database
from delaytasks.pipeline.lake import Lake, LakeError

READER = "delaytasks_archivist"


def asking(spark: Any, database: Database, lake: Lake) -> dict[str, Callable[[], Any]]:
    """Whoever reads the archive, or writes to it."""

    def jobs() -> None:
        with snapshot.taken(database) as taken:
            history.jobs(spark, taken, lake, classes.JOBS, "order.close")

    return {
        "archive": lambda: archive.run(spark, database, lake),
        "report": lambda: report.run(spark, database, lake),
        "audit": jobs,
        "show": lambda: story.by_id(lake, 1),
    }


def files(lake: Lake) -> set[str]:
    return {str(path) for path in Path(lake.path("archive")).rglob("*")}


def keys(spark: Any, lake: Lake) -> list[str]:
    found = [comparing.written(spark, lake, each.folder)[0] for each in manifest.runs(lake)]
    return sorted(row.key for frame in found for row in frame.collect())


def test_an_archive_whose_document_is_gone_is_refused_by_all_who_ask_it_and_is_whole_when_it_is_back(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    ended("order:1")
    archive.run(spark, database, lake)
    ended("order:2")
    document, there = Path(lake.path(manifest.DOCUMENT)), files(lake)
    text = document.read_text()

    document.unlink()
    for name, ask in asking(spark, database, lake).items():
        with pytest.raises(LakeError, match=r"archive\.json is missing, .* Nothing was touched.* move .*archive away"):
            ask()
        assert files(lake) == there, name
    assert not document.exists()
    assert list(Job.objects.values_list("key", flat=True)) == ["order:2"]

    document.write_text(text)
    archive.run(spark, database, lake)
    assert keys(spark, lake) == ["order:1", "order:2"]


@pytest.mark.on_both
def test_an_older_document_is_refused_where_rows_are_gone_for_a_run_that_it_does_not_name(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    document = Path(lake.path(manifest.DOCUMENT))
    ended("order:1")
    archive.run(spark, database, lake)
    older = document.read_text()
    ended("order:2")
    archive.run(spark, database, lake)
    text, there = document.read_text(), files(lake)

    document.write_text(older)
    second = json.loads(text)["runs"][1]["folder"]
    for name, ask in asking(spark, database, lake).items():
        with pytest.raises(
            LakeError, match=rf"archive\.json is an older copy: it does not name .*{second}, whose jobs"
        ):
            ask()
        assert files(lake) == there, name

    document.write_text(text)
    ended("order:3")
    archive.run(spark, database, lake, prune=False)
    document.write_text(text)  # an older one; but the rows are still there
    archive.run(spark, database, lake)
    assert keys(spark, lake) == ["order:1", "order:2", "order:3"]


@pytest.mark.on_both
def test_another_databases_archive_is_refused_with_what_to_write_if_it_is_the_same_one(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    ended("order:1")
    archive.run(spark, database, lake)
    ended("order:2")
    document, there = lake.document(manifest.DOCUMENT), files(lake)
    other = {**document["database"], "name": "elsewhere"}
    lake.publish(manifest.DOCUMENT, {**document, "database": other})

    asked = asking(spark, database, lake)
    for name in ("archive", "report", "audit"):
        with pytest.raises(LakeError, match=r"the archive of another database \(\w+ elsewhere.*\. Nothing") as raised:
            asked[name]()
        assert files(lake) == there, name
    told = re.search(r'change that file to say "database": (\{.*\})\.$', str(raised.value))
    assert told is not None
    lake.publish(manifest.DOCUMENT, {**document, "database": json.loads(told[1])})
    assert archive.run(spark, database, lake)["pruned"] == 1


def test_who_publishes_beside_another_archive_is_refused_and_takes_nothing_of_it_away(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("order:1")
    theirs, real = manifest.Run("archive/theirs", 0, 1, 0, 1, 1), archive.write

    def meanwhile(*args: Any) -> Any:
        manifest.publish(lake, manifest.load(lake), theirs)
        return real(*args)

    monkeypatch.setattr(archive, "write", meanwhile)
    with pytest.raises(Busy, match=r"Another archive publishes to .*archive\.json \(revision 2, expected 1\)"):
        archive.run(spark, database, lake)
    assert manifest.runs(lake) == (theirs,)
    assert Job.objects.count() == 1


@pytest.mark.only_on("postgresql")
def test_a_database_is_known_without_the_number_of_its_cluster_where_that_may_not_be_read(database: Database) -> None:
    with database.connect() as whole:
        all_of_it = identity.of(database, whole)
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE ROLE {READER} LOGIN")
            cursor.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        with replace(database, user=READER, password="").connect() as limited:
            some_of_it = identity.of(database, limited)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
            cursor.execute(f"DROP ROLE {READER}")

    assert sorted(all_of_it) == ["name", "schema", "system", "vendor"]
    assert all_of_it == {**some_of_it, "system": all_of_it["system"]}
    assert not identity.differ(all_of_it, some_of_it)
    assert identity.differ({**all_of_it, "system": "1"}, all_of_it)


def test_what_is_learned_of_the_database_later_is_kept_with_what_was_known(lake: Lake) -> None:
    manifest.opened(lake, {"vendor": "postgresql", "name": "shop"})
    manifest.opened(lake, {"vendor": "postgresql", "name": "shop", "system": "7"})
    found = manifest.opened(lake, {"vendor": "postgresql", "name": "shop"})
    assert (found.revision, found.database) == (2, {"vendor": "postgresql", "name": "shop", "system": "7"})
    with pytest.raises(LakeError, match="postgresql shop, system 7; this one is postgresql shop, system 8"):
        manifest.opened(lake, {"vendor": "postgresql", "name": "shop", "system": "8"})
