"""What a run is told: by one variable of its environment, as a command line is for everybody to read.

What is too long for a variable is in a file that only this user can read; the variable says which.
"""

import json
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import jdbc
from .database import Database

VARIABLE = "DELAYTASKS_PIPELINE"
IN_FILE = "@"  # what a variable begins with that names a file
MOST = 100_000  # bytes; Linux starts no process that is told more than 128 KiB in one variable


class BadSettings(ValueError):
    """What the run was told cannot be done."""


@dataclass(frozen=True)
class Settings:
    """lake      the folder of the pipeline's files, a path or URI
    master    as Spark names it
    spark     Spark options of the site
    wishes    what the question itself is told
    """

    database: Database
    lake: str
    master: str = "local[*]"
    spark: Mapping[str, str] = field(default_factory=dict)
    wishes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.database.vendor not in ("postgresql", "sqlite"):
            raise BadSettings(f"The pipeline reads PostgreSQL and SQLite, not {self.database.vendor}.")
        if self.database.jdbc and (problem := jdbc.problem(self.database)):
            raise BadSettings(problem)
        if self.database.vendor == "sqlite" and not self.master.startswith("local"):
            raise BadSettings(f"SQLite is one machine's file: {self.master} cannot read it, local[*] can.")

    def environment(self, folder: Path | None = None) -> dict[str, str]:
        """For the run's process. folder: for the file, if there must be one; the run removes it."""
        text = json.dumps(asdict(self))
        if folder is None or len(text) <= MOST:
            return {VARIABLE: text}
        path = folder / "settings.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return {VARIABLE: f"{IN_FILE}{path}"}


def taken_from(environment: MutableMapping[str, str]) -> Settings:
    """The settings, taken out of the environment: what this process starts does not get them. Raises BadSettings."""
    text = environment.pop(VARIABLE, None)
    if text is None:
        raise BadSettings(f"{VARIABLE} is missing: `manage.py delaytasks pipeline` sets it.")
    try:
        given = json.loads(_from_file(text.removeprefix(IN_FILE)) if text.startswith(IN_FILE) else text)
        return Settings(**{**given, "database": Database(**given["database"])})
    except BadSettings:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadSettings(f"{VARIABLE} is no settings: {error}.") from error


def _from_file(path: str) -> str:
    """Its text; the file is gone, as there may be a password in it and nobody else wants it."""
    text = Path(path).read_text()
    Path(path).unlink()
    return text
