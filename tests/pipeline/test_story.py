"""A job's whole story, wherever it lives now, as `delaytasks show` and the admin tell it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.utils.html import escape

from delaytasks import dialect
from delaytasks.models import Job, Topic
from delaytasks.pipeline import archive, manifest, story
from delaytasks.pipeline.database import Database
from delaytasks.pipeline.lake import Lake
from delaytasks.states import State


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """The one below --lake tmp_path."""
    return Lake(f"{tmp_path}/default")


@pytest.fixture
def in_settings(tmp_path: Path, settings: Any) -> Callable[[], None]:
    def put() -> None:
        settings.DELAYTASKS = {**settings.DELAYTASKS, "LAKE": str(tmp_path)}

    return put


def page(job: Job) -> str:
    return f"/admin/delaytasks/job/{job.pk}/change/"


def test_show_and_the_admin_tell_the_story_of_a_job_whose_row_is_gone(
    spark: Any, database: Database, lake: Lake, tmp_path: Path, in_settings: Any, ended: Callable[..., Job],
    capsys: Any, admin_client: Any, client: Any,
) -> None:  # fmt: skip
    old = ended("order:1")
    archive.run(spark, database, lake)
    assert admin_client.get(page(old)).status_code == 404, "without a lake there is no such job"
    call_command("delaytasks", "show", str(old.pk), "--lake", str(tmp_path))
    assert "It is in the archive" in capsys.readouterr().out
    in_settings()

    call_command("delaytasks", "show", str(old.pk))
    said = capsys.readouterr().out
    assert "It is in the archive" in said
    assert "Zoë 张" in said
    call_command("delaytasks", "show", "order.close", "order:1", "--json")
    assert '"archived": true' in capsys.readouterr().out
    shown = admin_client.get(page(old))
    assert shown.status_code == 200
    text = shown.content.decode()
    assert "This job is in the archive." in text
    assert "Zoë 张" in text
    assert "What can be done now" not in text
    assert 'id="dt-live"' not in text

    staff = User.objects.create_user("staff", is_staff=True)
    staff.user_permissions.add(Permission.objects.get(codename="view_job"))
    client.force_login(staff)
    assert client.get(page(old)).status_code == 200
    Topic.objects.update_or_create(name="order.close", defaults={"visible_to": [1]})
    assert client.get(page(old)).status_code == 404, "its topic is for others"


def test_of_several_jobs_with_a_key_the_live_one_is_told_and_else_the_one_that_ended_last_wherever_it_lives(
    spark: Any, database: Database, lake: Lake, tmp_path: Path, ended: Callable[..., Job], job: Callable[..., Job],
    capsys: Any,
) -> None:  # fmt: skip
    def shown() -> tuple[int, bool]:
        call_command("delaytasks", "show", "order.close", "order:1", "--json", "--lake", str(tmp_path))
        told = json.loads(capsys.readouterr().out)
        return told["id"], "archived" in told

    last, dead = ended("order:1", days=40), ended("order:1", state=State.DEAD, days=50)
    assert shown() == (last.pk, False), "the other one has the greater number, and ended before"
    archive.run(spark, database, lake)
    assert list(Job.objects.all()) == [dead]
    assert shown() == (last.pk, True)
    archive.run(spark, database, lake, dead=True)
    assert (Job.objects.count(), len(manifest.runs(lake))) == (0, 2)
    assert shown() == (last.pk, True), "the newer run has the one that ended before"
    newest = ended("order:1", days=35)
    assert shown() == (newest.pk, False)
    archive.run(spark, database, lake)
    assert shown() == (newest.pk, True)
    found = story.by_key(lake, "order.close", "order:1")
    assert found is not None
    assert (found.job["id"], len(found.events)) == (newest.pk, 2)
    late = ended("order:1", days=20)
    for file in Path(lake.path("archive")).rglob("*.parquet"):
        file.write_bytes(b"")
    assert shown() == (late.pk, False), "and no file was read that cannot have a later one"
    live = job("order:1", due_at=dialect.database_now("default"))
    assert shown() == (live.pk, False)


def test_an_archive_that_cannot_be_read_is_told_and_is_no_job_that_is_not_there(
    spark: Any, database: Database, lake: Lake, in_settings: Any, ended: Callable[..., Job], job: Callable[..., Job],
    capsys: Any, admin_client: Any,
) -> None:  # fmt: skip
    in_settings()
    old, standing = ended("order:1"), job("order:2")
    archive.run(spark, database, lake)
    (run,) = manifest.runs(lake)
    (partition,) = manifest.partitions(lake, run)
    file, listed = (Path(lake.path(name)) for name in (partition.job_files[0], f"{run.folder}/{manifest.PARTITIONS}"))

    def told(*target: object) -> str:
        with pytest.raises(CommandError) as raised:
            call_command("delaytasks", "show", *map(str, target), "--json")
        assert raised.value.returncode == 1
        assert json.loads(capsys.readouterr().out)["error"] == "ArchiveUnreadable"
        return str(raised.value)

    whole = file.read_bytes()
    for spoil in (lambda: file.write_bytes(whole[: len(whole) // 2]), file.unlink):
        spoil()
        for target in ((old.pk,), ("order.close", "order:1")):
            assert f"{file} (order.close of {partition.ended_on}) is gone or damaged" in told(*target)
    shown = admin_client.get(page(old), follow=True)
    text = shown.content.decode()
    assert escape(f"Job {old.pk} is not in the tables, and the archive cannot be read.") in text
    assert str(file) not in text, "paths are for the log"
    assert admin_client.get(f"/admin/delaytasks/job/{old.pk}/now/").status_code == 404
    file.write_bytes(whole)

    names = listed.read_text()
    listed.write_text(names.replace('"ended_on"', '"day"'))
    assert f"{listed} is damaged" in told(old.pk)
    listed.unlink()
    assert "has no partitions.json" in told(old.pk)
    Path(lake.path(manifest.DOCUMENT)).unlink()
    assert "archive.json is missing" in told(old.pk)

    for target in ((standing.pk,), ("order.close", "order:2")):
        call_command("delaytasks", "show", *map(str, target))
    assert admin_client.get(page(standing)).status_code == 200
