"""A dump is restored with pg_restore while Redis has gone on. Both programs come with the tests' PostgreSQL."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection

from delaytasks import cancel, reschedule, schedule
from delaytasks.maintenance import audit
from delaytasks.mirror import connect
from delaytasks.models import Job
from delaytasks.states import State

from ..support.installation import World
from ..support.servers import PostgresServer

Run = Callable[..., None]


@pytest.fixture
def run(postgres_server: PostgresServer) -> Run:
    """run("pg_dump", ...) calls a program of the server's version."""

    def run(program: str, *arguments: str) -> None:
        where = ["-h", str(postgres_server.directory), "-U", postgres_server.user]
        command = [str(postgres_server.binaries / program), *where, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0, done.stderr

    return run


def restore(run: Run, server: PostgresServer, dump: Path) -> None:
    """Replace the world's database by the dump, as the manual of pg_restore does it."""
    name = connection.settings_dict["NAME"]
    connection.close()
    with server.connect(autocommit=True) as admin:
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
    run("pg_restore", "--exit-on-error", "-d", name, str(dump))


def test_after_pg_restore_of_an_older_dump_its_rows_decide_and_none_runs_early(
    world: World, run: Run, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    schedule("quick", key="ends", delay=0)
    schedule("quick", key="cancelled", delay=0)
    schedule("quick", key="earlier", delay=3600)
    run("pg_dump", "--format=custom", f"--file={tmp_path / 'dump'}", connection.settings_dict["NAME"])

    cancel("quick", key="cancelled")
    reschedule("quick", "earlier", delay=0)
    world.start_all()
    world.until(lambda: world.ended(2, state=State.FINISHED), seconds=20, what="the jobs since the dump to end")
    assert {process.terminate() for process in world.processes} == {0}
    lost = schedule("quick", key="lost", delay=0)
    restore(run, postgres_server, tmp_path / "dump")
    assert schedule("quick", key="with the id of a lost job", delay=3600).id == lost.id

    world.start_all()
    world.until(lambda: world.ended(2, state=State.FINISHED), seconds=20, what="the jobs of the dump to end")
    world.until(lambda: connect().due_count() == 2, seconds=20, what="the mirror to have what the rows say")
    assert sorted(effect.key for effect in world.effects("quick")) == ["cancelled", "ends"], "as the dump says"
    waiting = Job.objects.filter(ended_at=None).order_by("id").values_list("key", "state", "attempt")
    assert list(waiting) == [("earlier", State.DELAYED, 0), ("with the id of a lost job", State.DELAYED, 0)]
    differences = audit.audit()
    assert not any(differences[kind] for kind in ("missing", "late", "ghosts", "doubled")), differences
