"""Snapshots of clients and the server: weights, trained modules and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from protofl.errors import RunFailure
from protofl.hooks.views.client_state import ClientState
from protofl.hooks.views.server_state import ServerState
from protofl.hooks.wire.payload import GlobalState, Payload, weight_views
from protofl.system.files.tensors import Packed, pack_state, unpack_state

VALIDATION = "(gate)"
"""The key of the specs of payload validation in the server's state; not a valid plugin name."""

SCHEDULE = "(schedule)"
"""The key of the schedule's state in the server's."""


def pack_client(client: ClientState, *, received: bool) -> Packed:
    """Pack a client's weights, trained modules and state, and optionally its download.

    The tensors are not copied.
    """
    payload = client.received if received else {}
    return pack(_of_client(client), "received", payload, client.state, f"client {client.id}")


def unpack_client(client: ClientState, packed: Packed) -> None:
    """Copy the result of `pack_client` into a client that has been set up."""
    whose = f"client {client.id}"
    restored = unpack(packed, _of_client(client), "received", whose, client.device)
    client.received, client.state = restored


def pack_server(server: ServerState) -> Packed:
    """Pack the server's global state, modules and state, without copies."""
    state = {**server.state, VALIDATION: server.learned}
    if server.schedule:
        state[SCHEDULE] = server.schedule
    return pack(_of_server(server), "global_state", server.global_state, state, "the server")


def unpack_server(server: ServerState, packed: Packed) -> None:
    """Copy the result of `pack_server` into a server that has been set up."""
    modules, device = _of_server(server), server.device
    global_state, server.state = unpack(packed, modules, "global_state", "the server", device)
    server.learned = server.state.pop(VALIDATION)
    server.schedule = server.state.pop(SCHEDULE, {})
    server.global_state = GlobalState(global_state)


def _of_server(server: ServerState) -> dict[str, nn.Module]:
    """Return the modules of all methods by their names in the file."""
    return {
        f"module/{owner}/{name}": module
        for owner, modules in server.modules.items()
        for name, module in modules.items()
    }


def _of_client(client: ClientState) -> dict[str, nn.Module]:
    slots = {f"module/{name}": slot.module for name, slot in client.slots() if slot.train}
    return {"model": client.model, **slots}


def pack(
    modules: Mapping[str, nn.Module],
    prefix: str,
    payload: Mapping[str, Tensor],
    state: Any,  # noqa: ANN401 - nested mappings and lists
    whose: str,
) -> Packed:
    """Pack modules, a payload under ``PREFIX/``, and state, without copies."""
    tensors = {f"{prefix}/{key}": value for key, value in payload.items()}
    for name, module in modules.items():
        tensors |= weight_views(module, name)
    return tensors, pack_state(state, tensors, f"state of {whose}")


def unpack(
    packed: Packed,
    modules: Mapping[str, nn.Module],
    prefix: str,
    whose: str,
    device: torch.device,
) -> tuple[Payload, Any]:
    """Load packed weights into modules; return copies of the payload and of the state.

    Raises:
        RunFailure: The packed tensors hold another module.
    """
    from protofl.hooks.wire.weights import load_weights

    tensors, header = packed
    starts = tuple(f"{name}/" for name in modules)
    for key in tensors:
        if key.startswith("module/") and not key.startswith(starts):
            raise RunFailure(
                f"the checkpoint holds {key} of {whose}, which its set-up did not create",
                do="create modules in setup_client or setup_server, so that a run can be resumed",
            )
    for name, module in modules.items():
        load_weights(module, tensors, name)
    kept = Payload(tensors).under(prefix)
    payload = Payload({key: value.to(device, copy=True) for key, value in kept.items()})
    return payload, unpack_state(header, tensors, device)
