"""Compute an audit's figures: of all rows, of each week, and of each value of the columns that a rule carries.

A dimension is a carried column, such as a customer's segment. The carried values stay with each key during the
classification, so that the business rows are read only once. The columns that the rule's outcome uses are kept, too:
the outcome can be evaluated only after the rows are joined with their jobs.
"""

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DecimalType, MapType, StringType, StructField

from ..rules.rules import AS_OF, BEGUN_AT, CLASSES, STATUSES, BadRule, Rule

ALL = ""  # dimension of the figures of all rows; its only value is null
WEEK = "week made"  # dimension of the week in which a job was made; no column has this name: it has a space
UTC = "UTC"
MAX_VALUES = 1_000  # different values of a dimension
MAX_LENGTH = 100  # characters of a value; longer values are shortened
HASH_LENGTH = 8  # characters of the hash that distinguishes shortened values
ACCURACY = 10_000  # of percentile_approx(), for the median
AMOUNT = DecimalType(28, 6)  # its sums are decimal(38, 6)
CARRIED = [  # columns of a classified key
    StructField("carry", MapType(StringType(), StringType(), True), False),  # dimension -> value; empty without `carry`
    StructField("amount", AMOUNT, True),
    StructField("outcome", BooleanType(), True),  # null: no outcome in the rule, not known yet, or job has not begun
]
OUTCOMES = ("outcome_yes", "outcome_no", "outcome_unknown")
BY_KEY = "by key"  # no rule's column has this name: it has a space


def carried(rule: Rule, promised: Column) -> Column:
    """Return a struct with a row's carried values, its amount and the columns of the outcome. Needs the rule's columns.

    `promised`, whether the row requires a job, is the first member. So the maximum over the rows of a key is taken from
    a row that requires a job, if there is one.
    """
    values = F.array(*(_shortened(F.col(f"`{name}`").cast("string")) for name in rule.carry)).cast("array<string>")
    kind = AMOUNT.simpleString()
    # NaN and numbers with more than 22 digits before the point become null. Their rows count as without an amount.
    amount = F.expr(f"try_cast(`{rule.amount}` AS {kind})") if rule.amount else F.lit(None).cast(kind)
    fields = [promised.alias("promised"), values.alias("values"), amount.alias("amount")]
    used = [F.col(f"`{name}`") for name in rule.outcome_columns]
    return F.struct(*fields, *([F.struct(*used).alias("row")] if used else []))


def is_needed(rule: Rule) -> bool:
    """Return whether columns of the business rows are needed after the rows are joined with their jobs."""
    return bool(rule.carry or rule.outcome_columns)


def _shortened(value: Column) -> Column:
    mark = F.concat(F.lit("… ("), F.left(F.md5(value), F.lit(HASH_LENGTH)), F.lit(")"))
    return F.when(F.length(value) > MAX_LENGTH, F.concat(F.left(value, F.lit(MAX_LENGTH)), mark)).otherwise(value)


def columns(rule: Rule) -> list[Column]:
    """Return the columns carry and amount of a key. If the rule has `carry`, needs the column carried of by_key()."""
    if not rule.carry:
        nothing = F.create_map().cast("map<string, string>")
        return [nothing.alias("carry"), F.lit(None).cast(AMOUNT).alias("amount")]
    names = F.array(*map(F.lit, rule.carry))
    nulls = F.array(*(F.lit(None).cast("string") for _ in rule.carry))  # an orphan has no row
    values = F.map_from_arrays(names, F.coalesce("carried.values", nulls))
    return [values.alias("carry"), F.col("carried.amount").alias("amount")]


def with_outcome(keys: DataFrame, rule: Rule, now_ms: int) -> DataFrame:
    """Add the column outcome: null for keys without a row or whose job has not begun. Needs first_ms and rows.

    The rule's expression can use the rule's columns, BEGUN_AT and AS_OF, but not the columns of `keys`, which may have
    the same names.

    now_ms   time of the snapshot, in ms since 1970
    """
    if not rule.outcome:
        return keys.withColumn("outcome", F.lit(None).cast("boolean"))
    row = ["carried.row.*"] if rule.outcome_columns else []
    times = {BEGUN_AT: F.col("first_ms"), AS_OF: F.lit(now_ms)}
    scope = keys.select(
        F.struct("*").alias(BY_KEY), *row, *(F.timestamp_millis(ms).alias(name) for name, ms in times.items())
    )
    asked = (F.col(f"`{BY_KEY}`.rows") > 0) & F.col(BEGUN_AT).isNotNull()
    return scope.select(f"`{BY_KEY}`.*", F.when(asked, F.expr(rule.outcome)).alias("outcome"))


