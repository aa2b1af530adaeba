"""Import of torchvision without torch's compiler.

``torchvision.ops.roi_align`` imports one function of ``torch._dynamo``, torch's compiler. That
import takes several times as long as the rest of torchvision, in every worker process of a run, and
no net of a model group compiles anything.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from threading import Lock
from types import ModuleType
from typing import Any

_COMPILER = "torch._dynamo"
_UTILS = f"{_COMPILER}.utils"
_lock = Lock()


def import_torchvision() -> Any:  # noqa: ANN401 - a module
    """Import and return ``torchvision.models``.

    In place of the compiler, torchvision gets functions that import the compiler when they are
    called. If the compiler is imported already, this is a plain import.
    """
    with _lock:
        if "torchvision" in sys.modules or _COMPILER in sys.modules:
            return importlib.import_module("torchvision.models")
        stand_in, utils = ModuleType(_COMPILER), ModuleType(_UTILS)
        stand_in.__path__ = []
        utils.__getattr__ = _calling  # type: ignore[method-assign]
        sys.modules |= {_COMPILER: stand_in, _UTILS: utils}
        try:
            return importlib.import_module("torchvision.models")
        finally:
            del sys.modules[_COMPILER], sys.modules[_UTILS]


def _calling(name: str) -> Callable[..., Any]:
    """Return a function that calls the compiler's function of this name."""
    if name.startswith("__"):
        raise AttributeError(name)

    def call(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - as the compiler's function
        return getattr(importlib.import_module(_UTILS), name)(*args, **named)

    return call
