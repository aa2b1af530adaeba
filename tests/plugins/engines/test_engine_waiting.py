"""Check that no engine waits for the device within an epoch, for any method."""

from __future__ import annotations

import pytest
import torch
from engine_toys import METHODS, make_plan
from slowness import quick
from torch.utils._python_dispatch import TorchDispatchMode
from width_toys import nets_of

from protofl.hooks.plugin.members import Choice
from protofl.testing import toy as toyfed
from protofl.testing.equality import RESIDUAL, Run
from protofl_plugins.engines import recording

WAITING = {
    "_local_scalar_dense",  # .item(), float(), bool(), a branch on a tensor
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "bincount",
    "equal",
    "repeat_interleave",
}
"""Operations that make the CPU wait for the result or its shape."""


class Count(TorchDispatchMode):
    """Records operations that wait."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if name in WAITING or masks:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


def waits(monkeypatch, epochs, *given, **options):
    """Return the operations that wait, in all local training of a second round."""
    count, plain = Count(), Choice.call

    def call(self, hook, **arguments):
        if hook not in ("train", "train_group"):
            return plain(self, hook, **arguments)
        with count:
            return plain(self, hook, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Choice, "call", call)
        run = Run(
            make_plan(*given, local_epochs=epochs, participation=0.5, **options), rounds=2, start=1
        )
    assert not any("engine" in note for note in run.notes), run.notes
    return count.found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "method"),
    quick(
        [(e, m) for e in ("eager", "vmapped", "cuda-graphs") for m in METHODS],
        *(("eager", "fedproto"), ("vmapped", "fedgen"), ("cuda-graphs", "fedgen")),
    ),
)
def test_waiting_does_not_grow_with_the_steps(engine, method, tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "PAYS", 10**9)  # a new recording is compared, once, on a CPU
    members = nets_of(method, [toyfed.CNN, RESIDUAL], [RESIDUAL])
    given = (monkeypatch, 1), (monkeypatch, 3)
    one, three = (waits(*g, method, tmp_path, members, engine=engine) for g in given)
    assert len(one) == len(three), three


def test_a_wait_is_seen(tmp_path):
    with Count() as count:
        x = torch.arange(3.0)
        float(x.sum())
        x[x > 1]
    assert count.found == ["_local_scalar_dense", "index"]
