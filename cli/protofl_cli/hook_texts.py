"""What there is to say of a hook: its signature, when it is called, what it returns, an example."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from functools import cache
from typing import Any

WIDTH = 88

WHEN = {
    "method": {
        "run_defaults": "before the run, when its options are resolved",
        "requires": "before the run, once its data and models are known",
        "resolve": "before the run, behind requires",
        "phases": "before the run; in every process that trains clients",
        "setup_server": "at the start of a trial, once; also when it is resumed, before the "
        "checkpoint is read",
        "setup_client": "when a client is first needed, and whenever it is built anew",
        "download_payload": "in a round, once for each participant; behind the server's step for "
        "phases that follow it, and before an evaluation",
        "receive": "on a client that has got a download: before its training, and before its "
        "evaluation",
        "before_training": "on a client, before each phase of training",
        "local_loss": "on a client, at every step of training",
        "after_batch": "on a client, at every step, behind the gradients and before the update",
        "after_training": "on a client, behind each phase of training",
        "upload_payload": "on a client, behind its training",
        "receive_uploads": "on the server, once all uploads of a round have passed the gate",
        "server_aggregate": "on the server, once the round's uploads are in; not without any",
        "server_train": "on the server, behind server_aggregate",
        "inference": "on a client, at its evaluation, for each batch of its test samples",
        "score_client": "on a client, at its evaluation, behind inference",
        "global_models": "on the server, at the end of a round that is evaluated, where the run "
        "has global test samples",
        "end_round": "on the server, at the end of every round",
    },
    "model-group": {
        "architectures": "before the run; and where another run takes nets of the group",
        "server_architectures": "before the run, behind architectures",
    },
    "partitioner": {
        "partition": "before a trial, once for its seed",
        "count_clients": "before the run, if the data determine the number of clients",
    },
    "dataset": {
        "cache_key": "before the run, to look whether the data are cached",
        "decode": "before the run, where they are not",
    },
    "generator": {
        "outline": "in the dry step in place of open_generator, and for the sizes alone",
        "open_generator": "on the server, when a method first asks for images or latents",
        "train_generator": "by protofl generator train",
    },
    "wrapper": {
        "upload_payload": "on a client, around the method's upload_payload",
        "download_payload": "on the server, around the method's download_payload",
        "encode_upload": "on a client, behind all upload_payload, in the order of --with",
        "decode_upload": "on the server, when an upload comes in, in reverse order",
        "encode_download": "on the server, behind all download_payload, in the order of --with",
        "decode_download": "on a client, when a download comes in, in reverse order",
        "train_labels": "when a client is built",
        "receive_uploads": "on the server, around the method's receive_uploads",
    },
    "metric": {
        "count": "at a client's evaluation, and for each model of the server",
        "value": "on the server, behind an evaluation: of each client's counts, and their sum",
    },
    "selection": {"select": "at the start of every round"},
    "world": {
        "device": "when a client is first asked in a trial",
        "presence": "at the start of every round",
    },
    "tracker": {
        "check": "before the run, in its thread",
        "open_run": "once the run folder is there, in the tracker's thread",
        "log_round": "behind every round, in the tracker's thread",
        "end_run": "when the run has ended, however it did, in the tracker's thread",
    },
    "engine": {
        "train": "in a host, for each phase of a client that it trains alone",
        "train_group": "in a host, for each phase of clients that it trains together",
        "choose_groups": "in a host, before a round's training",
    },
    "backend": {"open_pool": "before the dry step; the pool is closed when the run ends"},
}
"""When each hook is called."""

LONGEST = 40
"""Lines that an example may take."""

EXAMPLES = {
    ("method", "end_round"): '''
@pf.hookimpl
def end_round(self, server):
    """How long the prototypes are, on average."""
    rows = server.knowledge.get("prototypes")
    return {} if rows is None else {"length": float(rows.norm(dim=1).mean())}
''',
    ("wrapper", "encode_upload"): '''
@pf.hookimpl
def encode_upload(self, client, payload):
    """Floats in half the bytes."""
    return pf.Payload({k: v.half() if v.dtype == torch.float32 else v for k, v in payload.items()})
''',
    ("wrapper", "decode_upload"): '''
@pf.hookimpl
def decode_upload(self, server, client_id, payload, form):
    """Floats as they were."""
    return pf.Payload({k: v.float() if v.dtype == torch.float16 else v for k, v in payload.items()})
''',
    ("method", "score_client"): '''
@pf.hookimpl
def score_client(self, client, scores, labels):
    """How far the best score lies above the next, on average."""
    best = scores.topk(2, dim=1).values
    return {"lead": (best[:, 0] - best[:, 1]).mean()}
''',
    ("method", "receive_uploads"): '''
@pf.hookimpl
def receive_uploads(self, server, uploads):
    """Without the clients whose prototypes are longer than 100."""
    longest = {c: u["prototypes"].norm(dim=1).max() for c, u in uploads.items()}
    return {c: u for c, u in uploads.items() if longest[c] <= 100}
''',
    ("wrapper", "encode_download"): '''
@pf.hookimpl
def encode_download(self, server, client_id, payload):
    """Floats in half the bytes."""
    return pf.Payload({k: v.half() if v.dtype == torch.float32 else v for k, v in payload.items()})
''',
    ("wrapper", "decode_download"): '''
@pf.hookimpl
def decode_download(self, client, payload, form):
    """Floats as they were."""
    return pf.Payload({k: v.float() if v.dtype == torch.float16 else v for k, v in payload.items()})
''',
    ("model-group", "server_architectures"): '''
@pf.hookimpl
def server_architectures(self, config):
    """A large net that no client has."""
    return [pf.Architecture("large", build_large)]
''',
}
"""Examples of hooks, where no plugin of ours writes one in a few lines."""


def signature(function: Callable[..., Any], name: str = "", *, bound: bool = False) -> str:
    """The line that defines a function, over several lines where it is long.

    Args:
        function: The function.
        name: Its name, where it shall be another.
        bound: Whether to leave its first argument out.
    """
    whole = inspect.signature(function)
    words, star = [], False
    for place, p in enumerate(whole.parameters.values()):
        if bound and place == 0:
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            words.append("*")
        star |= p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        mark = "*" * ((p.kind is p.VAR_POSITIONAL) + 2 * (p.kind is p.VAR_KEYWORD))
        word = mark + p.name
        if p.annotation is not p.empty:
            word += f": {_type(p.annotation)}"
        if p.default is not p.empty:
            usual = getattr(p.default, "__name__", None) or repr(p.default)
            usual = "..." if usual == "<lambda>" else usual
            word += f" = {usual}" if ":" in word else f"={usual}"
        words.append(word)
    back = whole.return_annotation
    end = ")" if back is whole.empty else f") -> {_type(back)}"
    line = f"def {name or function.__name__}({', '.join(words)}{end}: ..."
    if len(line) <= WIDTH:
        return line
    inside = "".join(f"    {word},\n" for word in words)
    return f"def {name or function.__name__}(\n{inside}{end}: ..."


def _type(annotation: Any) -> str:  # noqa: ANN401 - a type or its text
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("protofl.", "")


def returns(function: Callable[..., Any]) -> str:
    """The type that a hook returns."""
    return _type(inspect.signature(function).return_annotation)


@cache
def writers(kind: str, hook: str) -> dict[str, type]:
    """The plugins of protofl's own that write a hook, by name."""
    from protofl.errors import ProtoflError
    from protofl.hooks.discovery.kinds import hooks_of
    from protofl.hooks.discovery.registry import Registry

    registry, found = Registry(), {}
    for plugin in registry.plugins(kind):
        if plugin.distribution == "protofl":
            try:
                loaded = registry.load(kind, plugin.name)
            except ProtoflError:  # an extra is not installed
                continue
            if hook in hooks_of(kind, loaded):
                found[plugin.name] = loaded
    return found


def example(kind: str, hook: str) -> tuple[str, str]:
    """Who writes a hook in the fewest lines that say something, and the lines."""
    sources = {}
    for name, plugin in writers(kind, hook).items():
        text = textwrap.dedent(inspect.getsource(getattr(plugin, hook)))
        sources[name] = text.strip()
    short = {name: text for name, text in sources.items() if len(text.splitlines()) <= LONGEST}
    told = {name: text for name, text in short.items() if _statements(text) > 1} or short
    if not told:
        return "", EXAMPLES[kind, hook].strip()
    shortest = min(told, key=lambda name: (len(told[name].splitlines()), name))
    return shortest, told[shortest]


def _statements(source: str) -> int:
    """Statements of a function behind its docstring."""
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return len(function.body) - (ast.get_docstring(function) is not None)
