"""Python's and torch's own errors inside hooks, with what an author most likely meant."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from protofl.hooks.views.client import Client, Learner
from protofl.hooks.views.records import Recorded
from protofl.hooks.views.server import Server
from protofl.hooks.wire.payload import Payload

_WRITE = {
    "model": "client.module('model')",
    "extractor": "client.module('extractor')",
    "data": "client.train",
    "dataset": "client.train",
    "samples": "client.train",
    "labels": "client.train.y",
    "state_dict": "pf.pack_weights(client.module('model'), 'model')",
    "load_state_dict": "pf.load_weights(client.module('model'), client.received, 'model')",
    "class_count": "client.class_counts",
    "client_id": "client.id",
    "index": "client.id",
    "prototypes": "client.class_prototypes()",
    "global_prototypes": "client.received['prototypes']",
}
"""What other frameworks call what hooks of a client get, and how it is written here."""


def hint(error: BaseException, hook: str, round: int, plugins: Collection[type]) -> str:
    """What to do about an error that a hook raised; empty where nothing is known.

    Args:
        error: What it raised.
        hook: The hook.
        round: The round; -1 before the first.
        plugins: The classes whose hooks run.
    """
    words, server = str(error), hook.startswith("server_")
    if isinstance(error, AttributeError) and error.name is not None:
        found = _of_attribute(error.obj, error.name, server, plugins)
        if found:
            return found
    if "'dict' object has no attribute" in words:
        return "state, scratch, modules and payloads are mappings: write client.state['NAME'] = …"
    if server and "'int' object" in words:
        return "uploads is {client id: payload}: go over uploads.values(), or uploads.items()"
    if "does not require grad" in words and hook != "local_loss":
        return (
            "gradients are computed in local_loss alone; to train something elsewhere, write "
            "with torch.enable_grad(): around it"
        )
    if "does not require grad" in words:
        return (
            "no term has a gradient: compute them of output.features or output.logits with torch, "
            "all the way; .item(), float(), NumPy, argmax and .detach() end it"
        )
    if hook == "local_loss" and "backward" in words and "second time" in words:
        return "the engine takes the gradient: return the terms, and leave .backward() out"
    if isinstance(error, KeyError) and round == 0 and not server:
        return (
            "in round 0 nothing has been received yet: return {} from before_training, and leave "
            "out the term (if given: …)"
        )
    if "Expected all tensors to be on the same device" in words:
        return "make tensors on client.device or server.device"
    return ""


def _of_attribute(holder: object, name: str, server: bool, plugins: Collection[type]) -> str:
    """About a name that something has not."""
    if type(holder) in plugins:
        view, word = (Server, "server") if server else (Client, "client")
        if hasattr(view, name):
            return f"write {word}.{name}: a plugin itself holds nothing of the run"
        near = get_close_matches(name, dir(holder), n=1)
        return f"did you mean self.{near[0]}?" if near else ""
    if isinstance(holder, Payload):
        return f"a payload is a mapping: write payload[{name!r}]"
    if isinstance(holder, (Learner, Recorded)):
        word = "server" if isinstance(holder, Server) else "client"
        public = [n for n in dir(type(holder)) if not n.startswith("_")]
        near = get_close_matches(name, public, n=1)
        if word == "client" and name in _WRITE:
            return f"write {_WRITE[name]}"
        if word == "server" and hasattr(Client, name):
            return f"{name} is a client's: the server sees uploads and server.knowledge alone"
        if near:
            return f"did you mean {word}.{near[0]}?"
        return f"a {word} has: {', '.join(public)}"
    near = get_close_matches(name, [n for n in dir(holder) if not n.startswith("_")], n=1)
    return f"did you mean {near[0]}?" if near else ""
