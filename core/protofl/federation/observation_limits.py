"""Checks of `--observe`, and the expected size of observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from torch import Tensor

from protofl.errors import UsageError
from protofl.federation.plan import Plan
from protofl.hooks.transport.tensor_specs import Spec, SpecTable, known_key
from protofl.system.files.tensors import SIZES
from protofl.system.formatting import size_text

SERVER_KEYS = ("prototypes", "global_prototypes")
"""Keys of the server's prototypes; FedSA has global prototypes in addition to its anchors."""

NAMED = 96
"""Overhead in bytes of each tensor in a file."""


def is_observed(plan: Plan, round: int) -> bool:
    """Return True if prototypes, features and images of a round are recorded."""
    settings = plan.settings
    last = round + 1 == settings.rounds
    return bool(settings.observe) and (last or (round + 1) % settings.observe_every == 0)


def check_observing(plan: Plan) -> None:
    """Check that the methods of a run have what ``--observe`` asks for.

    Raises:
        UsageError: Its methods have nothing of what is asked for.
    """
    wanted, composition = plan.settings.observe, plan.composition
    sent = composition.declarations("upload_payload")
    given = composition.declarations("download_payload")
    method = plan.settings.method
    if "prototypes" in wanted and not sent.covers("prototypes"):
        raise UsageError(
            f"--observe prototypes: clients of {method} don't send prototypes",
            f"they send: {', '.join(sent.names or ()) or 'nothing'}",
            "observe features, or take a method that does",
        )
    if "images" in wanted and not given.covers("images"):
        raise UsageError(
            f"--observe images: the server of {method} makes no images",
            f"clients get: {', '.join(given.names or ()) or 'nothing'}",
            "leave it out, or take a method with an image generator (fedktl)",
        )


def report_size(plan: Plan, learned: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Report the space that the observations of a run will take.

    Args:
        plan: The run.
        learned: What the dry step has shown of uploads; empty where there was none.
        note: Takes the line.

    Raises:
        UsageError: It is more than ``--observe-limit`` allows.
    """
    sizes = ExpectedSize(plan, learned).by_what
    if not sizes:
        return
    unknown = [what for what, size in sizes.items() if size is None]
    parts = ", ".join(f"{what} {size_text(size)}" for what, size in sizes.items() if size)
    total, limit = sum(size or 0 for size in sizes.values()), plan.settings.observe_limit
    if total > limit * 1e6:
        largest = max(sizes, key=lambda what: sizes[what] or 0)
        raise UsageError(
            f"observations will use about {size_text(total)} ({parts}), and --observe-limit is "
            f"{limit:g} MB",
            "they are stored in the run folder",
            # A tenth more, as sizes are estimates.
            f"raise it (--observe-limit {int(total * 1.1 / 1e6) + 1}), or "
            + _LESS.get(largest, "observe fewer rounds (--observe-every)"),
        )
    if parts:
        note(f"observations will use about {size_text(total)} in the run folder ({parts})")
    for what in unknown:
        note(f"the size of {what} is not known in advance; at most {limit:g} MB are used")


@dataclass
class ExpectedSize:
    """The expected size of a run's observations in bytes.

    Attributes:
        plan: The run.
        learned: What the dry step has shown of uploads.
    """

    plan: Plan
    learned: Mapping[str, Any]

    @property
    def by_what(self) -> dict[str, int | None]:
        """Bytes of each kind of observation in all rounds and trials; None if not known."""
        settings, info = self.plan.settings, self.plan.info
        rounds, classes = range(settings.rounds), info.num_classes
        observed = sum(is_observed(self.plan, number) for number in rounds)
        found: dict[str, int | None] = {}
        if "prototypes" in settings.observe:
            clients = self._uploads(lambda name: name == "prototypes")
            if not clients:  # rows of width K of all classes that the clients of a round have
                rows = int((self._counts > 0).sum()) * info.participants // info.num_clients
                clients = rows * (4 * info.feature_dim + 16)
            declared = self.plan.composition.declarations("download_payload")
            tables = max(1, sum(declared.covers(key) for key in SERVER_KEYS))
            found["prototypes"] = observed * (clients + classes * info.feature_dim * 4 * tables)
        if "features" in settings.observe:
            found["features"] = self._features
        if "images" in settings.observe:
            found["images"] = observed * classes * (prod(info.sample.shape) + 8)
        found = {what: (size or 0) * settings.trials for what, size in found.items()}
        if settings.record_uploads:
            each = self._uploads(lambda name: True)
            found["uploads"] = each and each * settings.rounds * settings.trials
        return found

    @property
    def _features(self) -> int:
        """Bytes of features, in rounds that are evaluated and observed."""
        settings = self.plan.settings
        split, count = self.plan.split(0), self.plan.info.num_clients
        samples = split.offsets.diff()[1::2].clamp(max=settings.observe_samples)
        total, everyone = int(samples.sum()), settings.eval_clients == "all"
        each = total if everyone else total * self.plan.info.participants // count
        rounds = sum(
            is_observed(self.plan, number)
            for number in range(settings.rounds)
            if (number + 1) % settings.eval_every == 0 or number + 1 == settings.rounds
        )
        return rounds * each * (4 * self.plan.info.feature_dim + 16)

    @cached_property
    def _counts(self) -> Tensor:
        """Training samples by client and class."""
        return self.plan.split(0).counts(self.plan.data.y, self.plan.info.num_classes)[0]

    def _uploads(self, wanted: Callable[[str], bool]) -> int | None:
        """Return the bytes of a round's uploads of some keys; None if not known."""
        info = self.plan.info
        known = SpecTable(info, deepcopy({**self.learned}))
        if not known.tried:
            return None
        total = 0
        for client in range(info.num_clients):
            classes = int((self._counts[client] > 0).sum())
            for name, spec in known.expected(info.architecture_of(client).name).items():
                if wanted(name):
                    key = known_key(name)
                    if key and key.varies:
                        return None  # the rank of factors, which training alone brings about
                    total += self._size(name, spec, classes)
        return total * info.participants // info.num_clients

    def _size(self, name: str, spec: Spec, classes: int) -> int:
        """Return the bytes of a tensor of one client."""
        rows = self.plan.info.public if name.startswith("public_") else classes
        shape = [rows if d is None else d for d in spec.dims]
        return prod(shape) * SIZES[spec.dtype] + NAMED


_LESS = {
    "uploads": "leave --record-uploads out, or record fewer rounds",
    "features": "observe fewer rounds (--observe-every) or samples (--observe-samples)",
}
"""Advice for recording less of the largest part."""
