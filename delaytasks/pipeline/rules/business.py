"""Check and read the business rows of a rule, from a table in the jobs' database or from Parquet files.

Every mistake raises BadRule with one sentence. Types are never inferred: a stored column that cannot be read as the
rule's type is refused.
"""

import re
from collections.abc import Collection
from functools import reduce

import pyarrow
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import NumericType, StringType

from ..delays import due_times
from ..sources import arrow, exports, nanoseconds, relations
from ..sources.snapshot import Snapshot
from .rules import OUTCOME_TIMES, Rule
from .types import INTEGERS, SIMPLE, can_read, no_column, schema_of

POSTGRESQL = {
    "smallint": "smallint", "integer": "int", "bigint": "bigint", "boolean": "boolean", "date": "date",
    "timestamp with time zone": "timestamp", "double precision": "double", "real": "double", "numeric": "decimal",
}  # fmt: skip
SQLITE = {  # Django's type names. Integer types map to smallint, so that they can be read as any integer type
    "integer": "smallint", "bigint": "smallint", "smallint": "smallint", "int": "smallint", "bool": "boolean",
    "boolean": "boolean", "date": "date", "datetime": "timestamp", "timestamp": "timestamp", "real": "double",
    "double": "double", "float": "double", "decimal": "decimal", "numeric": "decimal",
}  # fmt: skip
COLUMNS_QUERY = {
    "postgresql": "SELECT CAST(attname AS text), format_type(atttypid, NULL) || "
    "CASE typtype WHEN 'c' THEN ' composite' ELSE '' END FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid "
    "WHERE attrelid = to_regclass({}) AND attnum > 0 AND NOT attisdropped",
    # A JSONField of Django is a text column with a check.
    "sqlite": "SELECT c.name, iif(instr(t.sql, 'JSON_VALID(\"' || c.name || '\")'), 'json', lower(c.type)) "
    "FROM sqlite_master AS t, pragma_table_info(t.name) AS c WHERE t.name = {} COLLATE NOCASE",
}
IS_TABLE = {
    # Rows of a foreign table, also as a partition, are not in the snapshot.
    "postgresql": "SELECT relkind IN ('r', 'p', 'm') AND NOT EXISTS (SELECT 1 FROM pg_partition_tree(rel.oid) AS each "
    "JOIN pg_class AS part ON part.oid = each.relid WHERE part.relkind = 'f') "
    "FROM pg_class AS rel WHERE rel.oid = to_regclass({})",
    "sqlite": "SELECT type = 'table' FROM sqlite_master WHERE name = {} COLLATE NOCASE AND type IN ('table', 'view')",
}
NESTED = re.compile(r"(json|jsonb|xml|hstore|.*\[\]|.* composite)")  # stored types that `carry` cannot use
# An error with a SQLSTATE of the class "data exception", or of raise_error().
ROW_ERROR = re.compile(r"\[[A-Z0-9_.]+\] ([^\n]+) SQLSTATE: (?:22\w{3}|P0001)")
BAD_VALUE = re.compile(rf"\b{arrow.BadValue.__name__}: (\w+):")


def validate(spark: SparkSession, rule: Rule) -> None:
    """Check the rule's expressions, without reading rows.

    Raises BadRule if Spark cannot parse an expression, if it has a wrong type or if it uses an unknown column.
    """
    empty = spark.createDataFrame([], schema_of(rule))
    allowed = {"key": ("string", *INTEGERS), "since": ("timestamp",), "when": ("boolean",), "holds": ("boolean",)}
    allowed |= {"outcome": ("boolean",)} if rule.outcome else {}
    times = dict.fromkeys(OUTCOME_TIMES, F.lit(None).cast("timestamp"))
    for field, kinds in allowed.items():
        text = getattr(rule, field)
        frame = empty.withColumns(times) if field == "outcome" else empty
        try:  # in a WHERE, which allows neither aggregates nor generators
            actual = frame.where(F.expr(text).isNotNull()).select(F.expr(text).alias("it")).schema["it"].dataType
        except PySparkException as error:
            raise rule.bad(field, f"{text!r} is not a valid expression: {message_of(error)}.") from error
        if not any(type(actual) is type(SIMPLE[kind]) for kind in kinds):
            names = " or ".join(kinds)
            raise rule.bad(field, f"{text!r} is {actual.simpleString()}, but must be {names}.")
    if not rule.duration:
        _validate_delay(rule, empty)


