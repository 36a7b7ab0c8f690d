"""The former home of BodyLimit. Use `from delaytasks.api.middleware import BodyLimit`."""

from typing import TYPE_CHECKING

__all__ = ["BodyLimit"]

if TYPE_CHECKING:
    from .middleware import BodyLimit
else:
    from ..deprecation import moved

    __getattr__ = moved(__name__, {"BodyLimit": "delaytasks.api.middleware"}, removed_in="0.4")
