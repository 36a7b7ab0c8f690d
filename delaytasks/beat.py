"""Keeps the former name of FallbackSchedule, because beat's schedule files contain pickles that refer to it."""

from .celery.beat import FallbackSchedule as WhenNoneMoves

__all__ = ["WhenNoneMoves"]
