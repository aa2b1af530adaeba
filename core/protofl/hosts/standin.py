"""Stand-ins: what `local_loss` sees in a client's stead when an engine replaces its tensors.

An engine that runs a step for many clients at once, or replays it from fixed memory, gives the
step other tensors than the client's own. Weights are reached through modules; everything else
that a step may read (scratch, state, download) is an *entry*, found by its path. A stand-in tells
the engine which entries a step asks for, and which plain values it looked at, on which the step
then depends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor, nn

from protofl.views.client import Client
from protofl.wire.payload import Payload

if TYPE_CHECKING:
    from protofl.hosts.jobs import TrainJob
    from protofl.views.records import ClientRecord

Path = tuple[str, str, str]
"""An entry: its place (``scratch``, ``state``, ``received``, ``counts``), its owner, its key."""

Fact = tuple[str, ...]
"""The name of a plain value that a step looked at."""


class Whole(nn.Module):
    """A client's model and the modules that methods gave it, as one module.

    Calling it calls the function that it is given, so that `torch.func.functional_call` replaces
    the parameters of all of them while that function runs.
    """

    def __init__(self, model: nn.Module, slots: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.model = model
        self.slots = nn.ModuleDict({name.replace(".", "-"): m for name, m in slots.items()})

    def forward(self, function: Callable[..., Any], *given: Any) -> Any:  # noqa: ANN401
        """What the function returns."""
        return function(*given)

    @property
    def modes(self) -> tuple[bool, ...]:
        """Which modules are in train mode."""
        return tuple(m.training for m in self.modules() if m is not self and m is not self.slots)


def whole_of(record: ClientRecord) -> Whole:
    """The client's own model and modules, not copies."""
    return Whole(record.model, {name: slot.module for name, slot in record.slots()})


# --- entries and facts of a client ----------------------------------------------------------------


def entry_of(record: ClientRecord, path: Path) -> Any:  # noqa: ANN401 - a tree of tensors
    """An entry of a client."""
    place, owner, key = path
    if place == "counts":
        return record.class_counts
    if place == "received":
        return record.received[key]
    return getattr(record, place).get(owner, {})[key]


def fact_of(record: ClientRecord, fact: Fact) -> Any:  # noqa: ANN401 - a plain value
    """A plain value of a client."""
    name, *rest = fact
    if name == "num_samples":
        return len(record.train)
    if name in ("has", "keys"):
        place, owner, *key = rest
        held = record.received if place == "received" else getattr(record, place).get(owner, {})
        return key[0] in held if name == "has" else tuple(held.keys())
    return getattr(record, name)


def _leaves(tree: Any) -> list[Tensor]:  # noqa: ANN401 - a tree of tensors
    """The tensors of nested dicts, lists and tuples, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    parts: Iterable[Any] = ()
    if isinstance(tree, Mapping):
        parts = tree.values()
    elif isinstance(tree, (list, tuple)):
        parts = tree
    return [leaf for part in parts for leaf in _leaves(part)]


def _with_leaves(tree: Any, tensors: Iterator[Tensor]) -> Any:  # noqa: ANN401 - a tree of tensors
    """The same tree with other tensors, taken in the order of `leaves`."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if isinstance(tree, Mapping):
        return {key: _with_leaves(part, tensors) for key, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_with_leaves(part, tensors) for part in tree)
    return tree


def _outline(tree: Any) -> Any:  # noqa: ANN401 - a tree of tensors
    """All of a tree but its tensors' values: structure, shapes, types, plain values.

    Raises:
        Unfit: It holds something that is no tensor, number, string, dict, list or tuple.
    """
    if isinstance(tree, Tensor):
        return ("tensor", tuple(tree.shape), tree.dtype, tree.device)
    if isinstance(tree, Mapping):
        return ("dict", tuple((key, _outline(part)) for key, part in tree.items()))
    if isinstance(tree, (list, tuple)):
        return (type(tree).__name__, tuple(_outline(part) for part in tree))
    if tree is None or isinstance(tree, (bool, int, float, str, torch.dtype, torch.device)):
        return ("value", tree)
    raise StandIn.Unfit(f"the loss reads a {type(tree).__name__} that a method keeps")


# --- the stand-in ---------------------------------------------------------------------------------


