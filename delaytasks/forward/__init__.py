"""The former name of delaytasks.forwarding. The function `delaytasks.forward` keeps its name."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Message", "Rejected", "Target", "TargetDown", "Webhook", "forward"]

if TYPE_CHECKING:
    from ..forwarding import Message, Rejected, Target, TargetDown, Webhook, forward
else:
    from importlib import import_module

    from ..deprecation import moved

    __getattr__ = moved(__name__, dict.fromkeys(__all__, "delaytasks.forwarding"), removed_in="0.4")

    class _Function(ModuleType):
        """Make this module callable: once imported, it hides the function in `from delaytasks import forward`."""

        def __call__(self, *args: Any, **options: Any) -> None:
            import_module("delaytasks.forwarding").forward(*args, **options)

    sys.modules[__name__].__class__ = _Function
