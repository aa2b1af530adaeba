"""Declarations of payload keys: shape, meaning, and how payload validation treats the rows.

Each plugin declares its keys; the runtime declares those that it makes or reads itself. The keys of
a run are the union of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from protofl.errors import UsageError


@dataclass(frozen=True)
class Key:
    """A key of payloads, as a method declares it in ``uploads`` and ``downloads``.

    Example::

        uploads = {
            "spread": pf.Key("[n]", "deviation of each class's features", by_class=True),
            "prototypes": "P_i^c of the client's classes",
        }

    A plain text gives the meaning alone. It suffices for the keys in `RUNTIME_KEYS`, which have a
    shape already.

    Attributes:
        shape: The shape of the tensor, and its type unless it is floating point: ``[n, K]``,
            ``[] int``, ``as the parameter``; or ``[K, K] float64`` where float32 would not do. n is
            the number of rows by class, N of public samples, C of all classes, K of features. The
            rows of ``[N, …]`` are those of the public samples, and K of ``[n, K]`` may differ
            between architectures (``--feature-dim native``). The length of ``[C]`` and ``[K]`` is
            checked; that of another first dimension is free.
        meaning: The content of the tensor.
        reveals: What a curious server learns from it about the client's data; empty to say what
            the shape implies (`reveals_of`).
        by_class: True if each row belongs to a class, which ``classes`` or ``NAME.classes`` names.
        varies: A dimension, counted from the last as -1, whose size may differ between payloads:
            the rank of factors, which is the same for all factors of a parameter. 0: none.
    """

    shape: str
    meaning: str
    reveals: str = field(default="", kw_only=True)
    by_class: bool = field(default=False, kw_only=True)
    varies: int = field(default=0, kw_only=True)

    @property
    def is_of_public_samples(self) -> bool:
        """True if each row belongs to a public sample."""
        return self.shape.startswith(("[N,", "[N]"))

    @property
    def is_feature_wide(self) -> bool:
        """True if the last dimension is the width K of the features."""
        return _squeezed(self.shape) in ("[n,K]", "[K]")

    @property
    def is_one_row(self) -> bool:
        """True for one vector over all classes or features, whose length no client chooses."""
        return _squeezed(self.shape) in ("[C]", "[K]")

    @property
    def form(self) -> str:
        """Shape and treatment in words; equal for keys that can be exchanged."""
        by_class = ", rows by class" * self.by_class
        varies = f", dimension {self.varies} varies" if self.varies else ""
        return f"{self.shape}{by_class}{varies}"


CLASSES = "which classes the client has, exactly"
PREFERENCE = "which classes the client has, because scores prefer them"
MEMBERS = "whether a sample was trained on, by its score"
INVERTED = "gradients can be inverted from it, which protofl leak does not measure"

RUNTIME_KEYS: Mapping[str, Key] = {
    "prototypes": Key(
        "[n, K]", "mean feature, anchor or trained prototype of each class", by_class=True,
        reveals=f"{CLASSES}; to whoever has the extractor, the sample itself if a class has one "
        "sample, about nothing beyond the class mean if it has ten or more, and weakly whether a "
        "sample was trained on"),
    "counts": Key("[n] int", "training samples of each row; sent only if an equation needs it",
                  by_class=True, reveals="the number of training samples of each class, exactly"),
    "classes": Key("[n] int", "the class of each row of the class-indexed tensors",
                   reveals=CLASSES),
    "NAME.classes": Key("[n] int", "the same for the tensor NAME, if its rows differ",
                        reveals=CLASSES),
    "samples": Key("[] int", "the sender's training samples, where an average is weighted by it",
                   reveals="the number of training samples, exactly"),
    "public_logits": Key("[N, C]", "scores of the public samples"),
    "public_probabilities": Key("[N, C]", "softmax of the scores of the public samples"),
    "public_index": Key(
        "[N] int", "the rows of the public samples of `public_…` tensors; all if it is missing",
        reveals="nothing: the rows of public samples"),
    "model/*": Key("as the parameter", "weights of a whole model",
                   reveals=f"{PREFERENCE}; {MEMBERS}; {INVERTED}"),
    "head/*": Key(
        "as the parameter", "weights of the classifier on K features",
        reveals="which classes the client has, by their biases and the norms of their weights; to "
        "whoever has the extractor, whether a sample was trained on"),
    "PREFIX/buffer/*": Key(
        "as the buffer", "buffers of that module (BatchNorm statistics), which don't count as "
        "floats; of integer ones an average takes the maximum",
        reveals="mean and variance of the client's features, which protofl leak does not attack"),
    "model@ARCHITECTURE/*": Key(
        "as the parameter", "in the server's global state only: weights of one of several "
        "architectures; the download strips the suffix", reveals="nothing: it is not uploaded"),
}  # fmt: skip
"""Keys that the runtime makes or reads, by name; words in capitals stand for any name.

