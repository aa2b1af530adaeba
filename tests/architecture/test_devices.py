"""Tests of the devices that tests see: the CPU, or a GPU if they are marked ``gpu``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from protofl.system.device import devices_of

TESTS = Path(__file__).parents[1]

MACHINE = """
import os, torch

def is_available():  # as the driver of a machine with a GPU answers
    return os.environ.get("CUDA_VISIBLE_DEVICES") != ""

torch.cuda.is_available = is_available
"""

TOYS = """
import subprocess, sys
import pytest
from protofl.system.device import devices_of

def test_plain():
    assert devices_of("auto")[0].type == "cpu"

def test_subprocess():
    words = "import machine, torch; print(torch.cuda.is_available())"
    assert subprocess.check_output([sys.executable, "-c", words], text=True) == "False\\n"

@pytest.mark.gpu
def test_marked():
    assert devices_of("auto")[0].type == "cuda"
"""


@pytest.fixture
def outcomes(tmp_path):
    """Return ``outcomes(*words)``: the outcome of each toy test on a machine with a GPU."""
    (tmp_path / "machine.py").write_text(MACHINE)
    (tmp_path / "test_toys.py").write_text(textwrap.dedent(TOYS))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu")
    path = os.pathsep.join([str(TESTS), str(tmp_path)])
    rest = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    plugins = ["-p", "machine", "-p", "devices", "-p", "no:cacheprovider", "-p", "no:xdist"]

    def ask(*words):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-v", *plugins, *words],
            env={**rest, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        rows = [line.split() for line in done.stdout.splitlines() if "::" in line]
        return {row[0].partition("::")[2]: row[1] for row in rows if row[1].isupper()}

    return ask


def test_this_run_sees_the_cpu_alone():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert devices_of("auto")[0].type == "cpu"


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("-m", "not gpu"), ("-m", "")])
def test_tests_see_no_gpu(outcomes, words):
    found = outcomes(*words)
    assert found.pop("test_marked", "SKIPPED") == "SKIPPED"
    assert found == {"test_plain": "PASSED", "test_subprocess": "PASSED"}


@pytest.mark.slow
def test_tests_with_the_marker_see_it(outcomes):
    assert outcomes("-m", "gpu") == {"test_marked": "PASSED"}


@pytest.mark.slow
def test_other_tests_do_not_run_beside_them(outcomes):
    found = outcomes("-m", "gpu or not gpu")
    assert found == {"test_marked": "PASSED"} | dict.fromkeys(
        ("test_plain", "test_subprocess"), "SKIPPED"
    )
