"""manage.py delaytasks pipeline load: options, updates of the mirror, and output."""

import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from delaytasks import mirror
from delaytasks.db import dialects
from delaytasks.management.subcommands.pipeline import load, process
from delaytasks.models import Job, LoadChunk, Topic
from delaytasks.pipeline.sinks.inserts import load_chunk
from delaytasks.pipeline.sinks.jobs import Chunk, PostgreSQL, Run
from delaytasks.pipeline.sources.database import Database
from delaytasks.pipeline.tables.lake import Lake
from tests.support.servers import wait_until

from ..test_command import CONF

COMMAND = ("delaytasks", "pipeline", "load")


ANSWER = {"run": "r", "read": 10, "rejected": {"due": 2, "key": 1}, "rejects": "/lake/load/r/rejects", "inserted": 4,
          "replaced": 0, "kept": 3, "refused_live": 0, "before": 0, "seconds": 2.0, "rows_per_second": 3}  # fmt: skip


def test_a_connection_lost_during_the_run_does_not_affect_its_answer(
    with_redis: dict[str, Any], database: Database, lake: Lake, chunk: Callable[..., Chunk], capfd: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert load_chunk(database, lake, Run("r", "stamp", "reject"), chunk("a", due_ms=int(dialects.now_ms("default"))))

    def ask(question: str, options: Any, using: str, arguments: Any, progress: Callable[[str], None]) -> dict[str, Any]:
        with connection.cursor() as cursor, database.connect() as other:
            cursor.execute("SELECT pg_backend_pid()")
            other.execute("SELECT pg_terminate_backend(%s)", cursor.fetchone())
        progress("half of it")
        assert not LoadChunk.objects.get().mirrored
        return ANSWER

    monkeypatch.setattr(load, "run_application", ask)
    call_command(*COMMAND, "orders.csv", "--lake", "/lake")
    message = capfd.readouterr()
    assert "half of it" in message.err
    assert "4 jobs scheduled, 3 already live and kept" in message.out
    assert LoadChunk.objects.get().mirrored


def test_a_killed_run_continues_by_name_without_loss_and_mirrors_jobs_due_soon(
    with_redis: dict[str, Any], database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """One chunk waits for a transaction of the test, others are loaded; then the run is killed."""
    Topic.objects.create(name="mail.send")
    Topic.objects.bulk_create(Topic(name=f"more.{n:055}") for n in range(2500))  # more than a variable can tell
    keys, soon = [f"{n:02}" for n in range(60)], dialects.database_now("default").isoformat()
    lines = [f"{key};{'2030-02-01T12:00+01:00' if int(key) else soon}" for key in keys]
    (tmp_path / "mails.csv").write_text("\n".join(["id;at", *lines, "60;2030-02-01", ""]))
    (tmp_path / "mails.toml").write_text('topic = "mail.gone"\nkey = "id"\n[body]\nid = "id"\n')
    words = [*COMMAND, str(tmp_path / "mails.csv"), "--lake", str(tmp_path / "lake"), "--mapping",
             str(tmp_path / "mails.toml"), "--topic", "mail.send", "--due", "at", "--delimiter", ";", "--run", "mails",
             "--master", "local[2]", *CONF, "--conf", "spark.sql.shuffle.partitions=6",
             "--conf", "spark.sql.adaptive.enabled=false", "--json"]  # fmt: skip
    started: list[subprocess.Popen[str]] = []
    over = Event()

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    def kills() -> None:
        with database.connect() as watcher:
            watcher.autocommit = True
            try:
                wait_until(lambda: over.is_set() or watcher.execute(WAITS).fetchone()[0], seconds=60,
                           what="a chunk that waits for us")  # fmt: skip
            finally:
                for each in started:
                    each.kill()

    with monkeypatch.context() as patched, database.connect() as ours, ThreadPoolExecutor(1) as beside:
        patched.setattr(process.subprocess, "Popen", Noted)
        assert PostgreSQL(ours, "").record_chunk(Run("mails", "ours", "reject"), Chunk(1, "", 1))
        killing = beside.submit(kills)
        try:
            with pytest.raises(CommandError, match=r"The run failed with exit code -9"):
                call_command(*words)
        finally:
            over.set()
        killing.result()
        ours.rollback()
    wait_until(lambda: not backends(), seconds=30, what="the end of what the dead run had asked the database")
    before = Job.objects.count()
    assert 0 < before < len(keys)
    assert "61 rows read: 60 to load, 1 rejected" in capfd.readouterr().err

    call_command(*words)
    answer = json.loads(capfd.readouterr().out)
    assert (answer["run"], answer["before"], answer["inserted"], answer["refused_live"], answer["rejected"]) == (
        "mails", before, 60, 0, {"due": 1})  # fmt: skip
    assert list(Job.objects.order_by("key").values_list("topic", "key", "body")) == [
        ("mail.send", key, {"id": key}) for key in keys]  # fmt: skip
    told = json.loads((tmp_path / "lake/default/load/mails/run.json").read_text())
    assert LoadChunk.objects.filter(mirrored=True).count() == len(told["chunks"]) > 2
    entries = [entry.id for page in mirror.connect("default").entries() for entry in page]
    assert entries == [Job.objects.get(key="00").pk]


WAITS = """
    SELECT EXISTS (SELECT FROM delaytasks_loadchunk) AND EXISTS (SELECT FROM pg_stat_activity
        WHERE application_name = 'delaytasks pipeline' AND wait_event_type = 'Lock')"""


def backends() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'delaytasks pipeline'")
        return int(cursor.fetchone()[0])


def test_options_override_the_mapping_file_and_mistakes_are_usage_errors(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text('topic = "a"\r\ndelay = 30\r\n[body]\r\nx = "1"\r\n', encoding="utf-8-sig")  # as on Windows
    options = dict.fromkeys(load.MAPPING, "") | {"mapping": str(path), "body": [("y", "2")], "topic": "b"}
    assert load.mapping_of(options) == {"topic": "b", "delay": 30, "body": {"y": "2"}}

    for text in (
        "due = 2030-02-01T12:00:00Z", "[body]\ndue = 2030-02-01", "due = [2030-02-01]", "[due]\nat = 2030-02-01",
        "[body]\ndue = { at = [2030-02-01] }", "due = 2030-02-01\n[body]\ndue = 'x'",
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(CommandError, match=r"m\.toml, due: .*2030.* must be in quotes, as an exp") as raised:
            call_command(*COMMAND, "a.csv", "--mapping", str(path), "--lake", str(tmp_path))
        assert raised.value.returncode == 2
    path.write_text("topic = ")
    lake = ["--lake", str(tmp_path / "lake")]
    for words, why in (
        (["a.csv", "--mapping", str(path)], "Cannot read the mapping .*m.toml"),
        (["a.csv", "--zone", "Mars/Base"], "not a time zone"),
        (["a.csv", "--spread", "0"], "above 0"),
        (["a.csv", "--spread", "1e9"], "up to 316,224,000"),
        (["a.csv", "--delimiter", "::"], "one character"),
        (["a.csv", "--calendar", "offce"], "mapping's calendar: There is no calendar 'offce'"),
        (["a.csv", "--body", "x"], "not NAME=EXPRESSION"),
        (["a.csv", "--on-conflict", "ignore"], "invalid choice"),
    ):
        with pytest.raises(CommandError, match=why):
            call_command(*COMMAND, *words, *lake)


def test_the_answer_for_people_has_reasons_and_earlier_rows() -> None:
    assert load.text_of(ANSWER) == (
        "run r: 10 rows read, 3 rejected (2 due, 1 key)\n"
        "4 jobs scheduled, 3 already live and kept, in 2.0 s: 3 rows/s\n/lake/load/r/rejects"
    )
    assert load.text_of({**ANSWER, "refused": "Nothing was loaded."}) == (
        "run r: 10 rows read, 3 rejected (2 due, 1 key)\n/lake/load/r/rejects"
    )
    assert load.text_of({**ANSWER, "read": 0}) == "run r: no rows, nothing was loaded"


def test_progress_comes_line_by_line_and_the_last_line_is_the_answer(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho \'{"progress": "a"}\'\necho noise\necho \'{"progress": ""}\'\n$LAST\nexit 3\n')
    program.chmod(0o755)
    heard: list[str] = []
    ask: Callable[..., Any] = process._run_process

    assert ask([str(program)], {"LAST": 'echo {"read":1}'}, heard.append, False) == {"read": 1}
    assert heard == ["a", ""]
    with pytest.raises(CommandError, match=r"The run failed with exit code 3"):
        ask([str(program)], {"LAST": "true"}, heard.append, False)
