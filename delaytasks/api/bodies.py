"""Old import path of BodyLimit, kept for existing ASGI files. Use delaytasks.api.middleware."""

from .middleware import BodyLimit

__all__ = ["BodyLimit"]
