"""The former home of Lake. Use delaytasks.pipeline.tables.lake."""

from typing import TYPE_CHECKING

__all__ = ["Lake", "LakeError"]

if TYPE_CHECKING:
    from .tables.lake import Lake, LakeError
else:
    from ..deprecation import moved

    __getattr__ = moved(__name__, dict.fromkeys(__all__, "delaytasks.pipeline.tables.lake"), removed_in="0.4")
