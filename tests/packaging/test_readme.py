"""Execute the README's section "Add it to a project" in an empty project with a Redis."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging import documents
from tests.packaging.documents import Reader
from tests.packaging.wheels import ROOT
from tests.support.servers import RedisServer

README = ROOT / "README.md"
HERE = Path(__file__).parent
BROKER = "CELERY_BROKER_URL ="

pytestmark = pytest.mark.xdist_group("packaging")


@pytest.fixture
def reader(wheel: Path, tmp_path: Path, redis_server: RedisServer) -> Iterator[Reader]:
    """A reader in a new project with one app that has a handler."""
    redis_server.flush()
    instead = {"/path/to/this/checkout": str(wheel), "localhost:6379": f"127.0.0.1:{redis_server.port}"}
    with documents.reading(tmp_path, documents.plain_environment(tmp_path), instead) as reader:
        reader.run("mkdir site; cd site; python3 -m venv --without-pip .venv; . .venv/bin/activate")
        documents.complete(reader.folder / ".venv", wheel, "postgres")
        reader.run("django-admin startproject mysite .")
        shutil.copytree(HERE / "bare" / "remind", reader.folder / "remind")
        with (reader.folder / "mysite" / "settings.py").open("a") as settings:
            settings.write('INSTALLED_APPS += ["remind"]\n')
        yield reader


def test_a_job_runs_after_following_the_readme(reader: Reader) -> None:
    for block in documents.blocks(README, section="Add it to a project"):
        reader.follow(block)
    assert "delaytasks.W" not in reader.run("python manage.py check --database default")
    reader.run("python manage.py delaytasks schedule lesson.remind lesson:1 --delay 1 --body '{\"lesson\": 1}'")
    reader.hold_session("$ python manage.py delaytasks show lesson.remind lesson:1\nstate finished\n")


def test_without_a_broker_the_check_names_the_setting(reader: Reader) -> None:
    for block in documents.blocks(README, section="Add it to a project"):
        lines = [line for line in block.text.splitlines(keepends=True) if not line.startswith(BROKER)]
        if block.language == "sh" and "manage.py" in block.text:
            break
        reader.follow(block._replace(text="".join(lines)))
    output = reader.run("python manage.py check")
    assert "delaytasks.W012" in output
    assert "CELERY_BROKER_URL" in output
