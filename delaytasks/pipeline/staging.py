"""What is to be loaded, on the disk before anything of it is in the table: chunks, rejects, and what was found."""

from typing import Any

from pyarrow import parquet
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from . import csvs, mapping, screening
from .lake import Lake
from .mapping import Terms
from .progress import say
from .screening import GOOD, REJECT, Limits
from .settings import BadSettings

FATAL = csvs.FATAL
CHUNK_ROWS = 50_000  # of one transaction: below a second
BAD_DATA = "22"  # of SQL's states: a value that an expression cannot do with
EMPTY: dict[str, Any] = {"read": 0, "rejected": {}, "chunks": []}


def stage(
    lake: Lake, folder: str, rows: DataFrame | None, terms: Terms, limits: Limits, spread_ms: int, source: str
) -> dict[str, Any]:
    """{"read", "rejected": reason -> {"rows", "first"}, "chunks": [[number, path, rows]]}. rows None: none."""
    if rows is None:
        return EMPTY
    say(f"reading {source}")
    mapped = mapping.mapped(rows, terms, source).transform(screening.spread, spread_ms)
    judged = screening.screened(mapped, limits)
    whole = judged.write.option("maxRecordsPerFile", CHUNK_ROWS).option("compression", "zstd").partitionBy("kind")
    try:
        whole.parquet(lake.uri(f"{folder}/staged"))
    except PySparkException as error:
        if not (error.getSqlState() or "").startswith(BAD_DATA):
            raise
        said = str(error).split("\n")[0].strip()
        where = _first_with(rows, _value(error)) or "a row"
        raise BadSettings(f"The mapping fails for {where}, and nothing was loaded: {said}") from error
    rejected = _rejected(judged, lake, folder)
    lake.settle(folder)
    chunks = _chunks(lake, f"{folder}/staged/kind={GOOD}")
    good, bad = sum(each[2] for each in chunks), sum(each["rows"] for each in rejected.values())
    say(f"{good + bad} rows read: {good} to load, {bad} rejected")
    return {"read": good + bad, "rejected": rejected, "chunks": chunks}


def _value(error: PySparkException) -> str:
    """The text that an expression could not do with; empty if Spark does not tell."""
    told = (error.getMessageParameters() or {}).get("expression", "")
    return told[1:-1] if told.startswith("'") and told.endswith("'") else ""


def _first_with(rows: DataFrame, value: str) -> str:
    """Where the first row is that has this value in a column as it was read; empty if none has."""
    columns = [F.col(f"`{name}`").cast("string") for name in rows.columns if name not in mapping.ABOUT]
    if not value or not columns:
        return ""
    about = F.struct(F.col(mapping.FILE).alias("file"), F.col(mapping.ROW).alias("row"))
    first = rows.where(F.lit(value).isin(*columns)).agg(F.min(about)).first()
    return _where(first[0]) if first and first[0] else ""


def _chunks(lake: Lake, folder: str) -> list[list[Any]]:
    chunks = []
    for number, (path, _) in enumerate(lake.parquet(folder)):
        with lake.files.open_input_file(lake.path(path)) as file:
            chunks.append([number, path, parquet.read_metadata(file).num_rows])
    return chunks


def _rejected(judged: DataFrame, lake: Lake, folder: str) -> dict[str, Any]:
    """Reason -> how many, and the first, with where it is; they are written as lines of JSON."""
    path = f"{folder}/staged/kind={REJECT}"
    if not lake.parquet(path):
        return {}
    schema = judged.drop("kind").schema
    found = judged.sparkSession.read.schema(schema).parquet(lake.uri(path))
    by_reason = found.groupBy("reason").agg(F.count("*").alias("rows"), F.min(F.struct("file", "row", "message")))
    rows = by_reason.orderBy(F.desc("rows"), "reason").collect()
    lines = found.select("file", "row", "reason", "message", F.try_parse_json("raw").alias("raw")).orderBy(
        "file", "row"
    )
    lines.write.json(lake.uri(f"{folder}/rejects"))
    lake.remove(path)
    return {row[0]: {"rows": row[1], "first": f"{_where(row[2])}: {row[2].message}"} for row in rows}


def _where(first: Any) -> str:
    return f"row {first.row} of {first.file}"


def forget_chunks(lake: Lake, folder: str) -> None:
    for each in ("staged", "asked"):
        if lake.has(f"{folder}/{each}"):
            lake.remove(f"{folder}/{each}")


def clear(lake: Lake, but: str) -> None:
    """Remove what other runs left and nobody needs: finished ones' chunks, and all of those that published nothing."""
    for folder in lake.runs("load"):
        if folder == f"load/{but}":
            continue
        document = lake.document(f"{folder}/run.json")
        if not document:
            lake.remove(folder)
        elif document.get("finished"):
            forget_chunks(lake, folder)
