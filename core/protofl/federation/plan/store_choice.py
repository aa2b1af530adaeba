"""The rules of ``auto``: where clients and samples are stored in a run on a GPU.

- A client takes the bytes of its model, and of what the dry run's clients keep beside theirs: the
  methods' modules and state, and a download that belongs to the client (the most of any of them).
  Without a dry run it counts as twice its model.
- **Clients** stay on the device as long as all of them take at most half of its free memory.
  Samples that lie there already count as free. Of several GPUs each has its part of the clients,
  and the first one's memory is asked. Otherwise they lie in pinned host memory, if that
  takes at most half of the free memory of the machine; a pinned block has a power of two of bytes.
  Otherwise they lie on disk.
- **Samples** lie on the device, once for each process that uses it, as long as they take at most
  half of what clients leave free there. Otherwise they lie in host memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch

from protofl.hooks.models.architecture import Architecture, unset_model
from protofl.hooks.views.run_info import RunInfo
from protofl.system.formatting import size_text
from protofl.system.machine import free_ram, usable_cores
from protofl.system.options.settings import Settings
from protofl.system.transfers import free_memory, size_of


def gpus(settings: Settings) -> int:
    """Return the number of different devices among which clients are divided."""
    return len({*settings.device.split(",")})


def sharers(settings: Settings) -> int:
    """Return the largest number of processes with clients that share a device."""
    if settings.backend in ("local", "auto"):
        return 1
    named = len(settings.device.split(","))
    usual = named if settings.backend == "process" else len(usable_cores())
    return max(1, -(-min(settings.workers or usual, settings.clients) // gpus(settings)))


@lru_cache(maxsize=256)
def _model_size(architecture: Architecture, *sizes: object) -> int:
    """Return the bytes of the weights and buffers of a model."""
    model = unset_model(architecture, *sizes)  # type: ignore[arg-type]
    return size_of([*model.parameters(), *model.buffers()])


def client_sizes(info: RunInfo, clients: int, beside: int | None) -> Iterator[int]:
    """Yield the bytes of each client, see the rules above.

    Args:
        info: The run, or its dry run.
        clients: Clients of the run.
        beside: Bytes beside a model; None if they have not been measured.
    """
    for client in range(clients):
        architecture = info.architecture_of(client)
        size = _model_size(architecture, *info.sizes_of(architecture))
        yield 2 * size if beside is None else size + beside


def choose_store(
    info: RunInfo, settings: Settings, free: int, beside: int | None
) -> tuple[str, str]:
    """Return the value for ``--client-store auto`` and a line with the reason.

    Args:
        info: The run.
        settings: Its options.
        free: Bytes that are free on the device, without samples.
        beside: See `client_sizes`.
    """
    sizes = [*client_sizes(info, settings.clients, beside)]
    total, ram = -(-sum(sizes) // gpus(settings)), free_ram()
    of_device = f"half of the {size_text(free)} that are free on the device"
    if total <= free // 2:
        return "device", f"clients stay on the device: {size_text(total)}, at most {of_device}"
    much = f"{size_text(total)} are more than {of_device}"
    blocks = sum(1 << max(0, size - 1).bit_length() for size in sizes)
    if ram is None or blocks <= ram // 2:
        return "memory", f"clients lie in host memory: {much}"
    return "disk", f"clients lie on disk: {much}, and of the {size_text(ram)} of free host memory"


def room_for_samples(info: RunInfo, settings: Settings, device: torch.device, there: int) -> int:
    """Return the bytes that samples of one data set may take on a device.

    Args:
        info: The run, or its dry run.
        settings: Its options.
        device: The device.
        there: Bytes of other samples that lie there.
    """
    free = free_memory(device)
    clients = sum(client_sizes(info, settings.clients, None)) // gpus(settings)
    stay = {"auto": clients <= (free + there) // 2, "device": True}
    if stay.get(settings.client_store, False):
        free = max(0, free - clients)
    return free // (2 * sharers(settings))


def about_samples(size: int, room: int) -> str:
    """Return the line about samples that stay in host memory."""
    return (
        f"samples stay in host memory and are copied batch by batch: {size_text(size)} are more "
        f"than the {size_text(room)} that they may take on the device"
    )
