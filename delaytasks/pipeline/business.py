"""The business's rows that a rule speaks of: from a table beside the jobs or from Parquet, checked and then read.

Every mistake is a BadRule with one sentence. Nothing is guessed: what has not the rule's types is refused.
"""

import re

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from . import exports, sources
from .rules import Rule
from .ruletypes import SIMPLE, WHOLE, fits, no_column, schema_of
from .snapshot import Snapshot

POSTGRESQL = {
    "smallint": "smallint", "integer": "int", "bigint": "bigint", "boolean": "boolean", "date": "date",
    "timestamp with time zone": "timestamp", "double precision": "double", "real": "double", "numeric": "decimal",
}  # fmt: skip
SQLITE = {  # what Django calls them there; a whole number has up to 64 bits, whatever its name
    "integer": "smallint", "bigint": "smallint", "smallint": "smallint", "int": "smallint", "bool": "boolean",
    "boolean": "boolean", "date": "date", "datetime": "timestamp", "timestamp": "timestamp", "real": "double",
    "double": "double", "float": "double", "decimal": "decimal", "numeric": "decimal",
}  # fmt: skip
DESCRIBED = {
    "postgresql": "SELECT CAST(attname AS text), format_type(atttypid, NULL) FROM pg_attribute "
    "WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped",
    "sqlite": "SELECT name, lower(type) FROM pragma_table_info({})",
}
ROWS_FAIL = re.compile(r"\[(?:CAST_INVALID_INPUT|CAST_OVERFLOW|DIVIDE_BY_ZERO|ARITHMETIC_OVERFLOW)[^]]*\] ([^\n]+)")


def understood(spark: SparkSession, rule: Rule) -> None:
    """Raises BadRule for an expression that Spark cannot read, that names other columns or is of no use there."""
    empty = spark.createDataFrame([], schema_of(rule))
    wanted = {"key": ("string", *WHOLE), "since": ("timestamp",), "when": ("boolean",), "holds": ("boolean",)}
    for field, kinds in wanted.items():
        text = getattr(rule, field)
        try:  # in a WHERE, where nothing may stand that is not of one row
            found = empty.where(F.expr(text).isNotNull()).select(F.expr(text).alias("it")).schema["it"].dataType
        except PySparkException as error:
            raise rule.bad(field, f"{text!r} cannot be worked out: {sentence(error)}.") from error
        if not any(type(found) is type(SIMPLE[kind]) for kind in kinds):
            may = " or ".join(kinds)
            raise rule.bad(field, f"{text!r} is {found.simpleString()}; {may} may stand there.")


def sentence(error: Exception) -> str:
    """What Spark says, without its codes and its plan."""
    first = str(error).strip().split("\n")[0]
    return re.sub(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w+.*$", "", first).strip().rstrip(".;")


def failed(rule: Rule, error: Exception) -> Exception:
    """What to raise where the rows were worked out: an expression that fails on one of them is the rule's mistake."""
    found = ROWS_FAIL.search(str(error))
    said = found[1].split(" SQLSTATE")[0].split(". ")[0] if found else ""
    return rule.bad("key, since, when, holds", f"one of them fails on a row: {said}.") if found else error


def rows(spark: SparkSession, taken: Snapshot, rule: Rule) -> DataFrame:
    """The rule's columns. Raises BadRule."""
    if rule.table:
        _check_table(taken, rule)
        return sources.read_table(spark, taken, rule.table, schema_of(rule))
    return spark.read.schema(schema_of(rule)).parquet(*exports.checked(rule))


# A table


def _check_table(taken: Snapshot, rule: Rule) -> None:
    vendor = taken.database.vendor
    named = ".".join(f'"{part}"' for part in rule.table.split(".")) if vendor == "postgresql" else rule.table
    found = {
        name: kind.partition("(")[0].removesuffix(" unsigned") for name, kind in taken.ask(DESCRIBED[vendor], [named])
    }
    if not found:
        raise rule.bad("table", f"{taken.database} has no table {rule.table!r}.")
    known = POSTGRESQL if vendor == "postgresql" else SQLITE
    if known.get(found.get("id", "")) not in WHOLE:
        raise rule.bad("table", f"{rule.table} has no whole-number id, by which it is read in parts.")
    for name, wanted in rule.columns.items():
        if name not in found:
            raise rule.bad("columns", no_column(rule.table, name, found))
        if not fits(known.get(found[name], "string"), wanted, anything=True):
            raise rule.bad("columns", f"{name} is {found[name]} in {rule.table}, which cannot be read as {wanted}.")
