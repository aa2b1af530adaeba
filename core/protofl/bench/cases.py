"""The cases of ``protofl bench``, as data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from protofl.errors import unknown

Part = Literal["round", "evaluate", "server"]


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        name: DATA-WHAT.
        method: The method.
        models: The model group.
        data: ``digits``, or a data set that ``--data`` or ``--dataset`` may give as a file.
        clients: M; all take part in every round.
        samples: Training samples of each client.
        part: A whole round, the evaluation of all clients alone, or the server's step alone on
            what the clients sent in round 0.
        options: Other options of the run.
        check: Options that the comparison in float64 has in place of the case's own, where those
            make of the last place's rounding a difference that anybody sees.
        target: The ratio to the naive reference loop that is aimed at; None for none.
    """

    name: str
    method: str
    models: str
    data: str
    clients: int
    samples: int
    part: Part = "round"
    options: dict[str, Any] = field(default_factory=dict)
    check: dict[str, Any] = field(default_factory=dict)
    target: float | None = None

    def scaled(self, clients: int | None, samples: int | None) -> Case:
        """With other sizes; then it is no longer the case that the target is for."""
        changed = replace(self, clients=clients or self.clients, samples=samples or self.samples)
        return self if changed == self else replace(changed, target=None)


def _digits(method: str) -> Case:
    options = _auxiliary(method)
    return Case(
        f"digits-{method}", method, "htcnn8", "digits", clients=8, samples=120, options=options
    )


def _mnist(method: str, target: float | None = None) -> Case:
    options = _auxiliary(method)
    return Case(
        f"mnist-{method}", method, "htcnn8", "mnist", 20, 300, options=options, target=target
    )


def _auxiliary(method: str) -> dict[str, Any]:
    """Options of methods that share a model: the one of htcnn8 with the fewest parameters."""
    shared = method in ("fml", "fedkd")
    return {"options": {method: {"auxiliary": "htcnn8-2"}}} if shared else {}


WELL_CONDITIONED = {"batch_size": 40, "lr": 1e-6}
"""One small step a round. At 32 px the last feature maps are single pixels, and BatchNorm over ten
of them makes of weights' 1e-15 a difference of 0.2 in four steps of 0.01 (docs/bench.md)."""

CASES = (
    _digits("local"),
    _digits("fedproto"),
    _digits("fedtgp"),
    _digits("fedsa"),
    _digits("fml"),
    _digits("fedkd"),
    _mnist("local"),
    _mnist("fedproto", 2.4),
    _mnist("fedtgp", 3.0),
    _mnist("fedsa", 3.0),
    _mnist("fml", 3.0),
    _mnist("fedkd", 3.0),
    Case("mnist-fedavg", "fedavg", "cnn4", "mnist", 20, 300),
    Case("mnist-evaluation", "fedproto", "htcnn8", "mnist", 20, 300, "evaluate", target=8.0),
    Case("mnist-server", "fedtgp", "htcnn8", "mnist", 20, 300, "server", target=3.0),
    Case(
        "cifar10-fedproto",
        "fedproto",
        "htfe8",
        "cifar10",
        20,
        40,
        check=WELL_CONDITIONED,
        target=1.6,
    ),
    Case(
        "cifar10-fedproto-bf16",
        "fedproto",
        "htfe8",
        "cifar10",
        20,
        40,
        options={"precision": "bf16"},
        target=2.0,
    ),
)
"""All cases. 20 × 300 training images in batches of 10 are 600 steps a round."""

QUICK = ("digits-fedproto", "digits-fedtgp", "digits-fml", "digits-fedkd")
"""What is measured where no case is named: about a minute on two cores, without any file."""


def choose(names: Iterable[str]) -> list[Case]:
    """The cases of names and patterns (``mnist-*``, ``all``), each once, in the table's order.

    Raises:
        UsageError: A name or pattern fits no case.
    """
    wanted = list(names) or list(QUICK)
    found: set[str] = set()
    for name in wanted:
        pattern = "*" if name == "all" else name
        fits = {case.name for case in CASES if fnmatchcase(case.name, pattern)}
        if not fits:
            known = [case.name for case in CASES]
            raise unknown("case", name, known, "see: protofl bench --list")
        found |= fits
    return [case for case in CASES if case.name in found]
