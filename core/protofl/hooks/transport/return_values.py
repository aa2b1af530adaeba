"""Checks of what hooks return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from protofl.errors import RunFailure, UsageError
from protofl.hooks.views.run_info import Phase
from protofl.system.files.tensors import TYPES

PAYLOADS = ("upload_payload", "download_payload")
"""Hooks that return what is sent."""


UPDATES = ("server_aggregate", "server_train", "setup_server")
"""Hooks that return what the server learns."""


BEFORE = ("phases", "requires", "resolve", "run_defaults")
"""Hooks that are called before anything has started."""


NEEDED = {
    **dict.fromkeys(PAYLOADS, "return pf.Payload() where there is nothing to send"),
    **dict.fromkeys(UPDATES[:2], "return {} where nothing changes"),
    "inference": "return the scores of all classes, B×C",
}
"""What hooks of a round return where they would return nothing."""


SENT = {
    *TYPES,
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64),
}
"""The types that a payload can hold."""


_ROWS = "return rows and whose they are: pf.class_rows(known, prototypes=table), table [C, K]"


def expect_returned(hook: str, owner: str, found: Any, given: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Check that a hook of a method returned what its specification says.

    Args:
        hook: The hook.
        owner: The method, and who wraps it.
        found: What it returned.
        given: What it was given.

    Raises:
        RunFailure: It has not; the error names the hook, what came, and what to return.
        UsageError: It has not, and nothing has started yet.
    """
    who = f"{owner}.{hook}"
    if inspect.iscoroutine(found) or inspect.isgenerator(found):
        word, written = (
            ("coroutine", "async def")
            if inspect.iscoroutine(found)
            else ("generator", "with yield")
        )
        found.close()
        raise RunFailure(
            f"{who} returned a {word}",
            f"it is written {written}, and nobody waits for it",
            f"write def {hook}(self, …), and return what it makes",
        )
    if found is None:
        if hook in NEEDED:
            near = "every hook of a round returns something"
            raise RunFailure(f"{who} returned nothing", near, NEEDED[hook])
    elif hook in PAYLOADS or hook in UPDATES:
        _expect_tensors(who, found)
    elif hook == "inference":
        _expect_scores(who, found, (given["x"].shape[0], given["client"].num_classes))
    elif hook in _FORMS:
        kind, item, near, do = _FORMS[hook]
        wrong = UsageError if hook in BEFORE else RunFailure
        items = found.values() if isinstance(found, Mapping) else found
        if not isinstance(found, kind) or isinstance(found, str):
            raise wrong(f"{who} returned {description(found)}", near, do)
        for place, each in found.items() if isinstance(found, Mapping) else enumerate(items):
            if not item(each):
                raise wrong(f"{who} returned {description(each)} as {place!r}", near, do)


def expect_terms(owner: str, found: Any, declared: Collection[str]) -> None:  # noqa: ANN401
    """Check that a ``local_loss`` returned declared scalar terms.

    Raises:
        RunFailure: It has not.
    """
    if isinstance(found, Mapping) and all(
        name in declared and _is_scalar(term) for name, term in found.items()
    ):
        return  # this is asked at every step; what is said of mistakes is put together below
    who = f"{owner}.local_loss"
    near = "terms have names, so that they can be dropped, added and logged"
    do = f"return {{{', '.join(f'{name!r}: …' for name in sorted(declared))}}}"
    if found is None:
        raise RunFailure(f"{who} returned nothing", near, do)
    if not isinstance(found, Mapping):
        raise RunFailure(f"{who} returned {description(found)}", near, do)
    for name, term in found.items():
        if name not in declared:
            raise RunFailure(
                f"{who} returned the undeclared term {name!r}",
                f"declared: {_list(declared)}",
                "add it to the method's terms",
            )
        if _is_scalar(term):
            continue
        near = "a term is a scalar tensor of floating-point numbers, as it comes from the model"
        if not isinstance(term, Tensor):
            do = "leave .item(), float() and .numpy() out; leave out a term that is not there yet"
        elif term.dim():
            do = "take .mean() or .sum() over it" if term.numel() > 1 else "write .squeeze()"
        else:
            do = "compute it of the model's output, with a gradient; counts go to end_round"
        raise RunFailure(f"{who} returned the term {name!r} as {description(term)}", near, do)


def _is_scalar(term: object) -> bool:
    return isinstance(term, Tensor) and term.dim() == 0 and term.is_floating_point()


def description(value: Any) -> str:  # noqa: ANN401 - it may be anything
    """Describe a value: its type, and its shape and dtype or the value itself."""
    kind = type(value).__name__
    if isinstance(value, Tensor):
        layout = "" if value.layout is torch.strided else f"{_short(value.layout)} "
        return f"a {layout}tensor of {_short(value.dtype)} {list(value.shape)}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):  # NumPy's, without asking for it
        return f"a {type(value).__module__}.{kind} of {value.dtype} {list(value.shape)}"
    if isinstance(value, float):
        return f"the {kind} {value:.4g}"
    if isinstance(value, (bool, int, str)):
        text = repr(value)
        return f"the {kind} {text if len(text) <= 40 else text[:37] + '...'}"
    if isinstance(value, (list, tuple, set, dict)):
        return f"a {kind} of {len(value)}"
    return f"a {kind}" if kind[0].lower() not in "aeiou" else f"an {kind}"


