"""What a run is told: by one variable of its environment, as a command line is for everybody to read."""

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from typing import Any

from . import jdbc
from .database import Database

VARIABLE = "DELAYTASKS_PIPELINE"


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

    def environment(self) -> dict[str, str]:
        """For the run's process."""
        return {VARIABLE: json.dumps(asdict(self))}


def taken_from(environment: MutableMapping[str, str]) -> Settings:
    """The settings, taken out of the environment: what this process starts does not get them. Raises BadSettings."""
    text = environment.pop(VARIABLE, None)
    if text is None:
        raise BadSettings(f"{VARIABLE} is missing: `manage.py delaytasks pipeline` sets it.")
    try:
        given = json.loads(text)
        return Settings(**{**given, "database": Database(**given["database"])})
    except BadSettings:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise BadSettings(f"{VARIABLE} is no settings: {error}.") from error
