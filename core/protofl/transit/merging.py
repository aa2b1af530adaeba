"""Several methods' tensors as one payload: ``--add upload_payload=METHOD``."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protofl.errors import SentTwice
from protofl.wire.payload import Payload, class_indexed

SHARED = ("classes", "samples", "counts")
"""Names that tell of the sender, which several methods may send as long as they say the same."""


def merged(parts: Mapping[str, Mapping[str, Tensor]]) -> Payload:
    """What several methods send, or give to the server's knowledge, key by key.

    Rows of other ``classes`` than those of the methods before go by ``NAME.classes``.

    Args:
        parts: {method: what its hook returned}, in the order in which they were asked for.

    Raises:
        SentTwice: Two of them have a key of one name.
    """
    found, owners = Payload(), dict[str, str]()
    for owner, tensors in parts.items():
        for name, tensor in _beside(found, tensors).items():
            same = name in SHARED and name in found and _equal(found[name], tensor)
            if name in found and not same:
                raise SentTwice(name, owners[name], owner)
            found[name], owners[name] = tensor, owner
    return found


def _beside(found: Payload, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors with the classes of their rows under names of their own, where those are others."""
    classes = tensors.get("classes")
    if classes is None or "classes" not in found or _equal(found["classes"], classes):
        return tensors
    own = {name: tensor for name, tensor in tensors.items() if name != "classes"}
    rows = [name for name, tensor in own.items() if class_indexed(name, tensor, classes)]
    return {f"{name}.classes": classes for name in rows} | own


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