def _validate_delay(rule: Rule, empty: DataFrame) -> None:
    text = due_times.parenthesized(rule.delay)
    try:
        kind = empty.where(F.expr(text).isNotNull()).select(F.expr(text).alias("it")).schema["it"].dataType
        due_times.from_expression(rule.delay, kind, zone=rule.zone, calendar=rule.calendar)
    except PySparkException as error:
        raise rule.bad("delay", f"{rule.delay!r} is not a valid expression: {message_of(error)}.") from error
    except due_times.BadDelayType as error:
        raise rule.bad("delay", f"{rule.delay!r} {error}") from error
    if isinstance(kind, StringType):
        raise rule.bad("delay", f"{rule.delay!r} is string, but must be a number of seconds or an interval.")
    if rule.zone and isinstance(kind, NumericType):
        raise rule.bad(
            "zone",
            f"it has no meaning for {rule.delay!r}, a number of seconds; for days write CAST(… AS INTERVAL DAY).",
        )


def message_of(error: Exception) -> str:
    """Return the first line of a Spark error's message, without the error class and SQLSTATE."""
    first = str(error).strip().split("\n")[0]
    return re.sub(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w+.*$", "", first).strip().rstrip(".;")


def translate(rule: Rule, error: Exception) -> Exception:
    """Return a BadRule if a value of a row could not be read or an expression failed on it, else the error itself."""
    bad = BAD_VALUE.search(str(error))
    if bad and (name := bad[1]) in rule.columns:
        return rule.bad("columns", f"a value of {name} in {rule.source} cannot be read as {rule.columns[name]}.")
    found = ROW_ERROR.search(str(error))
    reason = found[1].split(". ")[0].rstrip(".") if found else ""
    return (
        rule.bad("key, since, delay, when, holds, outcome", f"an expression fails on a row: {reason}.")
        if found
        else error
    )


def rows(spark: SparkSession, snapshot: Snapshot, rule: Rule) -> tuple[DataFrame, int | None]:
    """Return the business rows with the rule's columns, and their number by the database or by the files' footers.

    The number is None for a view: its rows may depend on the time, and each range of ids is read at another time.

    Raises BadRule if a column is missing or has another type.
    """
    if rule.table:
        total = _check_table(snapshot, rule)
        return arrow.read_table(spark, snapshot, rule.table, schema_of(rule)), total
    files, total = exports.checked_files(rule)
    return reduce(DataFrame.union, [_read_parquet(spark, rule, names, uris) for names, uris in files.items()]), total


def _read_parquet(spark: SparkSession, rule: Rule, names: Collection[str], uris: list[str]) -> DataFrame:
    """Return the rows of these files. names: columns that the files store in nanoseconds.

    A text that is not UTF-8, which not all writers check, becomes an error on its row.
    """
    schema = schema_of(rule)
    frame = spark.read.schema(nanoseconds.as_integers(schema, names)).parquet(*uris)
    stored = pyarrow.timestamp("ns", "UTC")
    values = {each: nanoseconds.to_timestamps(F.col(each), stored) for each in names}
    values |= {each.name: F.validate_utf8(each.name) for each in schema if isinstance(each.dataType, StringType)}
    return frame.select(*(values.get(each, F.col(each)).alias(each) for each in schema.names))


# A table


def _check_table(snapshot: Snapshot, rule: Rule) -> int | None:
    """Return the number of rows, as rows() does. Raises BadRule if the table does not fit the rule."""
    vendor = snapshot.database.vendor
    table = relations.quoted(rule.table) if vendor == "postgresql" else rule.table
    columns = snapshot.query(COLUMNS_QUERY[vendor], [table])
    actual = {name: kind.partition("(")[0].removesuffix(" unsigned") for name, kind in columns}
    if not actual:
        raise rule.bad("table", f"{snapshot.database} has no table {rule.table!r}.")
    types = POSTGRESQL if vendor == "postgresql" else SQLITE
    if types.get(actual.get("id", "")) not in INTEGERS:
        raise rule.bad("table", f"{rule.table} has no integer column id, which is needed to read it in ranges.")
    for name, allowed in rule.columns.items():
        if name not in actual:
            raise rule.bad("columns", no_column(rule.table, name, actual))
        if not can_read(types.get(actual[name], "string"), allowed, as_text=True):
            raise rule.bad("columns", f"{name} is {actual[name]} in {rule.table}, which cannot be read as {allowed}.")
    for name in rule.carry:
        if NESTED.fullmatch(actual[name]):
            raise rule.bad("carry", f"{name} is {actual[name]} in {rule.table}, which is nested.")
    ((total, readable),) = snapshot.query(f"SELECT count(*), count(id) FROM {relations.quoted(rule.table)}")
    if total > readable:
        raise rule.bad("table", f"{rule.table} has {total - readable} rows whose id is null, which cannot be read.")
    ((is_table,),) = snapshot.query(IS_TABLE[vendor], [table])
    return int(total) if is_table else None
