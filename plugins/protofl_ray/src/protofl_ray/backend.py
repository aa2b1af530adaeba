"""The backend with Ray actors: on this machine, or on all machines of a cluster."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import protofl as pf
from protofl_ray import cluster
from protofl_ray.actor import HostActor, fingerprint

APART = 64 << 10
"""Bytes from which a download is put into Ray's object store: once for all who get it."""


class _Downloads:
    """Downloads in Ray's object store. The same bytes are there once, and cross to a machine once.

    Args:
        ray: The module.
        most: Downloads to keep, the last used ones: about as many as there are architectures.
    """

    def __init__(self, ray: Any, most: int = 16) -> None:  # noqa: ANN401 - a module
        self._ray, self._most = ray, most
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[bytes, Any]] = OrderedDict()

    def passed(self, blob: bytes) -> Any:  # noqa: ANN401 - bytes or a reference to them
        """Return the argument of a call."""
        if len(blob) < APART:
            return blob
        with self._lock:
            # The bytes are kept beside the reference, so that their identity stays unique.
            pair = self._kept.pop(id(blob), None) or (blob, self._ray.put(blob))
            self._kept[id(blob)] = pair
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return pair[1]


class Actor:
    """A host in an actor.

    Args:
        pool: What actors of a run have in common.
        number: Its number.
        wait: Whether to wait until Ray has found a place for it.

    Raises:
        HostFailure: Ray found none in time.
    """

    def __init__(self, pool: Pool, number: int, *, wait: bool) -> None:
        self.number, self._pool = number, pool
        self._actor = pool.remote.remote()
        self._place = self._actor.place.remote()
        self._built = self._actor.build.remote(pool.plan, pool.expected)
        self._actor.warm_up.remote()
        self._ready, self._where = False, ""
        if wait:
            self._wait_for_place()

    def _wait_for_place(self) -> None:
        ray, seconds = self._pool.ray, self._pool.config.patience
        ready, _ = ray.wait([self._place], timeout=seconds)
        if not ready:
            self.close()
            raise pf.backends.HostFailure(
                f"actor {self.number} found no place within {seconds:g} s",
                f"free in the cluster: {cluster.listed(ray.available_resources())}",
                "add a node, ask for fewer --workers or a smaller share, or raise backend.patience",
            )
        place = json.loads(self._get(self._place, "starting"))
        self._where = f" (process {place['process']} on {place['machine']})"

    def do(self, job: pf.backends.Job) -> pf.backends.Reply:
        """Execute a job and return the reply.

        Raises:
            HostFailure: The actor or its machine ended.
        """
        if not self._ready:
            if not self._where:
                self._wait_for_place()
            _reply(json.loads(self._get(self._built, "starting")), b"")
            self._ready = True
        doing = str(job)
        header = json.dumps(job.header()).encode()
        calls = self._actor.do.options(num_returns=2)
        answer, data = self._get(
            list(calls.remote(header, self._pool.downloads.passed(job.blob))), doing
        )
        return _reply(json.loads(answer), data)

    def _get(self, references: Any, doing: str) -> Any:  # noqa: ANN401 - bytes, or several
        ray = self._pool.ray
        try:
            return ray.get(references)
        except ray.exceptions.RuntimeEnvSetupError as error:
            raise pf.UsageError(
                "Ray could not set up backend.runtime_env", str(error).strip().splitlines()[-1]
            ) from error
        except ray.exceptions.RayTaskError as error:
            raise pf.RunFailure(
                f"actor {self.number}{self._where} failed during: {doing}",
                str(error).strip().splitlines()[-1],
                "protofl and the run's plugins have to be installed on all machines",
            ) from error
        except ray.exceptions.RayError as error:
            raise pf.backends.HostFailure(
                f"actor {self.number}{self._where} ended during: {doing}",
                type(error).__name__,
                "if its memory ran out: fewer --workers, or a larger share (backend.num_cpus)",
            ) from error

    def close(self) -> None:
        """End the actor."""
        with suppress(Exception):  # the actor or Ray may have ended
            self._pool.ray.kill(self._actor)


def _reply(header: dict[str, Any], blob: bytes) -> pf.backends.Reply:
    if "failure" in header:
        raise pf.ProtoflError.from_values(header["failure"])
    return pf.backends.Reply.from_header(header, blob)


class Pool(pf.backends.Dispatcher):
    """Actors, and the Ray that was started or joined for them.

    Args:
        ray: The module, connected.
        leave: Disconnects, and stops a Ray that was started for this run.
        plan: The run.
        config: The backend's options.
        workers: Actors to start.
    """

    def __init__(
        self,
        ray: Any,  # noqa: ANN401 - a module
        leave: cluster.Leave,
        plan: pf.backends.Plan,
        config: cluster.Config,
        workers: int,
    ) -> None:
        self.ray, self.config, self._leave = ray, config, leave
        self.plan = plan.to_json().encode()
        self.expected = json.dumps(fingerprint(plan)).encode()
        self.downloads = _Downloads(ray)
        self.remote = ray.remote(HostActor).options(**config.share(), **cluster.ACTOR)
        first = set(range(workers))

        def start(number: int) -> Actor:
            # The first ones are waited for when they are needed; a later one replaces another.
            wait = number not in first
            first.discard(number)
            return Actor(self, number, wait=wait)

        super().__init__(start, workers, job_limit=plan.settings.job_limit)

    def close(self) -> None:
        """End the actors."""
        super().close()
        self._leave()


class Ray:
    """Ray actors with one thread each, on this machine or on the machines of a cluster."""

    Config = cluster.Config

    @pf.hookimpl
    def open_pool(self, plan: pf.backends.Plan, config: cluster.Config, workers: int) -> Pool:
        """Start or join Ray and start the actors, which load while the run prepares itself."""
        cluster.check(plan, config)
        ray, leave = cluster.connect(config, workers)
        try:
            count = cluster.actors(ray, config, workers)
            return Pool(ray, leave, plan, config, min(count, plan.info.num_clients))
        except BaseException:
            leave()
            raise
