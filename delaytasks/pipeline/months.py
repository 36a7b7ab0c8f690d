"""The hours that reports have worked out, as they lie in the lake: month by month, each whole in one run's folder."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from . import schemas
from .hours import Wanted, month_of
from .lake import Lake, LakeError

Months = dict[str, str]  # "2030-02" -> its folder below the lake


def since(document: Mapping[str, Any], first_ms: int) -> Months:
    """The months of a report's document that have hours from first_ms on."""
    return {month: folder for month, folder in document["months"].items() if month >= month_of(first_ms)}


def changed(document: Mapping[str, Any], want: Wanted) -> Months:
    """The months that have hours which were worked out."""
    before = {month_of(hour_ms) for hour_ms in want.before}
    return since(document, want.since_ms) | {
        month: folder for month, folder in document["months"].items() if month in before
    }


def told(lake: Lake, before: Mapping[str, Any], new: Months) -> dict[str, Any]:
    """{"months", "files"} of a report's document: where each month lies, and how many bytes its files have."""
    months = before.get("months", {}) | new
    files = before.get("files", {}) | {path: size for each in new.values() for path, size in lake.parquet(each)}
    return {"months": months, "files": {path: files[path] for path in files if _folder(path) in months.values()}}


def read(spark: SparkSession, lake: Lake, document: Mapping[str, Any], months: Months) -> DataFrame:
    """schemas.HOURS of these months. Raises LakeError for a file that is gone or not as it was written."""
    for folder in months.values():
        named = {path: size for path, size in document["files"].items() if _folder(path) == folder}
        _check(lake, folder, named)
    frames = [spark.read.schema(schemas.HOURS).parquet(lake.uri(path)) for path in months.values()]
    return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], schemas.HOURS)


def _check(lake: Lake, folder: str, named: Mapping[str, int]) -> None:
    there = dict(lake.parquet(folder))
    wrong: Iterable[str] = {path for path in {*named, *there} if named.get(path) != there.get(path)}
    if wrong or not named:
        raise LakeError(
            f"The hours of reports are not whole: {lake.path(min(wrong, default=folder))} is gone, or not as it was "
            "written. Put it back from a copy; or remove report.json, and the next report works everything out anew."
        )


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
