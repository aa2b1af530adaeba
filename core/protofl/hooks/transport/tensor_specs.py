"""Types and shapes by key, and which dimensions may vary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from protofl.hooks.models.architecture import unset_model
from protofl.hooks.transport.rules import Fault
from protofl.hooks.views.run_info import RunInfo
from protofl.hooks.wire.vocabulary import Key, find_key
from protofl.hooks.wire.weights import weight_views
from protofl.system.files.tensors import TYPES, Entry

Header = Mapping[str, Entry]


OWN = ("model", "head")
"""Parts that, where they are a client's own, are as its architecture is built."""


_TEXT = re.compile(r"(\w+)\[([\d*, ]*)\](\?)?")


@lru_cache(4096)
def known_key(name: str) -> Key | None:
    """The vocabulary's entry for a name."""
    return find_key(name)


@dataclass(frozen=True)
class Spec:
    """The type and shape of a tensor.

    Attributes:
        dtype: Its type.
        dims: Its shape; None where the size may vary.
        optional: Whether some of those that were seen lacked it.
    """

    dtype: str
    dims: tuple[int | None, ...]
    optional: bool = False

    @classmethod
    def of(cls, name: str, entry: Entry) -> Spec:
        """Return the spec of a tensor.

        The number of rows may vary, but not of weights; and the rank of factors (FedKD).
        """
        dims: list[int | None] = list(entry.shape)
        key = known_key(name)
        if "/" not in name:
            dims[:1] = [None] * bool(dims)
        elif key and key.varies and len(dims) >= -key.varies:
            dims[key.varies] = None
        return cls(entry.dtype, tuple(dims))

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse what ``str`` wrote."""
        found = _TEXT.fullmatch(text)
        assert found, text
        sizes = [part for part in found[2].split(", ") if part]
        dims = tuple(None if part == "*" else int(part) for part in sizes)
        return cls(found[1], dims, bool(found[3]))

    def __str__(self) -> str:
        return f"{self.words}{'?' * self.optional}"

    @property
    def words(self) -> str:
        """``F32[*, 512]``."""
        return f"{self.dtype}[{', '.join('*' if d is None else str(d) for d in self.dims)}]"

    def merged(self, other: Spec) -> Spec:
        """Merge two specs: dimensions that differ become free.

        Return `other` if rank or dtype differ.
        """
        if other.dtype != self.dtype or len(other.dims) != len(self.dims):
            return other
        pairs = zip(self.dims, other.dims, strict=True)
        return replace(self, dims=tuple(a if a == b else None for a, b in pairs))

    def check(self, name: str, entry: Entry) -> None:
        """Check a tensor.

        Raises:
            Fault: It is of another type or shape.
        """
        if entry.dtype != self.dtype:
            raise Fault(name, "dtype", f"of type {entry.dtype}, it is {self.words}")
        pairs = zip(self.dims, entry.shape, strict=False)
        if len(self.dims) != len(entry.shape) or any(d not in (None, n) for d, n in pairs):
            raise Fault(name, "shape", f"of shape {list(entry.shape)}, it is {self.words}")
        key = known_key(name)
        if key and key.varies:
            rank, sizes = entry.shape[key.varies], [d for d in self.dims if d is not None]
            if rank < 1 or (sizes and rank > max(sizes)):
                raise Fault(name, "shape", f"with rank {rank}, it is {self.words}")


def check_ranks(header: Header) -> None:
    """Check that the factors of one tensor have the same rank.

    Raises:
        Fault: They have several.
    """
    ranks: dict[str, int] = {}
    for name, entry in header.items():
        key = known_key(name)
        if key and key.varies and len(entry.shape) >= -key.varies:
            rank = entry.shape[key.varies]
            if ranks.setdefault(name.rpartition("/")[0], rank) != rank:
                raise Fault(name, "shape", f"with rank {rank}, and other factors with another")


class SpecTable:
    """The known specs of keys, by the architecture of the sender.

    Weights of a client's own model or head are as its architecture has them, also where none of
    that architecture was seen; other keys on which all that were seen agree are the same for all.

    Args:
        info: The run.
        state: Where it is kept, as JSON can hold it: ``tried``, the architectures of the dry step,
            and ``specs``, {architecture: {key: text of a `Spec`}}.
    """

    def __init__(self, info: RunInfo, state: dict[str, Any]) -> None:
        self._info = info
        self._tried: list[str] = state.setdefault("tried", [])
        self._texts: dict[str, dict[str, str]] = state.setdefault("specs", {})
        self._specs = {a: {n: Spec.parse(t) for n, t in s.items()} for a, s in self._texts.items()}
        self._models: dict[tuple[str, str], dict[str, Spec]] = {}
        self._found: dict[tuple[str, str], Spec | None] = {}
        self._expected: dict[str, dict[str, Spec]] = {}

    @property
    def tried(self) -> bool:
        """True if the dry step has shown what is sent."""
        return bool(self._tried)

    def see(self, architecture: str, header: Header) -> None:
        """Learn from a payload of the dry step."""
        first = architecture not in self._tried
        if first:
            self._tried.append(architecture)
        specs = self._specs.setdefault(architecture, {})
        for name, entry in header.items():
            new = replace(Spec.of(name, entry), optional=not first and name not in specs)
            self.put(architecture, name, specs[name].merged(new) if name in specs else new)
        for name in [*specs.keys() - header.keys()]:
            self.put(architecture, name, replace(specs[name], optional=True))

    def put(self, architecture: str, name: str, spec: Spec) -> None:
        """Set the spec of a key."""
        self._specs.setdefault(architecture, {})[name] = spec
        self._texts.setdefault(architecture, {})[name] = str(spec)
        self._found, self._expected = {}, {}

    def of(self, architecture: str) -> Mapping[str, Spec]:
        """Return the specs of the keys that clients of an architecture have sent."""
        return self._specs.get(architecture, {})

    def find(self, architecture: str, name: str) -> Spec | None:
        """Return the spec of a key for this architecture, or None if unknown."""
        own = self.of(architecture).get(name)
        if own is not None:
            return own
        place = architecture, name
        if place not in self._found:
            self._found[place] = self._derived(architecture, name)
        return self._found[place]

    def holds_part(self, architecture: str, name: str) -> bool:
        """Return True if other keys under the same prefix are known for this architecture."""
        start, slash, _ = name.partition("/")
        if not slash:
            return False
        part = f"{start}/"
        if any(key.startswith(part) for key in self.of(architecture)) or self._is_own(start):
            return True
        return bool(self._agreed(part))

    def expected(self, architecture: str) -> Mapping[str, Spec]:
        """Return the keys that uploads of this architecture are expected to have."""
        if architecture in self._tried:
            return self.of(architecture)
        if architecture not in self._expected:
            names = {name for specs in self._specs.values() for name in specs}
            found: dict[str, Spec] = {}
            for part in sorted({n.partition("/")[0] + "/" * ("/" in n) for n in names}):
                found.update(self._whole(architecture, part))
            self._expected[architecture] = found | dict(self.of(architecture))
        return self._expected[architecture]

    def _whole(self, architecture: str, start: str) -> Mapping[str, Spec]:
        """Return expected keys under `start` of an architecture that the dry step has not run."""
        part = start.removesuffix("/")
        if part == start or not self._is_own(part):
            return self._agreed(start)
        for other, specs in self._specs.items():
            seen = _specs_under(specs, start)
            if seen and self._parameters(other, part) - seen.keys():
                return {}  # some of its layers, and which of another's is not known
        weights, needed = self._weights(architecture, part), self._parameters(architecture, part)
        return {name: spec for name, spec in weights.items() if name in needed}

    def _parameters(self, architecture: str, part: str) -> set[str]:
        buffers = f"{part}/buffer/"
        return {n for n in self._weights(architecture, part) if not n.startswith(buffers)}

    def built(self, architecture: str, name: str) -> Spec | None:
        """Return the spec of a weight of an architecture's model or head; None for other keys."""
        part = name.partition("/")[0]
        return self._weights(architecture, part).get(name) if part in OWN else None

    def _derived(self, architecture: str, name: str) -> Spec | None:
        start, slash, _ = name.partition("/")
        if not slash:
            return self._agreed(name).get(name)
        if self._is_own(start):
            return self._weights(architecture, start).get(name)
        if any(key.startswith(f"{start}/") for key in self.of(architecture)):
            return None
        return self._agreed(f"{start}/").get(name)

    def _agreed(self, start: str) -> Mapping[str, Spec]:
        """Return the specs under `start` if all architectures that have any agree."""
        found = [_specs_under(specs, start) for specs in self._specs.values()]
        found = [specs for specs in found if specs]
        return found[0] if found and all(specs == found[0] for specs in found) else {}

    def _is_own(self, part: str) -> bool:
        """Return True if every ``PART/*`` that was sent has the sender's own architecture."""
        if part not in OWN:
            return False
        found = {a: _specs_under(specs, f"{part}/") for a, specs in self._specs.items()}
        found = {a: specs for a, specs in found.items() if specs}
        return bool(found) and all(
            specs.items() <= self._weights(a, part).items() for a, specs in found.items()
        )

    def _weights(self, architecture: str, part: str) -> Mapping[str, Spec]:
        """Return the specs of an architecture's model or head, by wire names."""
        place = architecture, part
        if place not in self._models:
            info = self._info
            found = next(a for a in info.architectures if a.name == architecture)
            model = unset_model(found, info.sample, info.num_classes, info.feature_dim)
            for name, module in (("model", model), ("head", model.head)):
                self._models[architecture, name] = {
                    key: Spec(TYPES.get(tensor.dtype, "F32"), tuple(tensor.shape))
                    for key, tensor in weight_views(module, name).items()
                }
        return self._models[place]


def _specs_under(specs: Mapping[str, Spec], start: str) -> dict[str, Spec]:
    """Select the specs whose key starts with `start` (if it ends with "/") or equals it."""
    many = start.endswith("/")
    return {n: s for n, s in specs.items() if (n.startswith(start) if many else n == start)}


def most_common(specs: Iterable[Spec]) -> tuple[Spec, int]:
    """Return the most common spec, the first of several, and its number."""
    found: dict[Spec, int] = {}
    for spec in specs:
        found[spec] = found.get(spec, 0) + 1
    return max(found.items(), key=lambda item: item[1])