`Client.class_prototypes` makes the first three, ``--measure`` reads public scores,
and payload validation compares weights with the client's architecture.
"""


def declared_keys(plugin: object, attribute: str) -> dict[str, str | Key]:
    """Return the keys that a plugin declares in ``uploads`` or ``downloads``.

    Names under a prefix are ``PREFIX/*``.
    """
    return dict(getattr(plugin, attribute, None) or {})


def matches(name: str, declared: str) -> bool:
    """Return True if a declared name, ``NAME``, ``PART/*`` or ``PART/*/NAME``, covers a name."""
    start, star, end = declared.partition("/*")
    inside = bool(star) and name.startswith(f"{start}/") and name.endswith(end)
    return inside or name == declared


class Keys:
    """The keys of a run, or of several plugins: their declarations by name.

    Args:
        declared: Declared keys beside those of the runtime; names may be ``PART/*`` and
            ``PART/*/NAME``.
    """

    def __init__(self, declared: Mapping[str, Key] | None = None) -> None:
        self.declared = {**RUNTIME_KEYS, **(declared or {})}
        parts = [name for name in self.declared if "/*" in name]
        self._parts = sorted(parts, key=len, reverse=True)
        self._found: dict[str, Key | None] = {}

    @classmethod
    def of(cls, plugins: Mapping[str, object]) -> Keys:
        """Return the keys that plugins declare.

        Args:
            plugins: {name: class}.

        Raises:
            UsageError: Two declarations of one key have different shapes.
        """
        keys, owners = dict(RUNTIME_KEYS), dict.fromkeys(RUNTIME_KEYS, "protofl")
        for owner, plugin in plugins.items():
            for attribute in ("uploads", "downloads"):
                for name, key in declared_keys(plugin, attribute).items():
                    if not isinstance(key, Key):
                        continue
                    first = keys.setdefault(name, key)
                    if _squeezed(first.form) != _squeezed(key.form):
                        raise UsageError(
                            f"{owner} declares the key {name!r} as {key.form} ({attribute})",
                            f"{owners[name]} declares it as {first.form}",
                            "one name has one shape in a run: rename one of the keys",
                        )
                    owners.setdefault(name, owner)
        return cls(keys)

    def find(self, name: str) -> Key | None:
        """Return the declaration of a name, as ``head/weight`` or ``head/*``, or None.

        Of several ``PART/*`` the longest counts.
        """
        if name not in self._found:
            self._found[name] = self._matching(name)
        return self._found[name]

    def is_by_class(self, name: str) -> bool:
        """Return True if the rows of a tensor are declared to belong to classes."""
        key = self.find(name)
        return key is not None and key.by_class

    def _matching(self, name: str) -> Key | None:
        if name in self.declared:
            return self.declared[name]
        if name.endswith(".classes") and "/" not in name:
            return self.declared["NAME.classes"]
        pattern = next((pattern for pattern in self._parts if matches(name, pattern)), None)
        if pattern is not None and pattern.endswith("buffer/*"):
            return self.declared[pattern]
        if "/buffer/" in name:
            return self.declared["PREFIX/buffer/*"]
        if name.startswith("model@") and "/" in name:
            return self.declared["model@ARCHITECTURE/*"]
        return None if pattern is None else self.declared[pattern]


RUNTIME = Keys()
"""The keys of the runtime alone."""


def shape_of(name: str, declared: str | Key) -> str:
    """Return the shape of a declared key; empty if neither the plugin nor the runtime gives one."""
    key = declared if isinstance(declared, Key) else RUNTIME.find(name)
    return key.shape if key else ""


def meaning_of(declared: str | Key) -> str:
    """Return the meaning of a declared key."""
    return declared.meaning if isinstance(declared, Key) else declared


def reveals_of(name: str, declared: str | Key) -> str:
    """Return what a curious server learns about a client's data from a key of its uploads.

    What is not declared follows from the shape: rows by class name the client's classes, scores of
    public samples prefer them, and weights reveal what a model reveals. ``protofl leak`` measures
    it for a run.

    Args:
        name: The declared name.
        declared: The declaration of the plugin.
    """
    known = RUNTIME.find(name)
    keys = [key for key in (declared, known) if isinstance(key, Key)]
    if text := next((key.reveals for key in keys if key.reveals), ""):
        return text
    if any(key.by_class for key in keys):
        return CLASSES
    if any(key.is_of_public_samples for key in keys):
        return f"{PREFERENCE}; {MEMBERS}, of a student trained on them"
    if any(key.shape.startswith("as the") or key.varies for key in keys):
        return f"possibly whether a sample was trained on, as any weights; {INVERTED}"
    return "not known: protofl leak does not attack it"


def fault_of(name: str, declared: object) -> str:
    """Return what is wrong with the declaration of a key; empty if nothing is.

    Args:
        name: The name of the key.
        declared: Its declaration: a text or a `Key`.
    """
    if isinstance(declared, str):
        return ""
    if not isinstance(declared, Key):
        return f"a {type(declared).__name__}: {declared!r}"
    if not isinstance(declared.reveals, str):
        return f"a key with reveals={declared.reveals!r}, expected a text"
    for attribute, text in (("shape", declared.shape), ("meaning", declared.meaning)):
        if not isinstance(text, str) or not text.strip():
            return f"a key with {attribute}={text!r}, expected a text"
    if not isinstance(declared.by_class, bool):
        return f"a key with by_class={declared.by_class!r}, expected True or False"
    if declared.by_class and "/" in name:
        return "a key with by_class=True, and keys of the form PREFIX/NAME have no rows by class"
    if isinstance(declared.varies, bool) or not isinstance(declared.varies, int):
        return f"a key with varies={declared.varies!r}, expected a whole number"
    if declared.varies > 0:
        return f"a key with varies={declared.varies}, expected 0, or -1 for the last dimension"
    return ""


def _squeezed(text: str) -> str:
    return text.replace(" ", "")
