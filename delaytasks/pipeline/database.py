"""Where the operational tables are, as plain data that an executor can be told: no Django, no open connection."""

import contextlib
import fcntl
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import quote, urlencode

PREFIX = "db."  # of the options that carry it into a Spark data source
WAIT_SECONDS = 30  # for SQLite's one writer
_LOCK = 5308  # of PostgreSQL's advisory locks: the pipeline's


class Busy(Exception):
    """Another run of the pipeline has this database: wait until it has ended."""


class DatabaseAway(Exception):
    """The database does not answer. Nothing was published; run it again when the database is back."""


class NotAllowed(Exception):
    """The database's user lacks a right, or sees no tables of ours. Nothing was published; mend it and run it again."""


ABSENT = "Run manage.py migrate, or name the tables' schema by the alias' OPTIONS (-c search_path=...)."


@dataclass(frozen=True)
class Database:
    """PostgreSQL or SQLite.

    vendor   "postgresql" or "sqlite"
    name     of the database; for SQLite the path of the file
    """

    vendor: str
    name: str
    host: str = ""
    port: str = ""
    user: str = ""
    password: str = ""
    libpq: str = ""  # other keywords of PostgreSQL's connections (sslmode, service, ...) as JSON
    jdbc: str = ""  # the class of a JDBC driver, where Spark is to read through one; see jdbc.py

    def __repr__(self) -> str:
        return f"{self.vendor} {self.name}"  # never the password

    def as_options(self) -> dict[str, str]:
        """For a data source. Spark hides the value of an option whose name ends in `password`."""
        return {PREFIX + name: value for name, value in asdict(self).items() if value}

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> "Database":
        return cls(**{each.name: options.get(PREFIX + each.name, "") for each in fields(cls)})

    @property
    def uri(self) -> str:
        """As ADBC drivers want it; read only."""
        if self.vendor == "sqlite":
            return f"file:{quote(self.name)}?mode=ro"
        return f"postgresql:///?{urlencode(self._keywords(), quote_via=quote)}"

    def _keywords(self) -> dict[str, str]:
        about = {
            "client_encoding": "UTF8",  # of what is sent and read here, whatever PGCLIENTENCODING says
            "dbname": self.name,
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "password": self.password,
        }
        return {name: value for name, value in about.items() if value} | json.loads(self.libpq or "{}")

    @property
    def mark(self) -> str:
        """What stands for a parameter in a statement of connect()."""
        return "?" if self.vendor == "sqlite" else "%s"

    @property
    def error(self) -> type[Exception]:
        """What its driver raises, whatever is wrong."""
        if self.vendor == "sqlite":
            return sqlite3.Error
        import psycopg

        return psycopg.Error

    @contextlib.contextmanager
    def connect(self) -> Iterator[Any]:
        """A connection for small statements: psycopg's or sqlite3's. Commits at the end, rolls back on an error.

        Raises DatabaseAway, also when the database goes away inside the block.
        """
        with self.answering(), self._sqlite() if self.vendor == "sqlite" else self._psycopg() as connection:
            yield connection

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """For the use of a connection outside its own block.

        Raises DatabaseAway when the database goes away inside, and NotAllowed where a right is missing.
        """
        away, refused, absent = self._errors()
        try:
            yield
        except away as error:
            raise DatabaseAway(f"{self} does not answer: {error}.") from error
        except refused as error:
            raise NotAllowed(f"{self} refuses the user {self.user or 'that libpq chooses'}: {error}.") from error
        except absent as error:
            raise NotAllowed(f"{self}: {str(error).splitlines()[0]}. {ABSENT}") from error

    def _errors(self) -> tuple[type[Exception], tuple[type[Exception], ...], tuple[type[Exception], ...]]:
        """Of a database that is away, of one that refuses, and of one that has no such tables."""
        if self.vendor == "sqlite":
            return sqlite3.OperationalError, (), ()
        import psycopg

        errors = psycopg.errors
        refused = (errors.InsufficientPrivilege, errors.ReadOnlySqlTransaction)
        return psycopg.OperationalError, refused, (errors.UndefinedTable, errors.UndefinedColumn)

    @contextlib.contextmanager
    def _sqlite(self) -> Iterator[Any]:
        # Never makes a file: a wrong path is an error and not an empty database.
        found = sqlite3.connect(f"file:{quote(self.name)}?mode=rw", uri=True, timeout=WAIT_SECONDS)
        with contextlib.closing(found) as connection, connection:
            yield connection

    @contextlib.contextmanager
    def _psycopg(self) -> Iterator[Any]:
        import psycopg

        keywords: dict[str, Any] = self._keywords() | {"application_name": "delaytasks pipeline"}
        with psycopg.connect(**keywords) as connection:
            yield connection

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[Callable[[], None]]:
        """Inside the block no other run does the same to this database; a killed one blocks nobody. Raises Busy.

        What the block gets is called before what another run's beginning would spoil, like naming files that it
        would have removed: it raises DatabaseAway if the database cannot be relied on to keep others away any more.
        """
        with self._flock(what) if self.vendor == "sqlite" else self._advisory(what) as still:
            yield still

    @contextlib.contextmanager
    def _flock(self, what: str) -> Iterator[Callable[[], None]]:
        path = f"{self.name}.{what}.lock"
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(open(path, "w"))
            except OSError as error:
                raise NotAllowed(
                    f"{path} cannot be written ({error.strerror}): a run keeps others of its kind away by a file "
                    "beside the database's own. Give this user the right to write in that folder, and run it again."
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
            connection.autocommit = True  # no transaction stands open for as long as the run takes
            if connection.info.server_version >= 140_000:  # it says nothing meanwhile, and would be ended for it
                connection.execute("SET idle_session_timeout = 0")
            asked = connection.execute("SELECT pg_try_advisory_lock(%s, hashtext(%s))", (_LOCK, what))
            if not asked.fetchone()[0]:
                raise Busy(f"Another {what} of {self} is running: wait until it has ended.")

            def still() -> None:
                with self.answering():
                    connection.execute("SELECT 1")

            try:
                yield still
            finally:  # at once: the server notices a moment later that a connection was closed
                with contextlib.suppress(psycopg.Error):
                    connection.execute("SELECT pg_advisory_unlock_all()")
