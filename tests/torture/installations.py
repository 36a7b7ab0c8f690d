"""Kinds of installation for faults that need one of their own: name -> how to set it up."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from .arena import Arena

INSTALLATIONS: dict[str, Callable[[Path, str], AbstractContextManager[Arena]]] = {}
