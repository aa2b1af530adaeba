"""Tests of data frames that a program gives to `protofl.run`."""

from __future__ import annotations

import numpy as np
import pytest

import protofl as pf

AGES = [*np.arange(40.0), None]
COLUMNS = {
    "age": AGES,
    "city": ["Bonn", "Rome", None, "Paris"] * 10 + ["Bonn"],
    "smoker": [True, False] * 20 + [True],
    "site": ["a", "b"] * 20 + ["b"],
    "label": ["ill", "ill", "well", "well"] * 10 + ["ill"],
}


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_are_read_as_files_are(tmp_path, library):
    module = pytest.importorskip(library)
    pytest.importorskip("pyarrow")
    frame = getattr(module, "DataFrame", None) or module.table
    given = {
        "method": "local", "models": "mlp", "rounds": 1, "progress": False, "dry_run": False,
        "data_dir": tmp_path / "d", "options": {"dataset": {"client": "site"}},
    }  # fmt: skip
    run = pf.run(**given, dataset=frame(COLUMNS), out=tmp_path / "frame")
    lines = [",".join(COLUMNS)]
    lines += [
        ",".join("" if v is None else str(v) for v in row)
        for row in zip(*COLUMNS.values(), strict=True)
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    given |= {"cache": "off", "data_dir": tmp_path / "none"}
    same = pf.run(**given, dataset=f"csv:{tmp_path / 'a.csv'}", out=tmp_path / "csv")
    data, wanted = (pf.load_run(r.folder).plan.data for r in (run, same))
    assert data.compute_digest() == wanted.compute_digest() == data.digest
    assert not (tmp_path / "none").exists(), "data are in no cache"
    assert run.summary["best_test_accuracy"] == same.summary["best_test_accuracy"]


def test_frames_that_cannot_be_converted(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"age": [1, "x", b"y"], "label": ["a", "b", "a"]})
    with pytest.raises(pf.UsageError, match="the table cannot be converted"):
        pf.run("local", models="mlp", dataset=frame, progress=False, data_dir=tmp_path)
