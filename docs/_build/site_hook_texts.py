"""Texts about hooks: signature, time of the call, return type, and an example."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

from protofl.errors import ProtoflError
from protofl.hooks.discovery.kinds import hooks_of
from protofl.hooks.discovery.registry import Registry

WIDTH = 88

WHEN = {
    "method": {
        "run_defaults": "before the run, when its options are resolved",
        "requires": "before the run, when its data and models are known",
        "resolve": "before the run, after requires",
        "phases": "before the run; in every process that trains clients",
        "setup_server": "at the start of a trial; on resume, before the checkpoint is read",
        "setup_client": "when a client is built",
        "download_payload": "for each participant of a round, for phases after the server's step, "
        "and before an evaluation",
        "receive": "on a client after a download: before its training and before its evaluation",
        "before_training": "on a client, before each phase of training",
        "local_loss": "on a client, at every step of training",
        "after_batch": "on a client, at every step, after the gradients and before the update",
        "after_training": "on a client, after each phase of training",
        "upload_payload": "on a client, after its training",
        "check_upload": "on the server, for each upload that follows the other rules",
        "receive_uploads": "on the server, when all uploads of a round have been validated",
        "server_aggregate": "on the server, after the uploads of a round; not without uploads",
        "server_train": "on the server, after server_aggregate",
        "inference": "on a client, at its evaluation, for each batch of its test samples",
        "global_models": "on the server, at the end of an evaluated round, if the run has global "
        "test samples",
        "end_round": "on the server, at the end of every round",
        "end_trial": "on the server, after its step and before the evaluation",
    },
    "model-group": {
        "architectures": "before the run, and when another run uses nets of the group",
        "server_architectures": "before the run, after architectures",
    },
    "partitioner": {
        "partition": "before a trial, for its seed",
        "count_clients": "before the run, if the data determine the number of clients",
    },
    "dataset": {
        "cache_key": "before the run, to find the data in the cache",
        "decode": "before the run, if the data are not cached",
    },
    "generator": {
        "outline": "in the dry run instead of open_generator, and to learn the sizes",
        "open_generator": "on the server, when a method first asks for images or latents",
        "train_generator": "by protofl generator train",
    },
    "payload-transform": {
        "upload_payload": "on a client, around the method's upload_payload",
        "download_payload": "on the server, around the method's download_payload",
        "encode_upload": "on a client, after all upload_payload, in the order of --with",
        "decode_upload": "on the server, when an upload arrives, in reverse order",
        "encode_download": "on the server, after all download_payload, in the order of --with",
        "decode_download": "on a client, when a download arrives, in reverse order",
        "loss_factors": "on a client, before each phase of local training",
        "train_labels": "when a client is built",
        "train": "on a client, in each phase of local training, in place of the engine",
        "receive_uploads": "on the server, around the method's receive_uploads",
        "requires": "before the run, after the method's requires",
        "end_round": "on the server, after the method's end_round",
        "end_trial": "on the server, after the method's end_trial",
    },
    "metric": {
        "count": "at a client's evaluation, and for each model of the server",
        "value": "on the server, after an evaluation: for each client's counts, and for their sum",
    },
    "client-sampler": {"select": "at the start of every round"},
    "device-model": {
        "device": "when a client is first selected in a trial",
        "presence": "at the start of every round",
    },
    "schedule": {
        "check_run": "before the run, when its options and plugins are known",
        "try_out": "in the dry run, after its two rounds",
        "open_schedule": "at the start of a trial, and when a run is resumed",
    },
    "tracker": {
        "check": "before the run, in its thread",
        "open_run": "when the run folder exists, in the tracker's thread",
        "log_round": "after every round, in the tracker's thread",
        "end_run": "when the run has ended, finished or not, in the tracker's thread",
    },
    "engine": {
        "train": "in a host, for each phase of a client that is trained separately",
        "train_group": "in a host, for each phase of clients that are trained together",
        "choose_groups": "in a host, before a round's training",
    },
    "backend": {"open_pool": "before the dry run; the pool is closed when the run ends"},
}
"""When each hook is called."""

LONGEST = 40
"""Largest number of lines of an example."""


def signature(function: Callable[..., Any], name: str = "", *, bound: bool = False) -> str:
    """Return the definition of a function, on several lines if it is long.

    Args:
        function: The function.
        name: Another name for it.
        bound: True to leave out the first argument.
    """
    inspected = inspect.signature(function)
    parts, star = [], False
    for place, p in enumerate(inspected.parameters.values()):
        if bound and place == 0:
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            parts.append("*")
        star |= p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        mark = "*" * ((p.kind is p.VAR_POSITIONAL) + 2 * (p.kind is p.VAR_KEYWORD))
        word = mark + p.name
        if p.annotation is not p.empty:
            word += f": {_type(p.annotation)}"
        if p.default is not p.empty:
            usual = getattr(p.default, "__name__", None) or repr(p.default)
            usual = "..." if usual == "<lambda>" else usual
            word += f" = {usual}" if ":" in word else f"={usual}"
        parts.append(word)
    back = inspected.return_annotation
    end = ")" if back is inspected.empty else f") -> {_type(back)}"
    line = f"def {name or function.__name__}({', '.join(parts)}{end}: ..."
    if len(line) <= WIDTH:
        return line
    inside = "".join(f"    {word},\n" for word in parts)
    return f"def {name or function.__name__}(\n{inside}{end}: ..."


def _type(annotation: Any) -> str:  # noqa: ANN401 - a type or its text
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("protofl.", "")


def returns(function: Callable[..., Any]) -> str:
    """Return the return type of a hook."""
    return _type(inspect.signature(function).return_annotation)


@cache
def writers(kind: str, hook: str) -> dict[str, type]:
    """Return {name: plugin} of protofl's own plugins that implement a hook."""
    registry, result = Registry(), {}
    for plugin in registry.plugins(kind):
        if plugin.distribution == "protofl":
            try:
                loaded = registry.load(kind, plugin.name)
            except ProtoflError:  # an extra is not installed
                continue
            if hook in hooks_of(kind, loaded):
                result[plugin.name] = loaded
    return result


def example(kind: str, hook: str) -> tuple[str, str]:
    """Return the plugin with the shortest implementation of a hook, and its source, if any."""
    sources = {}
    for name, plugin in writers(kind, hook).items():
        function = getattr(plugin, hook)
        if function.__name__ == hook:  # otherwise it is a function that several plugins share
            sources[name] = textwrap.dedent(inspect.getsource(function)).strip()
    short = {name: text for name, text in sources.items() if len(text.splitlines()) <= LONGEST}
    candidates = {name: text for name, text in short.items() if _statements(text) > 1} or short
    if not candidates:
        return "", ""
    shortest = min(candidates, key=lambda name: (len(candidates[name].splitlines()), name))
    return shortest, candidates[shortest]


def _statements(source: str) -> int:
    """Return the number of statements of a function after its docstring."""
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return len(function.body) - (ast.get_docstring(function) is not None)
