"""Declarations of payload keys: shape, meaning, and how the gate treats the rows."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Key:
    """A key of payloads, as a method declares it in ``uploads`` and ``downloads``.

    Example::

        uploads = {
            "prototypes": pf.Key("[n, K]", "mean feature of each class", by_class=True),
            "samples": "n_i, the number of training samples",
        }

    A plain text gives the meaning alone.

    Attributes:
        shape: The shape of the tensor, and its type unless it is floating point: ``[n, K]``,
            ``[] int``, ``as the parameter``. n is the number of rows by class, N of public samples,
            C of all classes, K of features. The rows of ``[N, …]`` are those of the public samples,
            and K of ``[n, K]`` may differ between architectures (``--feature-dim native``).
        meaning: The content of the tensor, and what it reveals.
        by_class: True if each row belongs to a class, which ``classes`` or ``NAME.classes`` names.
        varies: A dimension, counted from the last as -1, whose size may differ between payloads:
            the rank of factors, which is the same for all factors of a parameter. 0: none.
    """

    shape: str
    meaning: str
    by_class: bool = field(default=False, kw_only=True)
    varies: int = field(default=0, kw_only=True)


def shape_of(declared: str | Key) -> str:
    """Return the shape of a declared key; empty if a plain text declares it."""
    return declared.shape if isinstance(declared, Key) else ""


def meaning_of(declared: str | Key) -> str:
    """Return the meaning of a declared key."""
    return declared.meaning if isinstance(declared, Key) else declared


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
    for part, text in (("shape", declared.shape), ("meaning", declared.meaning)):
        if not isinstance(text, str) or not text.strip():
            return f"a key with {part}={text!r}, expected a text"
    if not isinstance(declared.by_class, bool):
        return f"a key with by_class={declared.by_class!r}, expected True or False"
    if declared.by_class and "/" in name:
        return "a key with by_class=True, and keys of the form PREFIX/NAME have no rows by class"
    if isinstance(declared.varies, bool) or not isinstance(declared.varies, int):
        return f"a key with varies={declared.varies!r}, expected a whole number"
    if declared.varies > 0:
        return f"a key with varies={declared.varies}, expected 0, or -1 for the last dimension"
    return ""
