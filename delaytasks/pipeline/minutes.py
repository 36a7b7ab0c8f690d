"""The former home of read(). Use delaytasks.pipeline.applications.minutes."""

from typing import TYPE_CHECKING

__all__ = ["read"]

if TYPE_CHECKING:
    from .applications.minutes import read
else:
    from ..deprecation import moved

    __getattr__ = moved(__name__, {"read": "delaytasks.pipeline.applications.minutes"}, removed_in="0.4")
