"""Kept for programs that import Lake from here. Use delaytasks.pipeline.tables.lake."""

from .tables.lake import Lake, LakeError

__all__ = ["Lake", "LakeError"]
