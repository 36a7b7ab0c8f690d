"""Settings of a run, passed as JSON in one environment variable, because a command line is visible to every user.

Settings that are too long for a variable are written to a file that only this user can read. The variable then
contains the path of the file.
"""

import json
import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .sources.database import Database

VARIABLE = "DELAYTASKS_PIPELINE"
IN_FILE = "@"  # prefix of the variable's value if it is the path of a file
MASTER = re.compile(r"local(\[[\d*,\s]+\])?|yarn|(spark|k8s|sc)://.+")
# Masters whose executors may be on this machine. With sc://localhost, spark/preflight.py proves it before each run.
THIS_MACHINE = re.compile(r"local.*|sc://localhost(:\d+)?(/.*)?")
# Options that are used before Spark can check them: name -> possible values, and an example.
STARTING = {
    re.compile(r"spark\.(driver|executor)\.memory"): (re.compile(r"\d+[kmgt]?b?", re.IGNORECASE), "2g"),
    re.compile(r"spark\.(driver|executor)\.cores"): (re.compile(r"[1-9]\d*"), "2"),
}
MAX_BYTES = 100_000  # Linux refuses to start a process with a variable longer than 128 KiB


def without_parameters(master: str) -> str:
    """Return the address of a Spark master without its parameters, such as a token."""
    return master.partition("/;")[0].partition(";")[0]


class BadSettings(ValueError):
    """The settings are invalid, or the run cannot work with them."""


@dataclass(frozen=True)
class Settings:
    """lake      folder of the pipeline's files: a path or URI
    master       Spark master, such as local[*] or spark://...
    spark        the site's Spark options
    arguments    keyword arguments of the application
    """

    database: Database
    lake: str
    master: str = "local[*]"
    spark: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.database.vendor not in ("postgresql", "sqlite"):
            raise BadSettings(f"The pipeline reads PostgreSQL and SQLite, not {self.database.vendor}.")
        shown = without_parameters(self.master)
        if not MASTER.fullmatch(self.master):
            raise BadSettings(
                f"{shown!r} is no Spark master: use local[*], spark://host:port, yarn, k8s://... or sc://host:port."
            )
        if self.database.vendor == "sqlite" and not THIS_MACHINE.fullmatch(self.master):
            raise BadSettings(
                f"SQLite is a file on one machine: {shown} cannot read it. Use local[*], or sc://localhost:port "
                "with a server on this machine."
            )
        if "spark.master" in self.spark:
            raise BadSettings("Give the Spark master with --master, not with --conf spark.master.")
        for name, value in self.spark.items():
            for option, (values, example) in STARTING.items():
                if option.fullmatch(name) and not values.fullmatch(value):
                    raise BadSettings(f"The value {value!r} of {name} is invalid: give one such as {example}.")

    def environment(self, folder: Path | None = None) -> dict[str, str]:
        """Return the environment variables for the run's process.

        folder   where to write the settings to a file if they are too long; the run removes the file. None: no file
        """
        text = json.dumps(asdict(self))
        if folder is None or len(text) <= MAX_BYTES:
            return {VARIABLE: text}
        path = folder / "settings.json"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return {VARIABLE: f"{IN_FILE}{path}"}


def from_environment(environment: MutableMapping[str, str]) -> Settings:
    """Return the settings and remove them from the environment, so that child processes do not inherit them.

    Raises BadSettings if the variable is missing or its value is invalid.
    """
    text = environment.pop(VARIABLE, None)
    if text is None:
        raise BadSettings(f"{VARIABLE} is not set. Use `manage.py delaytasks pipeline`, which sets it.")
    try:
        values = json.loads(_read_and_remove(text.removeprefix(IN_FILE)) if text.startswith(IN_FILE) else text)
        return Settings(**{**values, "database": Database(**values["database"])})
    except BadSettings:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadSettings(f"{VARIABLE} holds no valid settings: {error}.") from error


def _read_and_remove(path: str) -> str:
    """Return the file's text and remove the file: it may contain a password."""
    text = Path(path).read_text()
    Path(path).unlink()
    return text
