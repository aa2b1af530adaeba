"""Specs of payload tensors: types and shapes by key, with dimensions that may vary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from protofl.hooks.models.architecture import Architecture
from protofl.hooks.transport.rules import Declarations, Fault
from protofl.hooks.views.run_info import RunInfo
from protofl.hooks.wire.keys import Key
from protofl.hooks.wire.payload import weight_views
from protofl.system.files.tensors import TYPES, TensorEntry

Header = Mapping[str, TensorEntry]


OWN = ("model", "head")
"""Payload parts whose tensors must match the client's own architecture, if all clients' do."""


_TEXT = re.compile(r"(\w+)\[([\d*, ]*)\](\?)?")


@dataclass(frozen=True)
class Spec:
    """The type and shape of a tensor.

    Attributes:
        dtype: Its type.
        dims: Its shape; None for a size that may vary.
        optional: True if some of the payloads lack the tensor.
    """

    dtype: str
    dims: tuple[int | None, ...]
    optional: bool = False

    @classmethod
    def of(cls, name: str, entry: TensorEntry, key: Key | None, varies: int = 0) -> Spec:
        """Return the spec of a tensor with the declaration of its key.

        The number of rows may vary, but not of weights and of vectors over all classes or features;
        and the `varying` dimension (FedKD).
        """
        dims: list[int | None] = list(entry.shape)
        if "/" not in name and not (key and key.is_one_row):
            dims[:1] = [None] * bool(dims)
        if 0 < -varies <= len(dims):
            dims[varies] = None
        return cls(entry.dtype, tuple(dims))

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse the text of a spec, as ``str`` writes it."""
        match = _TEXT.fullmatch(text)
        assert match, text
        sizes = [size for size in match[2].split(", ") if size]
        dims = tuple(None if size == "*" else int(size) for size in sizes)
        return cls(match[1], dims, bool(match[3]))

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

    def with_width(self, key: Key | None, width: int | None) -> Spec:
        """Return the spec with another K, if the key has the shape [n, K] or [K]."""
        if key is None or not key.is_feature_wide or len(self.dims) != 2 - key.is_one_row:
            return self
        return replace(self, dims=(*self.dims[:-1], width))

    def check(self, name: str, entry: TensorEntry, varies: int = 0) -> None:
        """Check a tensor, with its `varying` dimension.

        Raises:
            Fault: The tensor has another type or shape.
        """
        if entry.dtype != self.dtype:
            raise Fault(name, "dtype", f"of type {entry.dtype}, it is {self.words}")
        pairs = zip(self.dims, entry.shape, strict=False)
        if len(self.dims) != len(entry.shape) or any(d not in (None, n) for d, n in pairs):
            raise Fault(name, "shape", f"of shape {list(entry.shape)}, it is {self.words}")
        if 0 < -varies <= len(self.dims):
            rank, sizes = entry.shape[varies], [d for d in self.dims if d is not None]
            if rank < 1 or (sizes and rank > max(sizes)):
                raise Fault(name, "shape", f"with rank {rank}, it is {self.words}")


def check_ranks(header: Header, declared: Declarations) -> None:
    """Check that the factors of one tensor have the same rank.

    Raises:
        Fault: Two factors have different ranks.
    """
    ranks: dict[str, int] = {}
    for name, entry in header.items():
        varies = declared.varying(name)
        if 0 < -varies <= len(entry.shape):
            rank = entry.shape[varies]
            if ranks.setdefault(name.rpartition("/")[0] or name, rank) != rank:
                raise Fault(name, "shape", f"with rank {rank}, and other factors with another")


