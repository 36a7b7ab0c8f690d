"""Write the chunks and rejects of a load to the lake. This happens before any row is loaded into the database."""

from typing import Any

from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from ..config import BadSettings
from ..sources import csv_rows
from ..spark.progress import report_progress
from ..tables import row_counts
from ..tables.lake import Lake, for_reading
from ..transforms import mapping, screening
from ..transforms.mapping import WANTED, Terms
from ..transforms.screening import GOOD, REJECT, Limits

FATAL = csv_rows.FATAL
CHUNK_ROWS = 50_000  # maximum number of rows that one transaction loads
BAD_DATA = "22"  # SQLSTATE class "data exception": an expression cannot process a value
EMPTY: dict[str, Any] = {"read": 0, "skipped": 0, "rejected": {}, "chunks": []}


def write_chunks(
    lake: Lake, folder: str, rows: DataFrame | None, terms: Terms, limits: Limits, spread_ms: int, source: str
) -> dict[str, Any]:
    """Write the chunks and rejects. Return {"read", "skipped", "rejected", "chunks"}.

    rows       rows of the input; None: there are none, and nothing is written
    source     name of the input, for messages

    Members of the result:

    read       number of rows
    skipped    number of rows that the mapping's `when` leaves out
    rejected   reason -> {"rows": number of rows, "first": message about the first one}
    chunks     list of [number, path, rows]

    Raises BadSettings if an expression of the mapping fails for a value.
    """
    if rows is None:
        return EMPTY
    report_progress(f"reading {source}")
    # Evaluate `when` once, in the query that writes the rows: in another one current_timestamp() has another value.
    wanted, counts = rows.withColumn(WANTED, mapping.wanted_rows(rows, terms, source)), Observation()
    if terms.when:
        wanted = wanted.observe(counts, F.count_if(~F.col(WANTED)).alias("skipped"))
    mapped = mapping.map_columns(wanted.where(WANTED).drop(WANTED), terms, source, limits.zone).transform(
        screening.add_spread, spread_ms
    )
    screened = screening.screen(mapped, limits)
    options = {"maxRecordsPerFile": str(CHUNK_ROWS), "compression": "zstd"}
    try:
        written = row_counts.write(screened, lake, f"{folder}/staged", "kind", options=options)
    except PySparkException as error:
        if not (error.getSqlState() or "").startswith(BAD_DATA):
            raise
        reason = str(error).split("\n")[0].strip()
        location = _find_value(rows, _value(error)) or "a row"
        raise BadSettings(f"The mapping fails for {location}. Nothing was loaded: {reason}") from error
    skipped = 0
    if terms.when:  # without any wanted row, Spark removes the counts from its plan
        skipped = int(counts.get["skipped"]) if written else rows.count()
    rejects = _write_rejects(screened, lake, folder)
    lake.sync(folder)
    chunks = _chunks(lake, f"{folder}/staged/kind={GOOD}")
    good, bad = sum(each[2] for each in chunks), sum(each["rows"] for each in rejects.values())
    left_out = f", {skipped} skipped" if skipped else ""
    report_progress(f"{good + bad + skipped} rows read: {good} to load, {bad} rejected{left_out}")
    return {"read": good + bad + skipped, "skipped": skipped, "rejected": rejects, "chunks": chunks}


def _value(error: PySparkException) -> str:
    """Return the value that an expression could not process; "" if Spark's error does not contain it."""
    expression = (error.getMessageParameters() or {}).get("expression", "")
    return expression[1:-1] if expression.startswith("'") and expression.endswith("'") else ""


def _find_value(rows: DataFrame, value: str) -> str:
    """Return "row N of FILE" for the first row that has this value in any column; "" if there is none."""
    columns = [F.col(mapping.quoted(name)).cast("string") for name in rows.columns if name not in mapping.METADATA]
    if not value or not columns:
        return ""
    location = F.struct(F.col(mapping.FILE).alias("file"), F.col(mapping.ROW).alias("row"))
    first = rows.where(F.lit(value).isin(*columns)).agg(F.min(location)).first()
    return _location(first[0]) if first and first[0] else ""


def _chunks(lake: Lake, folder: str) -> list[list[Any]]:
    chunks = []
    for number, (path, _) in enumerate(lake.parquet(folder)):
        with lake.files.open_input_file(lake.path(path)) as file:
            chunks.append([number, path, parquet.read_metadata(file).num_rows])
    return chunks


def _write_rejects(screened: DataFrame, lake: Lake, folder: str) -> dict[str, Any]:
    """Write the rejects as JSON lines. Return reason -> {"rows": number of rows, "first": location and message}."""
    path = f"{folder}/staged/kind={REJECT}"
    if not lake.parquet(path):
        return {}
    schema = screened.drop("kind").schema
    reject_rows = screened.sparkSession.read.schema(schema).parquet(for_reading(lake.uri(path)))
    by_reason = reject_rows.groupBy("reason").agg(F.count("*").alias("rows"), F.min(F.struct("file", "row", "message")))
    rows = by_reason.orderBy(F.desc("rows"), "reason").collect()
    lines = reject_rows.select("file", "row", "reason", "message", F.try_parse_json("raw").alias("raw")).orderBy(
        "file", "row"
    )
    row_counts.write(lines, lake, f"{folder}/rejects", kind="json")
    lake.remove(path)
    return {row[0]: {"rows": row[1], "first": f"{_location(row[2])}: {row[2].message}"} for row in rows}


def _location(first: Any) -> str:
    return f"row {first.row} of {first.file}"


def remove_chunks(lake: Lake, folder: str) -> None:
    for each in ("staged", "asked"):
        if lake.has(f"{folder}/{each}"):
            lake.remove(f"{folder}/{each}")


def clear(lake: Lake, current: str) -> None:
    """Remove the chunks of finished runs, and all files of runs that published nothing.

    current   name of the run whose files are kept in any case
    """
    for folder in lake.runs("load"):
        if folder == f"load/{current}":
            continue
        document = lake.document(f"{folder}/run.json")
        if not document:
            lake.remove(folder)
        elif document.get("finished"):
            remove_chunks(lake, folder)
