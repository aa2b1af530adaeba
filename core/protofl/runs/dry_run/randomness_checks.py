"""Checks for random numbers that a run cannot repeat, because no seed of the run covers them."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode, resolve_name

from protofl.errors import UsageError
from protofl.system.randomness import OTHERS, others_draw

SEEDED = (
    *("setup_server", "setup_client", "before_training", "local_loss", "after_batch"),
    *("after_training", "receive_uploads", "server_aggregate", "server_train"),
)
"""Hooks for which torch's global generators are seeded by seed, purpose, round and client."""

_SOURCES = {
    "Python's random": "client.generator(purpose) or server.generator(purpose) with torch, or "
    "random.Random(seed) of a number drawn from it",
    "NumPy's global generator": "client.generator(purpose) or server.generator(purpose) with "
    "torch; where NumPy or scikit-learn has to draw, give it a number drawn from that one as seed",
    "a NumPy generator without a seed": "give it as seed a number drawn from "
    "client.generator(purpose) or server.generator(purpose)",
    "torch's global generator": "draw with generator=client.generator(purpose), on the server "
    "server.generator(purpose)",
}
"""Sources of random numbers that a second run cannot repeat, with the alternative to each."""


class GlobalRandomness:
    """Detects hooks that draw from global random generators.

    A draw counts where a hook makes it whenever it is called, at least twice, and where no other
    thread of the process draws.
    """

    def __init__(self) -> None:
        self._called: Counter[str] = Counter()
        self._drawn: Counter[tuple[str, str]] = Counter()
        self._unseeded = 0

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Count this thread's calls of ``np.random.default_rng()`` without a seed in the block."""
        plain, thread = np.random.default_rng, get_ident()

        def counted(seed: Any = None) -> np.random.Generator:  # noqa: ANN401 - as NumPy takes it
            self._unseeded += seed is None and get_ident() == thread
            return plain(seed)

        with patch.object(np.random, "default_rng", counted):
            yield

    def watched(self, who: str, hook: str, do: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a hook, and note which generators it draws from."""
        before = self._states(hook)
        result = do()
        self._called[who] += 1
        after = self._states(hook)
        for source in _SOURCES:
            if before[source] != after[source]:
                self._drawn[who, source] += 1
        return result

    def _states(self, hook: str) -> dict[str, Any]:
        numpy, states = np.random.get_state(legacy=False)["state"], list[torch.Tensor]()
        if hook not in SEEDED:
            states.append(torch.get_rng_state())
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                states += torch.cuda.get_rng_state_all()
        return {
            "Python's random": random.getstate(),
            "NumPy's global generator": (numpy["pos"], numpy["key"].tobytes()),
            "a NumPy generator without a seed": self._unseeded,
            "torch's global generator": [state.numpy().tobytes() for state in states],
        }

    def _state(self, source: str) -> Any:  # noqa: ANN401
        return self._states("")[source]

    def conclude(self) -> None:
        """Check the draws of all hooks.

        Raises:
            UsageError: One of them draws what a second run would draw otherwise, or another thread
                draws from the generator of the run.
        """
        for (who, source), count in self._drawn.items():
            if count >= min(2, self._called[who]):
                if others_draw(partial(self._state, source)):
                    if source == "torch's global generator":
                        raise UsageError(*OTHERS)
                    continue
                raise UsageError(
                    f"{who} draws from {source}, or seeds it",
                    "a run depends on its configuration and seed alone, and could not be repeated",
                    _SOURCES[source],
                )


# --- inside a loss --------------------------------------------------------------------------------

NUMBERS = {
    *("item", "tolist", "numpy", "__array__"),
    *("__bool__", "__int__", "__float__", "__index__"),
}
"""Functions that convert tensors to numbers."""

DRAWS = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
    *("normal", "bernoulli", "multinomial", "poisson", "binomial", "gumbel_softmax"),
    *("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_"),
    *("geometric_", "dropout", "dropout_", "alpha_dropout", "feature_alpha_dropout"),
    *("dropout1d", "dropout2d", "dropout3d", "rrelu", "rrelu_"),
}
"""Functions that draw random numbers."""

_TORCH = str(Path(torch.__file__).parent)


class LossCalls(TorchFunctionMode):
    """Detects tensors converted to numbers and random draws, except in modules (dropout).

    Attributes:
        found: {``number`` or ``draw``: the function, and where it was called}.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._modules = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's
        """Note a call of torch, and carry it out."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in NUMBERS:
            self._note("number", func)
        elif name in DRAWS and kwargs.get("generator") is None and kwargs.get("training", True):
            self._note("draw", func)
        return func(*args, **kwargs)

    def _note(self, kind: str, func: Any) -> None:  # noqa: ANN401
        if self._modules or kind in self.found:
            return
        calls = [f for f in traceback.extract_stack()[:-2] if not f.filename.startswith(_TORCH)]
        place = f"{Path(calls[-1].filename).name}:{calls[-1].lineno}"
        self.found[kind] = f"{resolve_name(func) or func.__name__}, {place}"

    def entered(self, do: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Call a loss, and note what it calls outside of modules."""

        def enter(*call: Any) -> None:  # noqa: ANN401 - a module and its arguments
            self._modules += 1

        def leave(*call: Any) -> None:  # noqa: ANN401
            self._modules -= 1

        entering = register_module_forward_pre_hook(enter)
        leaving = register_module_forward_hook(leave, always_call=True)
        with entering, leaving, self:
            return do()
