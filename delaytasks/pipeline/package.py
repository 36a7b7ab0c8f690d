"""The former home of zipped(). Use delaytasks.pipeline.spark.package."""

from typing import TYPE_CHECKING

__all__ = ["zipped"]

if TYPE_CHECKING:
    from .spark.package import zipped
else:
    from ..deprecation import moved

    __getattr__ = moved(__name__, {"zipped": "delaytasks.pipeline.spark.package"}, removed_in="0.4")