class SpecTable:
    """The known specs of keys, by the architecture of the sender.

    Weights of a client's own model or head match its architecture, also if the dry run has not run
    the architecture. Any other key has one spec for all architectures if all payloads agree.

    Args:
        info: The run.
        declared: The uploads' declarations.
        state: The table as JSON values: ``tried``, the architectures of the dry run, and
            ``specs``, {architecture: {key: text of a `Spec`}}.
    """

    def __init__(self, info: RunInfo, declared: Declarations, state: dict[str, Any]) -> None:
        self._info, self._declared = info, declared
        self._tried: list[str] = state.setdefault("tried", [])
        self._texts: dict[str, dict[str, str]] = state.setdefault("specs", {})
        self._specs = {a: {n: Spec.parse(t) for n, t in s.items()} for a, s in self._texts.items()}
        self._models: dict[tuple[str, str], dict[str, Spec]] = {}
        self._parts: dict[tuple[str, str], Mapping[str, Spec]] = {}
        self._expected: dict[str, Mapping[str, Spec]] = {}

    @property
    def tried(self) -> bool:
        """True if the table holds the specs of a dry run."""
        return bool(self._tried)

    def see(self, architecture: str, header: Header) -> None:
        """Learn from a payload of the dry run."""
        first = architecture not in self._tried
        if first:
            self._tried.append(architecture)
        specs = self._specs.setdefault(architecture, {})
        for name, entry in header.items():
            new = replace(self.spec(name, entry), optional=not first and name not in specs)
            self.put(architecture, name, specs[name].merged(new) if name in specs else new)
        for name in [*specs.keys() - header.keys()]:
            self.put(architecture, name, replace(specs[name], optional=True))

    def spec(self, name: str, entry: TensorEntry) -> Spec:
        """Return the spec of a sent tensor, with K free if it differs between architectures."""
        key = self._declared.keys.find(name)
        sent = Spec.of(name, entry, key, self._declared.varying(name))
        return sent.with_width(key, None) if self._info.native else sent

    def put(self, architecture: str, name: str, spec: Spec) -> None:
        """Set the spec of a key."""
        self._specs.setdefault(architecture, {})[name] = spec
        self._texts.setdefault(architecture, {})[name] = str(spec)
        self._parts, self._expected = {}, {}

    def of(self, architecture: str) -> Mapping[str, Spec]:
        """Return the specs of the keys that clients of an architecture have sent."""
        return self._specs.get(architecture, {})

    def find(self, architecture: str, name: str) -> Spec | None:
        """Return the spec of a key for this architecture, or None if unknown."""
        result = self.of(architecture).get(name) or self._part(architecture, name).get(name)
        if result is None or not self._info.native:
            return result
        width = self._info.feature_dim_of(self._named(architecture))
        return result.with_width(self._declared.keys.find(name), width)

    def _named(self, architecture: str) -> Architecture:
        return next(a for a in self._info.architectures if a.name == architecture)

    def holds_part(self, architecture: str, name: str) -> bool:
        """Return True if other keys under the same prefix are known for this architecture."""
        return "/" in name and bool(self._part(architecture, name))

    def _part(self, architecture: str, name: str) -> Mapping[str, Spec]:
        """Return the known specs of the part ``PART/*`` that holds a key, or of the key itself."""
        prefix = _prefix(name)
        if (architecture, prefix) not in self._parts:
            sent = _specs_under(self.of(architecture), prefix) or self._agreed(prefix)
            is_own = self._is_own(prefix)
            specs = self._weights(architecture, prefix[:-1]) if is_own else sent
            self._parts[architecture, prefix] = specs
        return self._parts[architecture, prefix]

    def expected(self, architecture: str) -> Mapping[str, Spec]:
        """Return the keys that uploads of this architecture are expected to have."""
        if architecture in self._tried:
            return self.of(architecture)
        if architecture not in self._expected:
            needed: dict[str, Spec] = {}
            for prefix in sorted({_prefix(n) for specs in self._specs.values() for n in specs}):
                needed |= self._needed(architecture, prefix)
            self._expected[architecture] = needed | dict(self.of(architecture))
        return self._expected[architecture]

    def _needed(self, architecture: str, prefix: str) -> Mapping[str, Spec]:
        """Return expected keys of a part for an architecture that the dry run has not run."""
        if not self._is_own(prefix):
            return self._agreed(prefix)
        for other, specs in self._specs.items():
            seen = _specs_under(specs, prefix)
            if seen and self._parameters(other, prefix).keys() - seen.keys():
                return {}  # only some layers are sent; those of another architecture are unknown
        return self._parameters(architecture, prefix)

    def _parameters(self, architecture: str, prefix: str) -> dict[str, Spec]:
        """Return the specs of the weights of an own part, without buffers."""
        weights = self._weights(architecture, prefix[:-1])
        return {n: s for n, s in weights.items() if not n.startswith(f"{prefix}buffer/")}

    def built(self, architecture: str, name: str) -> Spec | None:
        """Return the spec of a weight of an architecture's model or head; None for other keys."""
        prefix = name.partition("/")[0]
        return self._weights(architecture, prefix).get(name) if prefix in OWN else None

    def _agreed(self, prefix: str) -> Mapping[str, Spec]:
        """Return the specs of a part if all architectures that have any agree."""
        selections = [
            selected for specs in self._specs.values() if (selected := _specs_under(specs, prefix))
        ]
        return (
            selections[0]
            if selections and all(specs == selections[0] for specs in selections)
            else {}
        )

    def _is_own(self, prefix: str) -> bool:
        """Return True if every sent part has the weights of its sender's architecture."""
        if prefix[:-1] not in OWN or prefix[-1] != "/":
            return False
        selections = {
            a: selected
            for a, specs in self._specs.items()
            if (selected := _specs_under(specs, prefix))
        }
        return bool(selections) and all(
            specs.items() <= self._weights(a, prefix[:-1]).items()
            for a, specs in selections.items()
        )

    def _weights(self, architecture: str, prefix: str) -> Mapping[str, Spec]:
        """Return the specs of an architecture's model or head, by wire names."""
        if (architecture, prefix) not in self._models:
            model = self._info.unset_model(self._named(architecture))
            for name, module in (("model", model), ("head", model.head)):
                self._models[architecture, name] = {
                    key: Spec(TYPES.get(tensor.dtype, "F32"), tuple(tensor.shape))
                    for key, tensor in weight_views(module, name).items()
                }
        return self._models[architecture, prefix]


def _prefix(name: str) -> str:
    """Return ``PART/`` of ``PART/NAME``, and other names as they are."""
    prefix, slash, _ = name.partition("/")
    return prefix + slash


def _specs_under(specs: Mapping[str, Spec], prefix: str) -> dict[str, Spec]:
    """Select the specs whose key starts with `prefix` (if it ends with "/") or equals it."""
    many = prefix.endswith("/")
    return {n: s for n, s in specs.items() if (n.startswith(prefix) if many else n == prefix)}


def most_common(specs: Iterable[Spec]) -> tuple[Spec, int]:
    """Return the most common spec, the first of several, and its number."""
    return Counter(specs).most_common(1)[0]