# --- payloads and knowledge -----------------------------------------------------------------------


def _expect_tensors(who: str, found: Any) -> None:  # noqa: ANN401
    if not isinstance(found, Mapping):
        near = "what travels and what the server knows are tensors, each with a name"
        do = "return pf.Payload(prototypes=…, …), or {'prototypes': …, …}"
        raise RunFailure(f"{who} returned {description(found)}", near, do)
    for name, value in found.items():
        if not isinstance(name, str):
            what = f"{who} returned {description(value)} under {name!r}, and no name"
            raise RunFailure(what, "names are strings, each of one tensor", _ROWS)
        if not isinstance(value, Tensor):
            raise RunFailure(
                f"{who} returned {name!r} as {description(value)}",
                "what travels and what the server knows are tensors",
                _as_tensor(name, value),
            )
        do = _sendable(value)
        if do:
            what = f"{who} returned {name!r} as {description(value)}"
            raise RunFailure(what, "tensors on the wire and in checkpoints are dense and plain", do)


def _as_tensor(name: str, value: Any) -> str:  # noqa: ANN401
    """Return advice about a value that is not a tensor."""
    if isinstance(value, nn.Module):
        return f"return its weights: pf.pack_weights(module, {name!r})"
    if isinstance(value, Mapping):
        return _ROWS
    if isinstance(value, (bool, int, float)):
        return f"write {name}=torch.tensor({value!r})"
    if hasattr(value, "dtype"):
        return f"write {name}=torch.as_tensor({name}), or compute it with torch"
    return f"write {name}=torch.stack(…) of tensors, torch.tensor(…) of numbers"


def _sendable(tensor: Tensor) -> str:
    """Return advice about a tensor that can't be sent; empty if it can."""
    if tensor.layout is not torch.strided:
        return "write .to_dense(); for few rows of many send the rows and their numbers"
    if tensor.is_quantized:
        return "write .int_repr() and send its scale beside it, or .dequantize()"
    if tensor.is_meta:
        return "it has no data: compute it on client.device or server.device"
    if tensor.is_complex() and tensor.dtype not in SENT:
        return "send torch.view_as_real of it"
    return "" if tensor.dtype in SENT else "write .float(), or .long() for whole numbers"


# --- scores ---------------------------------------------------------------------------------------


def _expect_scores(who: str, found: Any, shape: tuple[int, int]) -> None:  # noqa: ANN401
    B, C = shape
    near = f"of {B} samples and {C} classes it returns scores B×C, {[B, C]}, the largest wins"
    do = "return the tensor of scores alone"
    if isinstance(found, Tensor):
        if found.shape == shape and not (found.is_complex() or found.dtype == torch.bool):
            return
        do = "return client.head(features), or a score of each class: -distance to its prototype"
        if found.shape in ((B,), (B, 1)):
            do = "these look like labels: leave .argmax(1) out"
        elif found.shape == (C, B):
            do = "it is transposed: return .T"
        elif found.shape == shape:
            do = "write .float()"
    elif hasattr(found, "dtype"):
        do = "stay with torch: torch.as_tensor(…), or leave .numpy() out"
    raise RunFailure(f"{who} returned {description(found)}", near, do)


# --- what other hooks return ----------------------------------------------------------------------


def _is_number(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, (str, bytes)):
        return False
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


_FORMS: dict[str, tuple[type | tuple[type, ...], Callable[[Any], bool], str, str]] = {
    "end_round": (
        Mapping,
        _is_number,
        "further figures of the record are numbers",
        "return names and single numbers: {'margin': float(margin)}; text has no place there",
    ),
    "global_models": (
        Mapping,
        lambda value: isinstance(value, nn.Module),
        "models from samples to scores, each with a name",
        "return names and modules, {'global': model}, or {}",
    ),
    "phases": (
        (list, tuple),
        lambda value: isinstance(value, Phase),
        "a phase says its data, its terms and when it takes place",
        "return a list of phases: [pf.Phase('private'), pf.Phase('public', data='public')]",
    ),
    "requires": (
        (list, tuple),
        lambda value: isinstance(value, str),
        "each reason is a sentence for the user",
        "return a list of reasons why it can't work, [] where it can",
    ),
    "resolve": (
        Mapping,
        lambda value: True,
        "options whose default depends on the run",
        "return options and their values, {'lambda_': 1.0}, or {}",
    ),
    "run_defaults": (
        Mapping,
        lambda value: True,
        "defaults of options of protofl run",
        "return options and their values, {'lr': 0.1}, or {}",
    ),
}
"""Of further hooks: the type, whether an item is right, what it is for, and what to return."""


def _short(value: object) -> str:
    return str(value).removeprefix("torch.")


def _list(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
