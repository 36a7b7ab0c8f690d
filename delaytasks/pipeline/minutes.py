"""Kept for programs that import read() from here. Use delaytasks.pipeline.applications.minutes."""

from .applications.minutes import read

__all__ = ["read"]