class StandIn:
    """What a step sees in the stead of one client, or of each client of a group.

    Args:
        records: The clients. What a step reads of them beside tensors must be the same.
        whole: The modules that stand for theirs, named as the first client's.

    Attributes:
        values: The entries that steps see, by path; the engine fills them in.
        facts: The plain values that steps have looked at.
        recorded: Where not None, plain values are these, whoever the clients are: a step that was
            recorded once holds the values of that time.
    """

    class Unfit(Exception):
        """A step can't be run by a stand-in; the message says why."""

    class Wanted(Exception):
        """A step asked for an entry that the engine has not provided yet."""

        def __init__(self, path: Path) -> None:
            super().__init__(f"{path[0]} entry {path[2]!r}")
            self.path = path

    leaves = staticmethod(_leaves)
    with_leaves = staticmethod(_with_leaves)
    outline = staticmethod(_outline)

    def __init__(self, records: Sequence[ClientRecord], whole: Whole) -> None:
        self.values: dict[Path, Any] = {}
        self.facts: dict[Fact, Any] = {}
        self.recorded: Mapping[Fact, Any] | None = None
        self._records = list(records)
        self._record = _Record(self, records[0], whole)

    def view(self, owner: str) -> Client:
        """The stand-in as the method ``owner`` sees a client."""
        record = cast("ClientRecord", self._record)
        return Client(record, owner, self._record.configs[owner])

    def stand_for(self, *jobs: TrainJob) -> None:
        """Stand for other clients from now on, or for none."""
        self._records = [job.record for job in jobs]

    def collect(self, path: Path) -> list[Any]:
        """An entry of each client."""
        return [entry_of(record, path) for record in self._records]

    def true(self, facts: Mapping[Fact, Any]) -> bool:
        """Whether plain values that a step has looked at are those of all clients."""
        return all(
            fact_of(r, fact) == value for r in self._records for fact, value in facts.items()
        )

    def fact(self, fact: Fact) -> Any:  # noqa: ANN401 - a plain value
        """A plain value of the clients.

        Raises:
            Unfit: They differ in it.
        """
        if self.recorded is not None:
            return self.recorded[fact]
        found = [fact_of(record, fact) for record in self._records]
        if any(other != found[0] for other in found):
            raise StandIn.Unfit(f"clients differ in {' '.join(fact)}, which the loss reads")
        self.facts[fact] = found[0]
        return found[0]

    def entry(self, path: Path) -> Any:  # noqa: ANN401 - a tree of tensors
        """An entry as the step shall see it.

        Raises:
            Wanted: It has not been provided.
        """
        if path not in self.values:
            raise StandIn.Wanted(path)
        return self.values[path]


# --- what hooks see in place of a record ----------------------------------------------------------


def _refuse(what: str) -> NoReturn:
    raise StandIn.Unfit(f"the loss uses client.{what}, which only its own engine run can give")


class _Record:
    """A client record to `protofl.Client`, made of a stand-in's parts."""

    def __init__(self, owner: StandIn, first: ClientRecord, whole: Whole) -> None:
        self._owner = owner
        self.info, self.seed = first.info, first.seed
        self.device, self.configs = first.device, first.configs
        self.model = whole.model
        slots = dict(zip((n for n, _ in first.slots()), whole.slots.values(), strict=True))
        self.modules = {
            method: {n: _Slot(slots[f"{method}/{n}"]) for n in own}
            for method, own in first.modules.items()
        }
        self.state, self.scratch = _Places(owner, "state"), _Places(owner, "scratch")
        self.train = _Train(owner)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - plain values
        if name in ("id", "round", "steps"):
            return self._owner.fact((name,))
        _refuse(name)

    @property
    def received(self) -> Payload:
        return _Received(self._owner)

    @property
    def class_counts(self) -> Any:  # noqa: ANN401 - a tensor
        return self._owner.entry(("counts", "", ""))


class _Slot:
    def __init__(self, module: nn.Module) -> None:
        self.module = module


class _Train:
    """The training samples: only their number."""

    def __init__(self, owner: StandIn) -> None:
        self._owner = owner

    def __len__(self) -> int:
        return int(self._owner.fact(("num_samples",)))

    def __getattr__(self, name: str) -> NoReturn:
        _refuse(f"train.{name}")


class _Places:
    """``state`` or ``scratch`` of all methods."""

    def __init__(self, owner: StandIn, place: str) -> None:
        self._owner, self._place = owner, place

    def setdefault(self, method: str, default: object) -> _Entries:
        return _Entries(self._owner, self._place, method)


class _Entries(Mapping[str, Any]):
    """What one method keeps; reading only."""

    def __init__(self, owner: StandIn, place: str, method: str) -> None:
        self._owner, self._at = owner, (place, method)

    def __contains__(self, key: object) -> bool:
        return bool(self._owner.fact(("has", *self._at, str(key))))

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - as the method keeps it
        if key not in self:
            raise KeyError(key)
        return self._owner.entry((*self._at, key))

    def __setitem__(self, key: str, value: object) -> NoReturn:
        raise StandIn.Unfit(f"the loss writes {key!r} into client.{self._at[0]}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._owner.fact(("keys", *self._at)))

    def __len__(self) -> int:
        return len(self._owner.fact(("keys", *self._at)))


class _Received(Payload):
    """The download, entry by entry."""

    def __init__(self, owner: StandIn) -> None:
        super().__init__()
        self._owner = owner

    def __contains__(self, key: object) -> bool:
        return bool(self._owner.fact(("has", "received", "", str(key))))

    def __getitem__(self, key: str) -> Tensor:
        if key not in self:
            return self.__missing__(key)
        return cast(Tensor, self._owner.entry(("received", "", key)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._owner.fact(("keys", "received", "")))

    def __len__(self) -> int:
        return len(self._owner.fact(("keys", "received", "")))

    def keys(self) -> Any:  # noqa: ANN401 - as dict has it
        return {key: None for key in self}.keys()

    def items(self) -> Any:  # noqa: ANN401 - as dict has it
        return [(key, self[key]) for key in self]

    def values(self) -> Any:  # noqa: ANN401 - as dict has it
        return [self[key] for key in self]

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - as dict has it
        return self[key] if key in self else default

    def under(self, prefix: str) -> dict[str, Tensor]:
        start = prefix + "/"
        return {key[len(start) :]: self[key] for key in self if key.startswith(start)}

    def classes_of(self, name: str) -> Tensor:
        own = f"{name}.classes"
        return self[own] if own in self else self["classes"]
