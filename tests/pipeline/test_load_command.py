"""manage.py delaytasks pipeline load: what it is told, what it tells the mirror, and what it says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from delaytasks import dialect, engine
from delaytasks.management.verbs.pipeline import load
from delaytasks.models import Job, LoadChunk, Topic
from delaytasks.pipeline.database import Database

from .test_command import CONF

COMMAND = ("delaytasks", "pipeline", "load")


def test_the_command_loads_in_a_process_of_its_own_and_what_is_due_soon_is_in_the_mirror(
    with_redis: dict[str, Any], database: Database, tmp_path: Path, capfd: Any
) -> None:
    Topic.objects.create(name="mail.send")
    due = dialect.database_now("default").isoformat()
    (tmp_path / "mails.csv").write_text(f"id;at\n1;{due}\n2;2030-02-01T12:00+01:00\n3;2030-02-01\n")
    (tmp_path / "mails.toml").write_text('topic = "mail.gone"\nkey = "id"\n[body]\nid = "id"\n')
    call_command(*COMMAND, str(tmp_path / "mails.csv"), "--lake", str(tmp_path / "lake"), "--mapping",
                 str(tmp_path / "mails.toml"), "--topic", "mail.send", "--due", "at", "--delimiter", ";",
                 "--most-rejects", "40%", "--run", "mails", "--master", "local[1]", "--json", *CONF)  # fmt: skip
    said = capfd.readouterr()
    answer = json.loads(said.out)

    assert (answer["run"], answer["read"], answer["inserted"], answer["rejected"]) == ("mails", 3, 2, {"due": 1})
    assert list(Job.objects.order_by("key").values_list("topic", "key", "body")) == [
        ("mail.send", "1", {"id": "1"}), ("mail.send", "2", {"id": "2"})]  # fmt: skip
    assert "3 rows read: 2 to load, 1 rejected" in said.err
    entries = [entry.id for page in engine.mirror_of("default").entries() for entry in page]
    assert entries == [Job.objects.get(key="1").pk]
    assert LoadChunk.objects.get().told


def test_an_option_goes_before_the_mapping_file_and_what_is_wrong_is_a_usage_error(
    database: Database, tmp_path: Path
) -> None:
    path = tmp_path / "m.toml"
    path.write_text('topic = "a"\ndelay = 30\n[body]\nx = "1"\n')
    options = dict.fromkeys(load.MAPPING, "") | {"mapping": str(path), "body": [("y", "2")], "topic": "b"}
    assert load.mapping_of(options) == {"topic": "b", "delay": 30, "body": {"y": "2"}}

    path.write_text("topic = ")
    lake = ["--lake", str(tmp_path / "lake")]
    for words, why in (
        (["a.csv", "--mapping", str(path)], "m.toml cannot be read"),
        (["a.csv", "--zone", "Mars/Base"], "no time zone"),
        (["a.csv", "--spread", "0"], "above 0"),
        (["a.csv", "--delimiter", "::"], "one character"),
        (["a.csv", "--body", "x"], "not NAME=EXPRESSION"),
        (["a.csv", "--on-conflict", "ignore"], "invalid choice"),
    ):
        with pytest.raises(CommandError, match=why):
            call_command(*COMMAND, *words, *lake)


def test_the_answer_for_people_has_the_reasons_and_says_what_was_there() -> None:
    answer = {"run": "r", "read": 10, "rejected": {"due": 2, "key": 1}, "rejects": "/lake/load/r/rejects",
              "inserted": 4, "replaced": 0, "kept": 3, "refused_live": 0, "before": 0, "seconds": 2.0,
              "rows_per_second": 3}  # fmt: skip
    assert load.text_of(answer) == (
        "run r: 10 rows read, 3 rejected (2 due, 1 key)\n"
        "4 jobs scheduled, 3 live already and kept, in 2.0 s: 3 rows/s\n/lake/load/r/rejects"
    )
    assert load.text_of({**answer, "refused": "Nothing was loaded."}) == (
        "run r: 10 rows read, 3 rejected (2 due, 1 key)\n/lake/load/r/rejects"
    )
    assert load.text_of({**answer, "read": 0}) == "run r: there are no rows: nothing was loaded"


def test_progress_comes_line_by_line_and_the_last_line_is_the_answer(tmp_path: Path) -> None:
    from delaytasks.management.verbs.pipeline import asking

    program = tmp_path / "python"
    program.write_text('#!/bin/sh\necho \'{"progress": "a"}\'\necho noise\necho \'{"progress": ""}\'\n$LAST\nexit 3\n')
    program.chmod(0o755)
    heard: list[str] = []
    ask: Callable[..., Any] = asking._answer_of

    assert ask([str(program)], {"LAST": 'echo {"read":1}'}, heard.append, False) == {"read": 1}
    assert heard == ["a", ""]
    with pytest.raises(CommandError, match=r"The run died \(3\)"):
        ask([str(program)], {"LAST": "true"}, heard.append, False)
