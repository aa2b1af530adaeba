"""Starting or joining Ray, and what it has to give."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from pydantic import field_validator

import protofl as pf

Leave = Callable[[], None]

ACTOR = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
"""Options of actors: spread over the machines, and replaced by the run, never by Ray."""

# Ray prints these to the screen of the run, which says it in a line of its own.
_TOLD_OTHERWISE = "worker died or was killed|node .*dead|raylet|out of memory|OOM|actor .*died"


class Config(pf.Config):
    """Options of the ray backend."""

    address: str | None = pf.Field(
        None,
        consent=True,
        description="the cluster: auto (the one on this machine), host:port or ray://host:port; "
        "none starts a Ray of its own and stops it afterwards",
    )
    num_cpus: float = pf.Field(1.0, ge=0, le=1024, description="cores of an actor, or a share of 1")
    num_gpus: float = pf.Field(0.0, ge=0, le=64, description="GPUs of an actor, or a share of 1")
    patience: float = pf.Field(
        60.0, gt=0, description="seconds to wait for a place in the cluster for an actor"
    )
    runtime_env: dict[str, Any] | None = pf.Field(
        None,
        consent=True,
        description="Ray's runtime environment of the actors, as JSON: working_dir, py_modules, "
        "pip, env_vars",
    )

    @field_validator("runtime_env", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:  # noqa: ANN401 - as given
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("num_cpus", "num_gpus")
    @classmethod
    def _whole_or_share(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("more than 1 has to be a whole number")
        return value

    def share(self) -> dict[str, Any]:
        """The resources of an actor."""
        environment = {} if self.runtime_env is None else {"runtime_env": self.runtime_env}
        return {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, **environment}


def check(plan: pf.backends.Plan, config: Config) -> None:
    """Find what can't work before Ray is started.

    Raises:
        UsageError: The GPU share and the device don't fit each other.
    """
    cuda = plan.device.type == "cuda"
    if cuda and not config.num_gpus:
        raise pf.UsageError(
            "--device cuda: Ray hides the GPUs from an actor that has no share of one",
            do="give it one: --set backend.num_gpus=0.5 (two actors on a GPU)",
        )
    if cuda and plan.device.index:
        raise pf.UsageError(
            f"--device {plan.device}: Ray chooses the GPU of an actor, which sees it as number 0",
            do="use --device cuda",
        )
    if config.num_gpus and not cuda:
        raise pf.UsageError(
            f"backend.num_gpus={config.num_gpus:g}, but the run computes on {plan.device}",
            do="use --device cuda on a machine with a GPU, or leave num_gpus out",
        )
    if not config.num_cpus and not config.num_gpus:
        raise pf.UsageError(
            "backend.num_cpus=0 and num_gpus=0: Ray would put any number of actors anywhere",
            do="give an actor a share of a core",
        )


def connect(config: Config, workers: int) -> tuple[Any, Leave]:
    """Start a Ray on this machine, or join the cluster at ``config.address``.

    Returns:
        The module, and a function that ends what was begun here.

    Raises:
        UsageError: Ray is not installed or does not start, or nothing answers at the address.
    """
    ray = _import()
    if ray.is_initialized():  # by the program that called; it stays
        return ray, lambda: None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if config.address is None:
        needed_cpus = math.ceil(workers * config.num_cpus)
        options |= {"address": "local", "include_dashboard": False}
        options["num_cpus"] = max(
            len(pf.backends.Dispatcher.cores()), needed_cpus, math.ceil(config.num_cpus)
        )
    else:
        options["address"] = config.address
        _answers(config.address)
    with _own_sigterm(), _loopback(ray, only=config.address is None):
        try:
            ray.init(**options)
        except Exception as error:  # a start that takes too long is a plain Exception
            with suppress(Exception):
                ray.shutdown()
            where, do = "Ray could not be started here", _RETRY
            if config.address is not None:
                where = f"backend.address={config.address}: no Ray cluster could be joined"
                do = _HOW
            line = str(error).strip().splitlines() or [type(error).__name__]
            raise pf.UsageError(where, line[0], do) from error
    return ray, lambda: ray.shutdown()


_RETRY = (
    "the machine may be busy or lack memory or disk: try again, use fewer --workers, or choose "
    "--backend process"
)
_HOW = "start a cluster with: ray start --head, or leave backend.address out"


def _import() -> Any:  # noqa: ANN401 - a module
    # Read by Ray when it is imported. Users did not ask for reports to Ray's makers, and what Ray
    # prints of a death would break the progress bar.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _TOLD_OTHERWISE)
    try:
        import ray
    except ImportError:
        raise pf.UsageError(
            "backend 'ray': Ray is not installed",
            do="install it: pip install 'protofl[ray]', from a checkout: "
            "pip install . ./plugins/protofl_ray",
        ) from None
    return ray


def _answers(address: str) -> None:
    """Try the port first: Ray itself waits long for a cluster that isn't there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address in ("auto", "local") or not host:
        if address in ("auto", "local"):
            return
        raise pf.UsageError(
            f"backend.address={address} is not an address", "auto, host:port, ray://host:port", _HOW
        )
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise pf.UsageError(
            f"backend.address={address}: nothing answers there ({error})", do=_HOW
        ) from None


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Ray takes over SIGTERM of the process that starts it; give it back."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if main and before is not None:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback(ray: Any, *, only: bool) -> Iterator[None]:  # noqa: ANN401 - a module
    """Let a Ray that starts in this block listen on 127.0.0.1 only, if requested.

    Whoever reaches a port of Ray can run code, and on Linux it listens on all interfaces. It binds
    loopback where it is not meant for clusters, as on Windows and macOS; a switch says which.
    """
    constants = getattr(getattr(ray, "_private", None), "ray_constants", None)
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    if not only or before is None:
        yield
        return
    setattr(constants, "ENABLE_RAY_CLUSTER", False)  # noqa: B010 - a module without types
    try:
        yield
    finally:
        setattr(constants, "ENABLE_RAY_CLUSTER", before)  # noqa: B010


def actors(ray: Any, config: Config, workers: int) -> int:  # noqa: ANN401 - a module
    """Return the number of actors: as requested, otherwise as many as the resources allow.

    Raises:
        UsageError: The cluster is too small, whoever else is using it.
    """
    fits = room(ray.cluster_resources(), config)
    if fits < max(workers, 1):
        raise pf.UsageError(
            f"{max(workers, 1)} actors with {config.num_cpus:g} cores and {config.num_gpus:g} GPUs "
            f"each don't fit into the cluster, {fits} do",
            f"it has: {listed(ray.cluster_resources())}",
            "ask for fewer --workers, or a smaller share: --set backend.num_cpus=0.5",
        )
    return workers or max(1, min(fits, room(ray.available_resources(), config)))


def room(resources: Mapping[str, float], config: Config) -> int:
    """Actors for which there are resources; shares can't be put together across machines."""
    shares = {"CPU": config.num_cpus, "GPU": config.num_gpus}
    return min(int(resources.get(name, 0) / share) for name, share in shares.items() if share)


def listed(resources: Mapping[str, float]) -> str:
    """Cores and GPUs among resources, in words."""
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
