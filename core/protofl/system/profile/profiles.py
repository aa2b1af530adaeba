"""The profile of a run and of a host, which is imported only if the run asks for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protofl.system.profile.clock import Unprofiled, UnprofiledHost

if TYPE_CHECKING:
    import torch


def run_profile(on: bool, architecture_of: Callable[[int], str]) -> Unprofiled:
    """Return the profile of a run.

    Args:
        on: True to profile the run.
        architecture_of: Returns the name of a client's architecture.
    """
    if not on:
        return Unprofiled()
    from protofl.system.profile.run_profile import RunProfile

    return RunProfile(architecture_of)


def host_profile(on: bool, device: torch.device) -> UnprofiledHost:
    """Return the profile of a host.

    Args:
        on: True to profile the run.
        device: The clients' device.
    """
    if not on:
        return UnprofiledHost()
    from protofl.system.profile.host_profile import HostProfile

    return HostProfile(device)
