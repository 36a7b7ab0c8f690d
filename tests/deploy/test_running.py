"""Each command of the kit is run in the folder that the Dockerfile makes, with its environment and in its order.

There is no container engine here: what only it does, such as the user, the limits and the network, is not run.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.servers import PostgresServer, tail, wait_until

from . import kit, running
from .running import Installation, Kit, installed

pytestmark = [pytest.mark.only_on("postgresql"), pytest.mark.xdist_group("kit")]
START_SECONDS = 30


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return running.build(tmp_path_factory.mktemp("image"))


def listing(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def await_lines(there: Installation, **lines: str) -> None:
    """Wait until the log of each process has its line."""
    for name, line in lines.items():
        there.processes[name].await_line(line)


@pytest.mark.parametrize("make", [running.compose, running.kubernetes, running.systemd], ids=lambda make: make.__name__)
def test_a_job_runs_in_an_installation_that_the_kit_s_commands_make(
    make: Callable[[], Kit], app: Path, tmp_path: Path, postgres_server: PostgresServer
) -> None:
    before = listing(app)
    with installed(make(), app, tmp_path / "var", postgres_server) as there:
        there.run_once()
        assert sorted(there.kit.services) == ["beat", "web", "worker"]
        there.start()
        await_lines(there, worker="ready.", beat="beat: Starting", web="Uvicorn running")
        there.check()
        there.run("web", "python", "manage.py", "delaytasks", "schedule", "seller.remind", "seller:1", "--delay=0")
        log = there.processes["worker"].log
        wait_until(lambda: there.has_ended("seller:1"), seconds=START_SECONDS, what=lambda: f"the job:\n{tail(log)}")
        there.run_later()
        assert set(there.stop(seconds=90).values()) <= {0, -15}
        for name, process in there.processes.items():
            assert "Traceback" not in process.log.read_text(), f"{name}:\n{tail(process.log)}"
    assert listing(app) == before, "the file system of the image is read-only"


def test_the_database_s_health_check_runs(postgres_server: PostgresServer) -> None:
    program, *words = kit.COMPOSE["services"]["postgres"]["healthcheck"]["test"][1:]
    command = [str(postgres_server.binaries / program), *words, "-h", str(postgres_server.directory)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_what_is_not_run_of_the_image_is_its_user_and_its_environment() -> None:
    left = [
        text for stage in kit.stages() for name, text in stage if name == "RUN" and text.startswith(running.NOT_RUN)
    ]
    assert len(left) == len(running.NOT_RUN)
