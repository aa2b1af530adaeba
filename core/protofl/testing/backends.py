"""Contract of backends: the results of hosts in this process, wherever the hosts are."""

from __future__ import annotations

from contextlib import closing
from typing import Any, ClassVar

import numpy as np

from protofl.errors import ProtoflError
from protofl.federation.jobs.jobs import Evaluate, EvaluateReply, StartTrial, Train
from protofl.federation.jobs.pool_interface import Pool
from protofl.federation.plan.plan import Plan
from protofl.federation.round.federation import Federation
from protofl.testing import toy
from protofl.testing.contract import Contract, expect, skipped


class BackendContract(Contract):
    """The checks of a backend.

    Hosts in other processes make the plan again from its JSON, so the run consists of installed
    plugins alone, and so does the backend where it starts such hosts.

    Attributes:
        method: The method that is run.
        models: Its model group.
        workers: Numbers of hosts to try.
    """

    kind = "backend"
    method: ClassVar[str] = "fedproto"
    models: ClassVar[str] = "cnn4"
    workers: ClassVar[tuple[int, ...]] = (1, 2)

    def plan(self, **options: Any) -> Plan:  # noqa: ANN401 - the options of a run
        """A small run on data in a file; hosts elsewhere find it there."""
        path = self.folder / "data.npz"
        if not path.exists():
            generator = np.random.default_rng(0)
            y = np.arange(48) % 4
            x = generator.integers(0, 60, (48, 28, 28)) + 40 * y[:, None, None]
            np.savez(path, x_train=x.astype(np.uint8), y_train=y)
        defaults = {
            "method": self.method,
            "models": self.models,
            "dataset": f"npz:{path}",
            "partition": "iid",
            "clients": 3,
            "rounds": 2,
            "feature_dim": 16,
            "data_dir": self.folder / "cache",
            "device": "cpu",
            "backend": "local",
            "block": self.block,
        }
        return Plan.make({**defaults, **options})

    def opened(self, plan: Plan, workers: int) -> Pool:
        """The backend's pool."""
        with skipped("it cannot be opened here"):
            pool: Pool | None = self.choice().call(
                "open_pool", plan=plan, workers=workers, idle=None
            )
        expect(pool is not None, "open_pool returns None")
        assert pool is not None
        for name in ("run", "broadcast", "close"):
            expect(callable(getattr(pool, name, None)), f"its pool has no {name}()")
        return pool

    def lines(self, plan: Plan, pool: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a pool
        """The record of two rounds, without what may differ between equal runs."""
        federation = Federation(plan, pool)
        federation.start_trial(0)
        result = []
        for number in range(2):
            line = dict(federation.round(number)[0])
            del line["seconds"]
            result.append({**line, "clients": dict(federation.client_accuracy)})
        return result

    def test_it_gives_the_same_results(self) -> None:
        """Rounds are those of one host in this process, to the last bit, with 1 and 2 workers."""
        plan = self.plan()
        expected = self.lines(plan, toy.WatchedPool(plan))
        for workers in self.workers:
            with closing(self.opened(plan, workers)) as pool:
                actual = self.lines(plan, pool)
            for number, (line, other) in enumerate(zip(expected, actual, strict=True)):
                wrong = [key for key in line if not toy.same(line[key], other[key])]
                place = f"{workers} workers, round {number}"
                expect(not wrong, f"{place}: {', '.join(wrong)} differs")

    def test_every_job_is_answered_once(self) -> None:
        """Each job returns once with its reply, and an empty list of jobs is accepted."""
        plan = self.plan()
        with closing(self.opened(plan, 2)) as pool:
            pool.broadcast(StartTrial(0))
            expect([*pool.run([])] == [], "no jobs, and something came back")
            jobs = [Evaluate(client, 0) for client in (2, 0, 1)]
            replies = [*pool.run(jobs)]
            clients = sorted(job.client for job, _ in replies if isinstance(job, Evaluate))
            expect(clients == [0, 1, 2], f"replies came for clients {clients}, not 0, 1 and 2")
            counts = [reply.count for _, reply in replies if isinstance(reply, EvaluateReply)]
            expect(len(counts) == 3 and all(counts), f"samples evaluated: {counts}")

    def test_an_error_in_a_host(self) -> None:
        """An error in a host arrives as an error of protofl that names the client."""
        plan = self.plan()
        with closing(self.opened(plan, 1)) as pool:
            pool.broadcast(StartTrial(0))
            try:
                list(pool.run([Train(1, 0, blob=b"no payload")]))
            except ProtoflError as error:
                self.remarks.append(f"said: {error.what}"[:120])
            except Exception as error:
                kind = type(error).__name__
                raise AssertionError(f"a {kind} arrived, which is not a ProtoflError") from error
            else:
                raise AssertionError("a damaged download went unnoticed")

    def test_closing(self) -> None:
        """A pool can be closed twice, and without having worked."""
        pool = self.opened(self.plan(), 1)
        pool.close()
        pool.close()
