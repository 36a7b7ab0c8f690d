"""Archived jobs in `delaytasks show` and in the admin."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.utils.html import escape

from delaytasks.db import dialects
from delaytasks.models import Job, Topic
from delaytasks.pipeline.applications import archive
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables import archived_history, archives, delta
from delaytasks.pipeline.tables.lake import Lake
from delaytasks.states import State

pytestmark = pytest.mark.only_on("sqlite")  # most are about the files; the others are marked


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """The database's lake below --lake tmp_path."""
    return Lake(f"{tmp_path}/default")


@pytest.fixture
def in_settings(tmp_path: Path, settings: Any) -> Callable[[], None]:
    def put() -> None:
        settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": str(tmp_path)}

    return put


def page(job: Job) -> str:
    return f"/admin/delaytasks/job/{job.pk}/change/"


def test_show_and_the_admin_show_archived_jobs(
    spark: Any, database: Database, lake: Lake, tmp_path: Path, in_settings: Any, ended: Callable[..., Job],
    capsys: Any, admin_client: Any, client: Any,
) -> None:  # fmt: skip
    old = ended("order:1")
    archive.run(spark, database, lake)
    assert admin_client.get(page(old)).status_code == 404, "without a lake there is no such job"
    call_command("delaytasks", "show", str(old.pk), "--lake", str(tmp_path))
    assert "This job is in the archive" in capsys.readouterr().out
    in_settings()

    call_command("delaytasks", "show", str(old.pk))
    message = capsys.readouterr().out
    assert "This job is in the archive" in message
    assert "Zoë 张" in message
    call_command("delaytasks", "show", "order.close", "order:1", "--json")
    assert '"archived": true' in capsys.readouterr().out
    shown = admin_client.get(page(old))
    assert shown.status_code == 200
    text = shown.content.decode()
    assert "This job is archived." in text
    assert "Zoë 张" in text
    assert 'id="dt-act-heading"' not in text
    assert 'id="dt-live"' not in text

    staff = User.objects.create_user("staff", is_staff=True)
    staff.user_permissions.add(Permission.objects.get(codename="view_job"))
    client.force_login(staff)
    assert client.get(page(old)).status_code == 200
    Topic.objects.update_or_create(name="order.close", defaults={"visible_to": [1]})
    assert client.get(page(old)).status_code == 404, "its topic is for others"


def test_a_job_whose_key_has_a_rare_character_is_found_also_in_a_lake_of_an_earlier_version(
    spark: Any, database: Database, lake: Lake, ended: Callable[..., Job]
) -> None:
    keys = ("member:𠮷野", "member:Zoë", "member:😀")
    for key in keys:
        ended(key)
    archive.run(spark, database, lake)
    assert [archived_history.by_key(lake, "order.close", key) is not None for key in keys] == [True] * 3

    (log,) = [each for each in Path(lake.path(archives.JOBS), delta.LOG).glob("*.json") if "𠮷" in each.read_text()]
    log.write_text(log.read_text().replace("𠮷", r"\\ud842\\udfb7").replace("😀", r"\\ud83d\\ude00"))
    assert [archived_history.by_key(lake, "order.close", key) is not None for key in keys] == [True] * 3


def test_columns_that_a_newer_version_has_added_to_the_archive_are_ignored(
    spark: Any, database: Database, lake: Lake, tmp_path: Path, ended: Callable[..., Job], capsys: Any
) -> None:
    old = ended("order:1")
    archive.run(spark, database, lake)
    for name in (archives.JOBS, archives.EVENTS):
        rows = DeltaTable(lake.path(name)).to_pyarrow_table()
        more = rows.append_column("region", pyarrow.array(["eu"] * len(rows)))
        write_deltalake(lake.path(name), more, mode="overwrite", schema_mode="overwrite", partition_by=[delta.TOPIC])
    call_command("delaytasks", "show", str(old.pk), "--json", "--lake", str(tmp_path))
    assert len(json.loads(capsys.readouterr().out)["events"]) == 2


def test_of_jobs_with_the_same_key_the_live_or_last_ended_one_is_shown_from_table_or_archive(
    spark: Any, database: Database, lake: Lake, tmp_path: Path, ended: Callable[..., Job], job: Callable[..., Job],
    capsys: Any,
) -> None:  # fmt: skip
    def shown() -> tuple[int, bool]:
        call_command("delaytasks", "show", "order.close", "order:1", "--json", "--lake", str(tmp_path))
        result = json.loads(capsys.readouterr().out)
        return result["id"], "archived" in result

    last, dead = ended("order:1", days=40), ended("order:1", state=State.DEAD, days=50)
    assert shown() == (last.pk, False), "the other one has the greater number, and ended before"
    archive.run(spark, database, lake)
    assert list(Job.objects.all()) == [dead]
    assert shown() == (last.pk, True)
    archive.run(spark, database, lake, dead=True)
    assert (Job.objects.count(), archives.load(lake).jobs.run) == (0, 2)
    assert shown() == (last.pk, True), "the newer run has the one that ended before"
    newest = ended("order:1", days=35)
    assert shown() == (newest.pk, False)
    archive.run(spark, database, lake)
    assert shown() == (newest.pk, True)
    found = archived_history.by_key(lake, "order.close", "order:1")
    assert found is not None
    assert (found.job["id"], len(found.events)) == (newest.pk, 2)
    late = ended("order:1", days=20)
    for file in Path(lake.path("archive")).rglob("*.parquet"):
        file.write_bytes(b"")
    assert shown() == (late.pk, False), "and no file was read that cannot have a later one"
    live = job("order:1", due_at=dialects.database_now("default"))
    assert shown() == (live.pk, False)


def test_an_unreadable_archive_is_an_error_and_not_a_missing_job(
    spark: Any, database: Database, lake: Lake, in_settings: Any, ended: Callable[..., Job], job: Callable[..., Job],
    capsys: Any, admin_client: Any,
) -> None:  # fmt: skip
    in_settings()
    old, standing = ended("order:1"), job("order:2")
    archive.run(spark, database, lake)
    file = Path(lake.path(archives.load(lake).jobs.files[0].path))
    log = Path(lake.path(archives.JOBS)) / "_delta_log" / f"{1:020}.json"

    def result(*target: object) -> str:
        with pytest.raises(CommandError) as raised:
            call_command("delaytasks", "show", *map(str, target), "--json")
        assert raised.value.returncode == 1
        assert json.loads(capsys.readouterr().out)["error"] == "ArchiveUnreadable"
        return str(raised.value)

    whole = file.read_bytes()
    for spoil in (lambda: file.write_bytes(whole[: len(whole) // 2]), file.unlink):
        spoil()
        for target in ((old.pk,), ("order.close", "order:1")):
            assert f"{file} (order.close) is missing or damaged" in result(*target)
    shown = admin_client.get(page(old), follow=True)
    text = shown.content.decode()
    assert escape(f"Job {old.pk} is not in the database, and the archive cannot be read.") in text
    assert str(file) not in text, "paths are for the log"
    assert admin_client.get(f"/admin/delaytasks/job/{old.pk}/now/").status_code == 404
    file.write_bytes(whole)

    log.write_text(log.read_text()[:99])
    assert "archive/jobs is damaged or cannot be read" in result(old.pk)
    Path(lake.path(archives.DOCUMENT)).unlink()
    assert "archive.json is missing" in result(old.pk)

    for target in ((standing.pk,), ("order.close", "order:2")):
        call_command("delaytasks", "show", *map(str, target))
    assert admin_client.get(page(standing)).status_code == 200