def by_value(classified: DataFrame, rule: Rule) -> dict[str, list[dict[str, Any]]]:
    """Return dimension -> the figures of each value, the worst value first. classified: the columns CLASSIFIED.

    The dimension ALL has one value, None, with the figures of all rows. The dimension WEEK has a value for each week in
    which a key's first job was made, in order of time: its Monday, such as "2030-02-04", in the rule's zone or in UTC.

    value           text; None: rows whose column is null, and orphans
    rows            number of business rows
    classes         class -> number of keys
    faults          number of keys in classes that must be empty
    STATUSES        number of keys with each status; keys without a job have none
    kept_share      `kept` / all keys except the open ones; None: all are open
    late_p50_ms, late_worst_ms    lateness of the jobs that began or are overdue; None: there are none
    amounts         class -> sum of the amounts, as text; None: the rule has no amount
    cost            sum of the amounts in classes that must be empty, as text; None: the rule has no amount
    without_amount  number of keys with a row that has no amount; None: the rule has no amount
    outcome_yes, outcome_no, outcome_unknown    number of keys with a row whose job has begun, by the rule's outcome;
                    None: the rule has no outcome
    outcome_share   outcome_yes / the sum of the three; None: the sum is 0, or the rule has no outcome

    Raises BadRule if a column has more than MAX_VALUES values.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in (ALL, WEEK, *rule.carry)}
    values: Counter[str] = Counter()
    for row in summarize(classified, rule).toLocalIterator():  # not all at once: there may be a million
        values[row.dimension] += row.value is not None
        if row.dimension in rule.carry and values[row.dimension] > MAX_VALUES:
            raise _too_many_values(rule, row.dimension)
        found[row.dimension].append(_figures(row.asDict(), rule))
    found[ALL] = found[ALL] or [_figures({}, rule)]
    for name, each in found.items():
        each.sort(key=(lambda figures: figures["value"]) if name == WEEK else _worst_first)
    return found


def _too_many_values(rule: Rule, name: str) -> BadRule:
    return rule.bad(
        "carry",
        f"{name} has more than {MAX_VALUES:,} different values in {rule.source}. Carry a column with fewer values, "
        "such as one that groups them.",
    )


def summarize(classified: DataFrame, rule: Rule) -> DataFrame:
    """Return a row for each dimension and value, with counts and lateness. Needs the columns CLASSIFIED.

    Sums of amounts and outcomes are computed only if the rule has these, because each sum costs time for every key.
    """
    week = F.to_date(F.date_trunc("week", F.from_utc_timestamp("made_at", rule.zone or UTC))).cast("string")
    always = [F.struct(F.lit(name).alias("key"), value.alias("value"))
              for name, value in ((ALL, F.lit(None).cast("string")), (WEEK, week))]  # fmt: skip
    values = F.concat(F.array(*always), F.map_entries("carry")) if rule.carry else F.array(*always)
    begun = (F.col("rows") > 0) & F.col("begun_at").isNotNull()
    exploded = classified.select(
        "rows", "status", "late_ms", "amount", "outcome", begun.alias("begun"), F.col("class").alias("name"),
        F.inline(values).alias("dimension", "value"),
    )  # fmt: skip
    weekly = exploded.where((F.col("dimension") != WEEK) | F.col("value").isNotNull())  # null: there is no job
    return weekly.groupBy("dimension", "value").agg(
        F.sum("rows").alias("rows"),
        F.percentile_approx("late_ms", 0.5, ACCURACY).alias("late_p50_ms"),
        F.max("late_ms").alias("late_worst_ms"),
        *(F.count_if(F.col("status") == name).alias(name) for name in STATUSES),
        *(F.count_if(F.col("name") == name).alias(name) for name in CLASSES),
        *(_outcomes() if rule.outcome else ()),
        *(_amounts() if rule.amount else ()),
    )


def _outcomes() -> list[Column]:
    outcome = F.col("outcome")
    asked = (outcome, ~outcome, F.col("begun") & outcome.isNull())
    return [F.count_if(condition).alias(name) for condition, name in zip(asked, OUTCOMES, strict=True)]


def _amounts() -> list[Column]:
    amount = F.col("amount")
    sums = [F.sum(F.when(F.col("name") == name, amount)).alias(f"{name}_amount") for name in CLASSES]
    return [F.count_if((F.col("rows") > 0) & amount.isNull()).alias("without_amount"), *sums]


def _figures(row: Mapping[str, Any], rule: Rule) -> dict[str, Any]:
    """Return the figures from a row of summarize(). {}: there are no keys, so all numbers are 0."""
    classes = {name: row.get(name, 0) for name in CLASSES}
    amounts = {name: row.get(f"{name}_amount") or Decimal() for name in CLASSES}
    closed = sum(classes.values()) - classes["open"]
    figures = {
        "value": row.get("value"), "rows": row.get("rows", 0), "classes": classes,
        **{name: row.get(name, 0) for name in STATUSES},
        "faults": sum(classes[name] for name in rule.faults),
        "kept_share": classes["kept"] / closed if closed else None,
        "late_p50_ms": row.get("late_p50_ms"), "late_worst_ms": row.get("late_worst_ms"),
        "amounts": None, "cost": None, "without_amount": None, **dict.fromkeys(OUTCOMES), "outcome_share": None,
    }  # fmt: skip
    if rule.outcome:
        figures |= {name: row.get(name, 0) for name in OUTCOMES}
        begun = sum(figures[name] for name in OUTCOMES)
        figures["outcome_share"] = figures["outcome_yes"] / begun if begun else None
    if rule.amount:
        figures["amounts"] = {name: plain(amount) for name, amount in amounts.items()}
        figures["cost"] = plain(sum((amounts[name] for name in rule.faults), Decimal()))
        figures["without_amount"] = row.get("without_amount", 0)
    return figures


def plain(amount: Decimal) -> str:
    """Return an amount as text, without an exponent or zeros at the end."""
    text = format(amount, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _worst_first(each: dict[str, Any]) -> tuple[Any, ...]:
    share = 1.0 if each["kept_share"] is None else each["kept_share"]
    worst_ms = each["late_worst_ms"] or 0
    return -Decimal(each["cost"] or 0), -each["faults"], share, -worst_ms, each["value"] is None, each["value"] or ""
