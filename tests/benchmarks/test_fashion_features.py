"""Tests of ``benchmarks/fashion_features.py``."""

from __future__ import annotations

import fashion_features
import numpy as np


def test_all_images_become_64_components_and_the_cache_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PROTOFL_DATA_DIR", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    x = np.random.default_rng(0).integers(0, 256, (90, 10, 10), dtype=np.uint8)
    y = np.arange(90) % 3
    np.savez("fashion-mnist.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    fashion_features.main(["out.npz", "--data", "."])
    with np.load("out.npz") as found:
        assert found["x_train"].shape == (90, 64)
        assert found["y_train"].tolist() == y.tolist()
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["fashion-mnist.npz", "out.npz"]
