"""Two rounds of every method on a toy give what they gave when the results were stored.

`make.py` writes them; each file's metadata says with what it was made.
"""

from __future__ import annotations

import golden_runs
import pytest
import torch
from protofl.discovery.registry import Registry
from protofl.testing.donors import methods_to_run
from safetensors import safe_open


def stored(name):
    with safe_open(golden_runs.FOLDER / f"{name}.safetensors", framework="pt") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, file.metadata()


@pytest.mark.parametrize("name", golden_runs.RUNS)
def test_results_are_as_stored(name, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = golden_runs.run(name, tmp_path)
    finally:
        torch.set_num_threads(threads)
    expected, _ = stored(name)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        got = found[key]
        assert (got.shape, got.dtype) == (value.shape, value.dtype), key
        if not value.is_floating_point():
            assert torch.equal(got, value), key
            continue
        # Relative to the tensor's own size, as single elements may be near 0.
        scale = float(value.double().abs().max())
        error = float((got.double() - value.double()).abs().max()) if value.numel() else 0.0
        tolerance = 1e-2 if name in golden_runs.ADAM else 1e-4
        place = f"{key}: off by {error:.3g}, values up to {scale:.3g}"
        assert error <= tolerance * scale + 1e-7, place


@pytest.mark.parametrize("name", golden_runs.RUNS)
def test_files_are_small_and_say_how_they_were_made(name):
    path = golden_runs.FOLDER / f"{name}.safetensors"
    assert path.stat().st_size < 100_000
    _, provenance = stored(name)
    assert provenance["command"] == f"python tests/golden/make.py {name}"
    assert {"run", "protofl", "torch", "python", "machine", "date"} <= provenance.keys()


def test_every_file_and_every_built_in_method_has_its_run():
    files = {path.stem for path in golden_runs.FOLDER.glob("*.safetensors")}
    assert files == {*golden_runs.RUNS}
    built_in = {*methods_to_run(Registry(), "protofl")}
    assert {method for method, _ in golden_runs.RUNS.values()} == built_in


def test_the_runs_differ():
    """Stored results that were all the same would show nothing."""
    features = [stored(name)[0]["features/client 0"] for name in golden_runs.RUNS]
    sums = [float(f.double().sum()) for f in features]
    assert len({round(s, 6) for s in sums}) == len(sums)
