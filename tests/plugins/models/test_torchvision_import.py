"""Tests that torchvision is imported without torch's compiler, and works as always."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # each process imports torch and its compiler

COMPILER = "torch._dynamo"

BUILT = f"""
import sys
import torch
import protofl as pf
from protofl_plugins.models.htfe import HtFE8
sample = pf.datasets.SampleSpec((3, 16, 16))
for architecture in HtFE8().architectures(HtFE8.Config()):
    architecture.build(sample, 10, 128)
assert "torchvision" in sys.modules
assert {COMPILER!r} not in sys.modules, "building nets imports the compiler"
assert "_dynamo" not in vars(torch)
assert torch._dynamo.__name__ == {COMPILER!r} and torch._dynamo.__file__  # the real one
from torch._dynamo import utils
from torchvision.ops import roi_align
import torchvision.ops.roi_align
own = sys.modules["torchvision.ops.roi_align"].is_compile_supported
assert own is not utils.is_compile_supported
assert [own(kind) for kind in ("cpu", "meta")] == [
    utils.is_compile_supported(kind) for kind in ("cpu", "meta")
]
x = torch.arange(16.0).reshape(1, 1, 4, 4)
print(roi_align(x, [torch.tensor([[0.0, 0.0, 4.0, 4.0]])], 1, aligned=True).item())
"""

BESIDE = f"""
import sys
import torch._dynamo
compiler = sys.modules[{COMPILER!r}]
from protofl_plugins.models.torchvision_import import import_torchvision
models = import_torchvision()
assert sys.modules[{COMPILER!r}] is compiler and models.__name__ == "torchvision.models"
assert import_torchvision() is models
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nets_are_built_without_the_compiler():
    assert float(run(BUILT)) == 7.5  # the mean of 0…15


def test_a_compiler_that_is_imported_already_stays():
    run(BESIDE)
