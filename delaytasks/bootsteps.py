"""The former home of install(). Use `from delaytasks.celery import install`."""

from typing import TYPE_CHECKING

__all__ = ["install"]

if TYPE_CHECKING:
    from .celery import install
else:
    from .deprecation import moved

    __getattr__ = moved(__name__, {"install": "delaytasks.celery"}, removed_in="0.4")
