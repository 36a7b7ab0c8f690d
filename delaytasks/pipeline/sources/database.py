"""Address of the operational database, as plain data that can be sent to executors; connections and locks."""

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import quote, urlencode

PREFIX = "db."  # prefix of the database's options in a Spark data source
WAIT_SECONDS = 30  # how long to wait for SQLite's write lock
_LOCK_CLASS = 5308  # first key of the pipeline's advisory locks in PostgreSQL

# Identifies a PostgreSQL server until it is restarted, and the database in it.
SERVER = "SELECT CAST(extract(epoch FROM pg_postmaster_start_time()) AS text), CAST(current_database() AS text)"


class Busy(Exception):
    """Another run of the pipeline uses this database: wait until it has ended."""


class DatabaseUnavailable(Exception):
    """The database does not answer. Run this again when it is back."""


class NotAllowed(Exception):
    """The database user lacks a privilege, or tables of delaytasks are missing. Fix this, then run it again."""


ABSENT = "Run manage.py migrate, or name the tables' schema in the alias' OPTIONS (-c search_path=...)."


@dataclass(frozen=True)
class Database:
    """Address of a PostgreSQL or SQLite database.

    vendor   "postgresql" or "sqlite"
    name     name of the database; for SQLite the path of the file
    """

    vendor: str
    name: str
    host: str = ""
    port: str = ""
    user: str = ""
    password: str = ""
    libpq: str = ""  # other libpq keywords (sslmode, service, ...) as JSON

    def __repr__(self) -> str:
        return f"{self.vendor} {self.name}"  # never the password

    def as_options(self) -> dict[str, str]:
        """Return the address as options of a Spark data source. Spark redacts options whose names end in `password`."""
        return {PREFIX + name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "Database":
        return cls(**{each.name: options.get(PREFIX + each.name, "") for each in fields(cls)})

    @property
    def uri(self) -> str:
        """URI for ADBC drivers. For SQLite it opens the file read-only."""
        if self.vendor == "sqlite":
            return f"file:{quote(self.name)}?mode=ro"
        return f"postgresql:///?{urlencode(self._connection_keywords(), quote_via=quote)}"

    def _connection_keywords(self) -> dict[str, str]:
        keywords = {
            "client_encoding": "UTF8",  # overrides PGCLIENTENCODING
            "dbname": self.name,
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
        }
        return {name: value for name, value in keywords.items() if value} | json.loads(self.libpq or "{}")

    @property
    def placeholder(self) -> str:
        """Placeholder for a parameter in statements on a connection of connect()."""
        return "?" if self.vendor == "sqlite" else "%s"

    @property
    def error(self) -> type[Exception]:
        """Base class of the driver's exceptions."""
        if self.vendor == "sqlite":
            return sqlite3.Error
        import psycopg

        return psycopg.Error

    def server(self) -> tuple[str, ...] | None:
        """Return what identifies the database server that this process reaches; None for SQLite, which has none."""
        if self.vendor == "sqlite":
            return None
        with self.connect() as connection:
            return tuple(connection.execute(SERVER).fetchone())

    @contextlib.contextmanager
    def connect(self) -> Iterator[Any]:
        """Yield a psycopg or sqlite3 connection for small statements. Commits at the end, rolls back on an error.

        Raises DatabaseUnavailable and NotAllowed, as answering() does, also for statements inside the block.
        """
        with self.answering(), self._sqlite() if self.vendor == "sqlite" else self._psycopg() as connection:
            yield connection

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Translate the driver's exceptions that are raised inside the block.

        Raises DatabaseUnavailable if the connection fails or is lost, and NotAllowed if a right, table or column is
        missing.
        """
        unavailable, refused, absent = self._errors()
        try:
            yield
        except unavailable as error:
            raise DatabaseUnavailable(f"{self} does not answer: {error}.") from error
        except refused as error:
            raise NotAllowed(f"{self} refuses the user {self.user or 'that libpq chooses'}: {error}.") from error
        except absent as error:
            raise NotAllowed(f"{self}: {str(error).splitlines()[0]}. {ABSENT}") from error

    def _errors(self) -> tuple[type[Exception], tuple[type[Exception], ...], tuple[type[Exception], ...]]:
        """Return the driver's exceptions for: database unavailable, permission denied, no such table or column."""
        if self.vendor == "sqlite":
            return sqlite3.OperationalError, (), ()
        import psycopg

        errors = psycopg.errors
        refused = (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction)
        return psycopg.OperationalError, refused, (errors.UndefinedTable, errors.UndefinedColumn)

    @contextlib.contextmanager
    def _sqlite(self) -> Iterator[Any]:
        # mode=rw: a wrong path raises an error instead of creating an empty database.
        found = sqlite3.connect(f"file:{quote(self.name)}?mode=rw", uri=True, timeout=WAIT_SECONDS)
        with contextlib.closing(found) as connection, connection:
            yield connection

    @contextlib.contextmanager
    def _psycopg(self) -> Iterator[Any]:
        import psycopg

        keywords: dict[str, Any] = self._connection_keywords() | {"application_name": "delaytasks pipeline"}
        with psycopg.connect(**keywords) as connection:
            yield connection

    @contextlib.contextmanager
    def lock(self, what: str) -> Iterator[Callable[[], None]]:
        """Hold a lock, so that only one run of an application at a time uses this database. Raises Busy, NotAllowed.

        what   name of the application

        Yields a function that raises DatabaseUnavailable if the lock may be lost. Call it before each step that does
        harm if a second run has begun, such as publishing files that the second run may have removed. The operating
        system or the database server releases the lock of a killed run.
        """
        with self._flock(what) if self.vendor == "sqlite" else self._advisory(what) as check_lock:
            yield check_lock

    @contextlib.contextmanager
    def _flock(self, what: str) -> Iterator[Callable[[], None]]:
        path = f"{os.path.realpath(self.name)}.{what}.lock"
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open(path, "w"))
            except OSError as error:
                raise NotAllowed(
                    f"{path} cannot be written ({error.strerror}): a run locks this file beside the database. "
                    "Give this user write permission in that folder, then run this again."
                ) from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise Busy(f"Another {what} of {self} is running: wait until it has ended.") from error
            yield lambda: None

    @contextlib.contextmanager
    def _advisory(self, what: str) -> Iterator[Callable[[], None]]:
        import psycopg

        with self.connect() as connection:
            connection.autocommit = True  # otherwise a transaction would stay open during the run
            if connection.info.server_version >= 140_000:  # the connection is idle during the run
                connection.execute("SET idle_session_timeout = 0")
            result = connection.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", (_LOCK_CLASS, what))
            if not result.fetchone()[0]:
                raise Busy(f"Another {what} of {self} is running: wait until it has ended.")

            def check_lock() -> None:
                with self.answering():
                    connection.execute("SELECT 1")

            try:
                yield check_lock
            finally:  # unlock explicitly, because the server may notice late that the connection was closed
                with contextlib.suppress(psycopg.Error):
                    connection.execute("SELECT pg_advisory_unlock_all()")
