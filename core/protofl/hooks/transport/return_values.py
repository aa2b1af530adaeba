"""Checks of what the hooks of methods return."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from protofl.errors import RunFailure, UsageError
from protofl.hooks.views.run_info import Phase
from protofl.hooks.wire.payload import BadUpload
from protofl.system.files.tensors import WIRE_TYPES

PAYLOADS = ("upload_payload", "download_payload")
"""Hooks that return a payload."""

UPDATES = ("server_aggregate", "server_train", "setup_server")
"""Hooks that return changes of the server's global state."""

BEFORE = ("phases", "requires", "resolve", "run_defaults")
"""Hooks that are called before a run starts."""

SENT = frozenset(WIRE_TYPES)
"""The types that a payload can hold."""


class ReturnSpec(NamedTuple):
    """The return value that a hook needs.

    Attributes:
        kind: Its type.
        item: The type of each value in a mapping or list; float for anything that is a number.
        expected: The return value in words.
        example: Return values to copy.
    """

    kind: type | tuple[type, ...]
    item: type
    expected: str
    example: str


def _is_number(value: Any) -> bool:  # noqa: ANN401 - it may be anything
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return not isinstance(value, (str, bytes))


_SENT = ReturnSpec(Mapping, Tensor, "tensors by name", "pf.Payload(x=tensor), or pf.Payload()")
_UPDATE = ReturnSpec(Mapping, Tensor, "tensors by name", "{'x': tensor}, or {} for no change")
_OPTIONS = ReturnSpec(Mapping, object, "values by option", "{'lr': 0.1}, or {}")
_PHASES = "[pf.Phase('private'), pf.Phase('public', data='public')]"
_REASONS = "['it needs public data'], or []"
_LIST = (list, tuple)

RETURNED = {
    **dict.fromkeys(PAYLOADS, _SENT),
    **dict.fromkeys(UPDATES, _UPDATE),
    "inference": ReturnSpec(Tensor, object, "a tensor of scores, B×C", "client.head(features)"),
    "end_round": ReturnSpec(Mapping, float, "numbers by name", "{'margin': float(margin)}"),
    "global_models": ReturnSpec(Mapping, nn.Module, "modules by name", "{'global': model}, or {}"),
    "phases": ReturnSpec(_LIST, Phase, "a list of phases", _PHASES),
    "requires": ReturnSpec(_LIST, str, "a list of reasons why the method cannot run", _REASONS),
    "resolve": _OPTIONS,
    "run_defaults": _OPTIONS,
}
"""{hook: the return value that it needs}."""

NEEDED = (*PAYLOADS, *UPDATES[:2], "inference")
"""Hooks that may not return None."""


def expect_returned(hook: str, owner: str, returned: Any, arguments: Mapping[str, Any]) -> None:  # noqa: ANN401
    """Check that a hook of a method returned what its specification says.

    Args:
        hook: The hook.
        owner: The method, and its transforms.
        returned: The return value.
        arguments: The arguments of the call.

    Raises:
        RunFailure: The return value is wrong; the error names the hook, the value, and an example.
        UsageError: The same, for a hook that is called before a run starts.
    """
    if returned is None and hook not in NEEDED:
        return
    who = f"{owner}.{hook}"
    if inspect.iscoroutine(returned) or inspect.isgenerator(returned):
        returned.close()
        do = f"write def {hook}(self, …) without async and yield"
        raise RunFailure(f"{who} returned {description(returned)}", "hooks are plain functions", do)
    spec = RETURNED.get(hook)
    if spec is None:
        return
    wrong = BadUpload if hook == "upload_payload" else UsageError if hook in BEFORE else RunFailure
    near, do = f"expected {spec.expected}", f"return {spec.example}"
    if not isinstance(returned, spec.kind) or isinstance(returned, str):
        raise wrong(f"{who} returned {description(returned)}", near, do)
    if isinstance(returned, Tensor):
        return _expect_scores(
            who, returned, (arguments["x"].shape[0], arguments["client"].num_classes)
        )
    pairs: Any = returned.items() if isinstance(returned, Mapping) else enumerate(returned)  # type: ignore[arg-type]
    for name, item in pairs:
        if isinstance(returned, Mapping) and not _is_name(name):
            do = "names are strings"
        elif not (_is_number(item) if spec.item is float else isinstance(item, spec.item)):
            do = _conversion(name, item) if spec.item is Tensor else do
        elif spec.item is Tensor and not _is_sendable(item):
            near = "tensors on the wire and in checkpoints are dense and of a plain type"
            do = "write .to_dense(), .dequantize(), .float() or .long()"
        else:
            continue
        raise wrong(f"{who} returned {reprlib.repr(name)} as {description(item)}", near, do)


