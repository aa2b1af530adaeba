"""What the server knows, in the wire's names."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protofl.wire.payload import Payload, class_indexed


class Knowledge(Payload):
    """What the server knows, in the wire's names; server hooks' results are merged into it."""

    holder = "the server's knowledge"

    def merge(self, update: Mapping[str, Tensor]) -> None:
        """Take in what a server hook returned.

        Tensors that stay while ``classes`` changes keep the classes of their rows under
        ``NAME.classes``, so that every row's class is always known.
        """
        old, new = self.get("classes"), update.get("classes")
        if new is not None and old is not None and not torch.equal(old, new):
            for name in [n for n in self if n not in update and class_indexed(n, self[n], old)]:
                self.setdefault(f"{name}.classes", old)
        for name in update:
            own = f"{name}.classes"
            if own in self.keys() and own not in update:
                del self[own]  # its rows are those of the update's own ``classes`` now
        self.update(update)
