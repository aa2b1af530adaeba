"""Errors of the dry run: their likely causes, and methods that provide what is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from protofl.errors import Lacking, ProtoflError, Refused, UsageError, part_of
from protofl.federation.plan.plan import Plan
from protofl.hooks.discovery.kinds import hooks_of
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.hookspecs.method import MERGED_HOOKS
from protofl.hooks.plugin.loss import WITH_GRADIENT
from protofl.hooks.plugin.members import Term
from protofl.hooks.plugin.merging import SHARED
from protofl.hooks.transport.encoding import Form, declared_form
from protofl.hooks.views.client import Client, Learner
from protofl.hooks.views.client_state import StatefulView
from protofl.hooks.views.server import Server
from protofl.hooks.wire.payload import Payload
from protofl.runs.dry_run.payload_checks import FoundLater

_WRITE = {
    "model": "client.module('model')",
    "extractor": "client.module('extractor')",
    "data": "client.train",
    "dataset": "client.train",
    "samples": "client.train",
    "labels": "client.train.y",
    "state_dict": "pf.models.pack_weights(client.module('model'), 'model')",
    "load_state_dict": "pf.models.load_weights(client.module('model'), client.received, 'model')",
    "class_count": "client.class_counts",
    "client_id": "client.id",
    "index": "client.id",
    "prototypes": "client.class_prototypes()",
    "global_prototypes": "client.received['prototypes']",
}
"""Names of other frameworks for what hooks of a client read, with the protofl equivalent."""


def hint(error: BaseException, hook: str, round: int, plugins: Collection[type]) -> str:
    """Return advice for an error that a hook raised; empty if there is none.

    Args:
        error: What it raised.
        hook: The hook.
        round: The round; -1 before the first.
        plugins: The classes whose hooks run.
    """
    message, server = str(error), hook.startswith("server_")
    if isinstance(error, AttributeError) and error.name is not None:
        result = _of_attribute(error.obj, error.name, server, plugins)
        if result:
            return result
    if "'dict' object has no attribute" in message:
        return "state, scratch, modules and payloads are mappings: write client.state['NAME'] = …"
    if server and "'int' object" in message:
        return "uploads is {client id: payload}: go over uploads.values(), or uploads.items()"
    if "does not require grad" in message and hook != "local_loss":
        return (
            "gradients are computed in local_loss alone; to train something elsewhere, write "
            "with torch.enable_grad(): around it"
        )
    if "does not require grad" in message:
        return WITH_GRADIENT
    if hook == "local_loss" and "backward" in message and "second time" in message:
        return "the engine takes the gradient: return the terms, and leave .backward() out"
    if hook == "local_loss" and "modified by an inplace operation" in message:
        return "leave out operations whose name ends in _: they overwrite what the gradient needs"
    if isinstance(error, KeyError) and round == 0 and not server:
        return (
            "in round 1 nothing has been received yet: return {} from before_training, and leave "
            "out the term (if constants: …)"
        )
    if "Expected all tensors to be on the same device" in message:
        return "make tensors on client.device or server.device"
    return ""


def _of_attribute(holder: object, name: str, server: bool, plugins: Collection[type]) -> str:
    """Return advice for an attribute that an object does not have."""
    if type(holder) in plugins:
        view, word = (Server, "server") if server else (Client, "client")
        if hasattr(view, name):
            return f"write {word}.{name}: a plugin itself holds nothing of the run"
        near = get_close_matches(name, dir(holder), n=1)
        return f"did you mean self.{near[0]}?" if near else ""
    if isinstance(holder, Payload):
        return f"a payload is a mapping: write payload[{name!r}]"
    if isinstance(holder, (Learner, StatefulView)):
        word = "server" if isinstance(holder, Server) else "client"
        public = [n for n in dir(type(holder)) if not n.startswith("_")]
        near = get_close_matches(name, public, n=1)
        if word == "client" and name in _WRITE:
            return f"write {_WRITE[name]}"
        if word == "server" and hasattr(Client, name):
            return f"{name} is a client's: the server sees uploads and server.global_state alone"
        if near:
            return f"did you mean {word}.{near[0]}?"
        return f"a {word} has: {', '.join(public)}"
    near = get_close_matches(name, [n for n in dir(holder) if not n.startswith("_")], n=1)
    return f"did you mean {near[0]}?" if near else ""


def without_term(term: Term, missed: Mapping[str, str], plan: Plan) -> UsageError:
    """Return the error for a loss term that was never returned.

    Args:
        term: The term.
        missed: {key: ``METHOD.HOOK`` that looked for it in a download in vain}.
        plan: The run.
    """
    whose = f"the loss term {term.label!r} of {term.method}.local_loss"
    what = f"{whose} was not returned in two rounds"
    drop = f"drop it: --drop local_loss.{term.label}"
    # What its own method looked for, or a phase that needs it.
    method_keys = [
        key for key, reader in missed.items() if reader.partition(".")[0] in ("", term.method)
    ]
    keys = sorted(method_keys or missed)
    if not keys:
        near = "its method looked for nothing in the download that is not there"
        advice = f"return it, or leave it out of the terms of {term.method}; for a run"
        return UsageError(what, near, f"{advice} {drop}")
    near = f"its method looked in the download for: {', '.join(map(repr, keys))}"
    do = "; ".join(_senders(key, "download_payload", plan, term.method) for key in keys)
    return Refused(what, near, do, lacks="key", name=keys[0])


def without_key(missed: Mapping[str, str], plan: Plan) -> Refused:
    """Return the error for keys that evaluation reads and no download has."""
    key = min(missed)
    method, _, hook = missed[key].rpartition(".")
    return Refused(
        f"{hook} of {method} reads {key!r}, which no download of two rounds has",
        do="; ".join(_senders(key, "download_payload", plan, method) for key in sorted(missed)),
        lacks="key",
        name=key,
    )


def explained(error: ProtoflError, plan: Plan, down: bytes, up: bytes, reader: str) -> UsageError:
    """Turn an error of the dry run into one with its likely cause: exit code 2.

    Args:
        error: What a hook raised.
        plan: The run.
        down: The last download.
        up: The last upload.
        reader: The client's hook that was called last, ``METHOD.HOOK``; empty for another's.
    """
    what = error.args[0] if isinstance(error, FoundLater) else error.what
    what, composition = f"the dry run failed: {what}", plan.composition
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, Lacking):
        cause = cause.__cause__
    hook = error.place.partition(",")[0].partition(" ")[0]
    hook = "server_aggregate" if hook == "receive_uploads" else hook  # what its donor was asked for
    on_server = hook.startswith("server_")
    sender = "upload_payload" if on_server else "download_payload"
    sent = declared_form(up if on_server else down)
    came = f"{sender} of {' and '.join(composition.makers(sender))} sends: {_shapes(sent)}"
    if cause is None:
        near = error.near or came
        raw = error.__cause__
        if raw is not None and not isinstance(raw, ProtoflError):
            plugins = [member.plugin for member in composition.members.values()]
            advice = hint(raw, hook, _round_of(error.place), plugins)
            return UsageError(what, near, "\n".join(filter(None, (advice, error.do))))
        return UsageError(what, near, error.do)
    if cause.lacks == "key" and cause.what.endswith(f"{Payload.holder} has no {cause.key!r}"):
        return UsageError(
            what, error.near, "it is one that the hook made itself: look at its names"
        )
    known = {"lacks": cause.lacks, "name": part_of(cause.key)}
    if cause.lacks in ("module", "name"):
        return Refused(what, error.near, error.do, **known)
    method, _, read_by = reader.rpartition(".")
    if hook in composition.providers and hook != "local_loss":
        # Of several methods the one that was called is named by the place.
        method, read_by = error.place.partition(" of ")[2] or composition.providers[hook], hook
    near = f"{read_by} of {method} reads it; {came}" if method else came
    makers = composition.makers(sender)
    declared = {name for maker in makers for name in _declared(maker, sender, plan.registry)}
    rows = [key for key in sent if composition.keys.is_by_class(key)]
    if cause.key == "classes" and rows:
        what += f", from {sender} of {' and '.join(makers)}"
        do = f"return pf.class_rows(known, {rows[0]}=table) there: rows, and whose they are"
    elif not on_server and _round_of(error.place) == 0 and cause.key in declared:
        do = (
            f"round 1 has no download: check before reading it, if {cause.key!r} in client.received"
        )
    elif cause.lacks == "shape" and method:
        do = f"take it from the method that reads it: --use {sender}={method}"
    else:
        do = _senders(cause.key, sender, plan, method)
    return Refused(what, near, do, **known)


def _round_of(place: str) -> int:
    """Return the round, from 0, in the place of an error; -1 without one."""
    last = place.rpartition("round ")[2]
    return int(last) - 1 if last.isdigit() else -1


def _shapes(sent: Form) -> str:
    """Describe the keys of a payload, with shapes except for the tensors of models."""
    descriptions: Iterable[str] = (
        part_of(key) if "/" in key else f"{key} {list(entry.shape)}" for key, entry in sent.items()
    )
    return ", ".join(dict.fromkeys(descriptions)) or "nothing"


def _senders(key: str, hook: str, plan: Plan, reader: str) -> str:
    """Return the methods that could send a key in a payload hook, and how.

    One that sends nothing that is sent already can be added, another would take its place.
    """
    composition, plain = plan.composition, part_of(key)
    makers = composition.makers(hook)
    sent = {name for maker in makers for name in _declared(maker, hook, plan.registry)} - {*SHARED}
    ways: dict[str, list[str]] = {"--add": [], "--use": []}
    for plugin in plan.registry.plugins("method"):
        names = _declared(plugin.name, hook, plan.registry)
        if plain in names and plugin.name not in makers:
            ways["--use" if sent & names else "--add"].append(plugin.name)
    senders = [f"{', '.join(names)} ({way} {hook}=METHOD)" for way, names in ways.items() if names]
    advice = f"{key!r} is sent by {hook} of: {', or of: '.join(senders)}"
    if not senders:
        near = get_close_matches(key, {part_of(name) for name in sent}, n=1, cutoff=0.8)
        advice = f"did you mean {near[0]!r}? " if near else ""
        advice += f"no other installed method sends {key!r} in {hook}"
    if reader not in (composition.main, *ways["--use"]) and reader in (*makers, *ways["--add"]):
        have = hooks_of("method", composition.members[reader].plugin)
        lacking = [h for h in MERGED_HOOKS if h in have and reader not in composition.makers(h)]
        if lacking:
            advice += f"; all that {reader} needs: "
            advice += " ".join(f"--add {each}={reader}" for each in lacking)
    return advice


def _declared(method: str, hook: str, registry: Registry) -> set[str]:
    """Return the keys that a method declares to send in a hook; weights as ``PREFIX/*``."""
    direction = {"upload_payload": "uploads", "download_payload": "downloads"}[hook]
    try:
        names = getattr(registry.load("method", method), direction, {})
    except ProtoflError:
        return set()
    return {part_of(name) for name in names}