def _conversion(name: str, value: Any) -> str:  # noqa: ANN401 - it may be anything
    """Return advice on how to make a tensor of a value."""
    if isinstance(value, nn.Module):
        return f"return its weights: pf.models.pack_weights(module, {name!r})"
    if hasattr(value, "dtype"):
        return f"write {name}=torch.as_tensor({name}), or compute it with torch"
    return f"write {name}=torch.stack(…) of tensors, torch.tensor(…) of numbers"


def _is_name(name: object) -> bool:
    """Return True for a string that can be written as UTF-8."""
    return isinstance(name, str) and not any("\ud800" <= sign <= "\udfff" for sign in name)


def _is_sendable(tensor: Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested
    return plain and tensor.dtype in SENT


def _expect_scores(who: str, scores: Tensor, shape: tuple[int, int]) -> None:
    if scores.shape == shape and not (scores.is_complex() or scores.dtype == torch.bool):
        return
    near = f"expected real scores of {shape[0]} samples and {shape[1]} classes, {list(shape)}"
    do = "return client.head(features), or a score of each class: -distance to its prototype"
    if scores.shape in (shape[:1], (shape[0], 1)):
        do = "these look like labels: leave .argmax(1) out"
    raise RunFailure(f"{who} returned {description(scores)}", near, do)


def expect_terms(owner: str, returned: Any, declared: Collection[str]) -> None:  # noqa: ANN401
    """Check that a ``local_loss`` returned declared scalar terms.

    Raises:
        RunFailure: The return value is wrong.
    """
    if isinstance(returned, Mapping) and all(
        name in declared and _is_scalar(term) for name, term in returned.items()
    ):
        return  # the check runs at every step; the messages below are only for mistakes
    who = f"{owner}.local_loss"
    near = "terms have names, so that they can be dropped, added and logged"
    do = f"return {{{', '.join(f'{name!r}: …' for name in sorted(declared))}}}"
    if not isinstance(returned, Mapping):
        raise RunFailure(f"{who} returned {description(returned)}", near, do)
    name, term = next(
        (n, term) for n, term in returned.items() if n not in declared or not _is_scalar(term)
    )
    if name not in declared:
        near, do = f"declared: {', '.join(sorted(declared))}", "add it to the method's terms"
        raise RunFailure(f"{who} returned the undeclared term {name!r}", near, do)
    raise RunFailure(
        f"{who} returned the term {name!r} as {description(term)}",
        "expected a dense floating-point scalar tensor, computed of the model's output",
        "take .mean() of a tensor; leave out .item(), float() and .numpy()",
    )


def _is_scalar(term: object) -> bool:
    return (
        isinstance(term, Tensor)
        and term.dim() == 0
        and term.is_floating_point()
        and not term.is_sparse
        and not term.is_meta
    )


def description(value: Any) -> str:  # noqa: ANN401 - it may be anything
    """Describe a value: its type, and its shape and dtype or the value itself."""
    kind = type(value).__name__
    if value is None:
        return "nothing"
    if isinstance(value, Tensor):
        if value.is_nested:
            return f"a nested tensor of {value.dtype}".replace("torch.", "")
        layout = "" if value.layout is torch.strided else f"{value.layout} "
        layout = "meta " if value.is_meta else layout
        return f"a {layout}tensor of {value.dtype} {list(value.shape)}".replace("torch.", "")
    if hasattr(value, "dtype") and hasattr(value, "shape"):  # NumPy's, without asking for it
        return f"a {type(value).__module__}.{kind} of {value.dtype} {list(value.shape)}"
    if isinstance(value, (bool, int, float, str)):
        text = f"{value:.4g}" if isinstance(value, float) else repr(value)
        return f"the {kind} {text if len(text) <= 40 else text[:37] + '...'}"
    size = f" of {len(value)}" if isinstance(value, (list, tuple, set, dict)) else ""
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}{size}"
