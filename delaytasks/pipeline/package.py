"""Kept for programs that import zipped() from here. Use delaytasks.pipeline.spark.package."""

from .spark.package import zipped

__all__ = ["zipped"]
