"""Tests that two rounds of every method on a toy problem reproduce the stored results.

``tests/update.py`` writes the results; each file's metadata says how it was made.

Reasons for the tolerances: instruction sets, numbers of threads, kernels and versions of torch add
the same numbers in a different order. The runs compute in float64, so the error of each operation
is at most u = 2⁻⁵³ ≈ 1.1e-16 of its terms' magnitude.

- With SGD, some 40 steps of each client and of the server hardly increase this error. Between
  SSE4.1, AVX2 and AVX-512, and 1 to 5 threads, the largest difference was 6e-15. `EXACT`, 1e-9, is
  also the tolerance of engines, so kernels may round more often.
- Adam's step is η·m/(√v + ε). If a gradient is 0 except for rounding (a bias before BatchNorm), the
  step is η/ε = 1e6 times the rounding error. In `fedgen`, the terms of that gradient add up to 0.74
  in magnitude, each with some ten roundings, so its error is at most 10·0.74·u ≈ 8e-16. The 10
  steps move the bias by at most 10·1e6·8e-16 = 8e-9, which is 5e-8 of its largest entry (0.16). The
  largest difference was 1e-8. Hence 1e-7.

In float32, u is 6e-8 and the same steps could have any size up to η, so no tolerance would work.
"""

from __future__ import annotations

import golden_runs
import pytest

from protofl.hooks.discovery.registry import Registry
from protofl.testing.donors import methods_to_run


@pytest.mark.parametrize("name", golden_runs.RUNS)
def test_results_are_as_stored(name, tmp_path):
    assert golden_runs.differences(name, golden_runs.run(name, tmp_path)) == {}


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("fedproto", {"lambda": 1.001}),
        ("fedsa", {"lambda_2": 1.001}),
        ("fedgen", {"eta_g": 0.01001}),
        ("fedktl", {"mu": 1.001}),
        ("feddf", {"server_lr": 0.001001}),
    ],
)
def test_a_change_of_a_thousandth_is_noticed(name, changed, tmp_path):
    said = golden_runs.differences(name, golden_runs.run(name, tmp_path, changed))
    # Round 0 trains before clients receive anything.
    assert {f"features/client {client}" for client in range(4)} <= said.keys(), said


@pytest.mark.parametrize("name", golden_runs.RUNS)
def test_files_are_small_and_say_how_they_were_made(name):
    assert golden_runs.path_of(name).stat().st_size < 100_000
    _, provenance = golden_runs.stored(name)
    assert provenance["command"].endswith(f" {name}")
    assert {"run", "protofl", "torch", "python", "machine", "date"} <= provenance.keys()


def test_every_file_and_every_built_in_method_has_its_run():
    files = {path.stem for path in golden_runs.FOLDER.glob("*.safetensors")}
    assert files == {*golden_runs.RUNS}
    built_in = {*methods_to_run(Registry(), "protofl")}
    assert {method for method, _ in golden_runs.RUNS.values()} == built_in


def test_the_runs_differ():
    """If all stored results were equal, the comparison would prove nothing."""
    found = [golden_runs.stored(name)[0] for name in golden_runs.RUNS]
    parts = ("features/", "global_state/")  # clients of some methods train nothing
    sums = [
        sum(float(t.double().nansum()) for name, t in each.items() if name.startswith(parts))
        for each in found
    ]
    assert len({round(s, 6) for s in sums}) == len(sums)
