"""Tests of ``minimum-count``: what is left out, and what it refuses."""

from __future__ import annotations

import pytest
from runtime_toys import DATA, Tiny, Toy1

import protofl as pf


def run(tmp_path, method, n):
    return pf.run(
        method, models=Toy1, dataset=Tiny, partition="dirichlet", clients=4, rounds=1,
        data_dir=DATA, device="cpu", backend="local", engine="eager", batch_size=6,
        transforms=["minimum-count"], set={"minimum-count.n": n}, record_uploads=True,
        out=tmp_path / "run",
    )  # fmt: skip


def test_rows_of_small_classes_are_left_out(tmp_path):
    run(tmp_path, "fedproto", 5)
    opened = pf.load_run(tmp_path / "run")
    true, uploads = opened.split().train_counts, opened.uploads()
    assert any(0 < count < 5 for row in true for count in row)
    for client, upload in uploads.items():
        expected = [c for c, count in enumerate(true[client]) if count >= 5]
        assert upload["classes"].tolist() == expected
        assert upload["counts"].tolist() == [true[client][c] for c in expected]
        assert upload["prototypes"].shape == (len(expected), 6)


def test_a_client_without_a_large_class_sends_no_rows(tmp_path):
    run(tmp_path, "fedproto", 10_000)
    for upload in pf.load_run(tmp_path / "run").uploads().values():
        assert upload["prototypes"].shape == (0, 6)


def test_uploads_without_rows_by_class_are_refused(tmp_path):
    with pytest.raises(pf.ProtoflError, match="no rows by class"):
        run(tmp_path, "fedavg", 5)
