"""Translate errors of Spark and the database drivers into a sentence that says what to do, if the cause is known."""

import re

from ..sources.database import ABSENT

LINES = 12  # maximum number of lines of Spark's message
SLOW_PYTHON = "Python worker failed to connect back"
CAUSES = {  # pattern in Spark's message -> sentence
    r"permission denied for (?:table|view|sequence|schema|function) [^\s;.]+":
        "The database refuses the pipeline's user: {}. GRANT SELECT on it and run this again.",
    r"row-level security policy for table [^\s;.]+":
        "The database may hide rows from the pipeline's user, so nothing was read: there is a {}. Give the user the "
        "attribute BYPASSRLS, or run this as the table's owner.",
    r'(?:relation|column) "?[\w.]+"? does not exist':
        f"The database has no such table or column: {{}}. {ABSENT}",
    r"(?<=Class )org\.apache\.hadoop\.fs\.s3a\.\w+(?= not found)":
        "Java has no class {}, with which Spark uses S3. Name Hadoop's jars with --conf spark.jars=hadoop-aws-….jar,"
        "bundle-….jar, or --conf spark.jars.packages=…. See docs/howto/cluster.md.",
    r"(?<=ClassNotFoundException: )[\w.$]+|(?<=No suitable driver).*":
        "Java has no class {}: name its jar with --conf spark.jars=/path/to.jar.",
    r'(?<=Cannot run program )"[^"]+"':
        "An executor cannot start Python: there is no {}. Install Python with delaytasks[pipeline] there on every "
        "host, or set the environment variable PYSPARK_PYTHON to its path.",
    SLOW_PYTHON:
        "{}: it took more than 10 seconds to start. The machine is probably busy. Run this again.",
    r"Python in worker has different version:? \S+ than that in driver:? \S+?(?=,|\s|$)":
        "{}. Use the same version of Python on every host, or set the environment variable PYSPARK_PYTHON to its path.",
    r"No module named '[\w.]+'|\[PACKAGE_NOT_INSTALLED\] [^;\n]+":
        "Python lacks a package, here or on an executor: {}. Install delaytasks[pipeline] on every host, or set the "
        "environment variable PYSPARK_PYTHON to the path of a Python that has it.",
    r"(?:No|Invalid|Missing) authentication token":
        "The Spark Connect server refuses this client: {}. Set the environment variable "
        "SPARK_CONNECT_AUTHENTICATE_TOKEN to the server's token.",
    r"Failed to bind to address /[\d.]+:\d+":
        "{}: another process uses this port. End it, or choose another port (serve: --port).",
    r"Unknown time-zone ID: \S+":
        "Java on an executor does not know a zone: {}. Install the same version of Java on every host.",
    r"No space left on device|Read-only file system|Mkdirs failed to create \S+|\S+ \(Permission denied\)"
    r"|Parent path is not a directory: \S+":
        "Spark cannot write: {}. Free some space or give this user write permission, then run this again.",
}  # fmt: skip
# What Spark says about an option whose value it cannot use.
BAD_OPTION = re.compile(
    r"The value '[^\n]*' in the config \"\S+\" is invalid\.|Illegal value for config key [^\n]+"
    r"|The codec \S+ is not available\."
)
# Errors after a lost connection: of a reader, or of the session that exported the snapshot. Newer PostgreSQL servers
# use the last wording.
LOST_CONNECTION = re.compile(r'OperationalError: (.*)|(invalid snapshot identifier|snapshot "[^"]*" does not exist)')


class ExecutorCheckFailed(Exception):
    """An executor cannot use the driver's lake, inputs, database or time zones. The message names its host."""


def summary(error: Exception) -> tuple[str, str]:
    """Return (class name, sentence) for an error. If the cause is unknown, the first lines of Spark's message."""
    message = str(error)
    for pattern, sentence in CAUSES.items():
        if found := re.search(pattern, message):
            return type(error).__name__, sentence.format(found.group())
    if reason := lost_connection_reason(message):
        return "DatabaseUnavailable", f"The database went away: {reason}. Run this again when the database is back."
    lines = [line for line in message.split("\n") if not re.match(r"\s+at ", line)]
    return type(error).__name__, "\n".join(lines[:LINES])


def bad_option(error: Exception) -> str:
    """Return a sentence if Spark cannot use the value of an option, else an empty string."""
    trace = getattr(error, "_stackTrace", "")  # of Java; the message may lack the cause
    found = BAD_OPTION.search(f"{error}\n{trace}")
    return f"A Spark option (--conf) is wrong: {found.group()}" if found else ""


def lost_connection_reason(message: str) -> str:
    """Return the reason if the message says that the database connection was lost, else an empty string."""
    found = LOST_CONNECTION.search(message)
    return (found[1] or found[2] or "").strip().rstrip(".") if found else ""


def is_slow_python(message: str) -> bool:
    """Return whether Spark timed out waiting for a Python worker to start."""
    return SLOW_PYTHON in message


def file_error_message(error: Exception) -> str:
    """Return a sentence for an error in opening, reading or writing a file."""
    if isinstance(error, ConnectionError):
        return f"A process or server that the run needs stopped answering: {error}. Run this again."
    return f"Cannot use a file: {error}. Free some space or give this user permission, then run this again."
