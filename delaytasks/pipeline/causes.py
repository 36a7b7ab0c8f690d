"""What Spark and the drivers failed of, as a sentence, where it is known and its user's to mend."""

import re

from .database import ABSENT

LINES = 12  # of what Spark said
CAUSES = {  # in what Spark said -> what to do
    r"permission denied for (?:table|view|sequence|schema|function) [^\s;.]+":
        "The database refuses the pipeline's user: {}. Nothing was published; GRANT SELECT on it and run this again.",
    r'(?:relation|column) "?[\w.]+"? does not exist':
        f"The database has not what the pipeline reads: {{}}. {ABSENT}",
    r"(?<=ClassNotFoundException: )[\w.$]+|(?<=No suitable driver).*":
        "Java has no class {}: name the jar that has it by --conf spark.jars=/path/to.jar.",
    r"No space left on device|Read-only file system|Mkdirs failed to create \S+|\S+ \(Permission denied\)"
    r"|Parent path is not a directory: \S+":
        "Spark cannot write: {}. Make room there, or give this user the right to it, and run this again.",
}  # fmt: skip
# A reader's connection, or the one that holds the run's snapshot for all of them. The last is as newer servers say it.
AWAY = re.compile(r'OperationalError: (.*)|(invalid snapshot identifier|snapshot "[^"]*" does not exist)')


def told(error: Exception) -> tuple[str, str]:
    """The error's name and a sentence; the first lines of what Spark said, if it is not known."""
    said = str(error)
    for pattern, sentence in CAUSES.items():
        if found := re.search(pattern, said):
            return type(error).__name__, sentence.format(found.group())
    if why := away(said):
        return "DatabaseAway", (
            f"The database went away: {why}. Nothing was published; run it again when the database is back."
        )
    return type(error).__name__, "\n".join([line for line in said.split("\n") if not line.startswith("\tat ")][:LINES])


def away(said: str) -> str:
    """What was said of a database that went away while it was read; empty: something else went wrong."""
    found = AWAY.search(said)
    return (found[1] or found[2] or "").strip().rstrip(".") if found else ""


def of_files(error: Exception) -> str:
    """A sentence for a file that could not be read or written, or named."""
    if isinstance(error, ConnectionError):
        return f"A process or server that the run needs does not answer any more: {error}. Run it again."
    return f"A file cannot be used: {error}. Make room there, or give this user the right to it, and run this again."
