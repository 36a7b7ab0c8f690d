"""The former name of delaytasks.forwarding: imports from here keep working."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["Message", "Rejected", "Target", "TargetDown", "Webhook", "forward"]

if TYPE_CHECKING:
    from ..forwarding import Message, Rejected, Target, TargetDown, Webhook, forward
else:
    from importlib import import_module

    def __getattr__(name: str) -> object:
        return getattr(import_module("delaytasks.forwarding"), name)

    class _Shim(ModuleType):
        """This module is callable: once it is imported, `from delaytasks import forward` finds it, not the function."""

        def __call__(self, *args: Any, **options: Any) -> None:
            self.forward(*args, **options)

    sys.modules[__name__].__class__ = _Shim
