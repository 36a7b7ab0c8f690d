"""Names that have moved: they work for a while, with a warning. docs/howto/upgrade.md has the policy."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["DelaytasksDeprecationWarning", "moved", "warn_moved"]


class DelaytasksDeprecationWarning(DeprecationWarning):
    """The code uses a name that a later version of delaytasks removes."""


def warn_moved(old: str, new: str, removed_in: str, *, stacklevel: int = 2) -> None:
    """Warn that `old` is now called `new`, and in which version `old` is removed.

    stacklevel   as in warnings.warn(): 2 attributes the warning to the line that called the caller of this function
    """
    text = f"{old} is now {new}. The old name will be removed in delaytasks {removed_in}."
    warnings.warn(text, DelaytasksDeprecationWarning, stacklevel=stacklevel + 1)


def moved(module: str, names: Mapping[str, str], *, removed_in: str) -> Callable[[str], object]:
    """Return the __getattr__ of a module whose names have moved: {"install": "delaytasks.celery"}.

    Each use of a name gives a DelaytasksDeprecationWarning in the line that uses it.
    """

    def getattr_moved(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_moved(f"{module}.{name}", f"{names[name]}.{name}", removed_in)
        return getattr(import_module(names[name]), name)

    return getattr_moved
