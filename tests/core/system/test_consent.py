"""Tests of options that need consent: they count only from the command line, never from a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import protofl as pf

SMALL = {"models": "cnn4", "clients": 2, "rounds": 2, "batch_size": 64, "feature_dim": 16}
QUICK = {**SMALL, "dry_run": False, "backend": "local"}


class Opens:
    """A third-party method with options that need consent."""

    class Config(pf.Config):
        """Options."""

        code: str | None = pf.Field(None, consent=True, description="a folder whose code is run")
        trust_: bool = pf.Field(False, consent=True, alias="trust", description="open the file")
        depth: int = pf.Field(1, ge=1, description="no consent")


@pytest.fixture
def quick(few, tmp_path):
    return {**QUICK, "dataset": few, "data_dir": tmp_path / "data"}


@pytest.fixture
def pickles(tmp_path):
    """Provide a data set of pickles that create a file when they are opened."""

    class Mark:
        def __reduce__(self):
            return Path.touch, (tmp_path / "OPENED",)

    for part in ("train", "test"):
        (tmp_path / "set" / part).mkdir(parents=True)
        np.savez(tmp_path / "set" / part / "0.npz", data=np.array(Mark(), dtype=object))
    return f"pfllib:{tmp_path / 'set'}"


def refused(**given):
    with pytest.raises(pf.UsageError) as caught:
        pf.run(**given)
    return str(caught.value)


@pytest.mark.parametrize("value", [True, "true", "yes", 1])
@pytest.mark.parametrize("name", ["c.json", "c.toml"])
def test_a_shared_config_can_not_consent_to_pickle(pickles, tmp_path, name, value):
    file = tmp_path / name
    text = json.dumps(
        {"method": "local", "dataset": pickles, "set": {"dataset.trust_pickle": value}}
    )
    if name.endswith("toml"):
        text = f'method = "local"\ndataset = "{pickles}"\n[set]\ndataset.trust_pickle = '
        text += json.dumps(value)
    file.write_text(text)
    said = refused(config=file, models="cnn4", data_dir=tmp_path)
    assert "dataset.trust_pickle=true comes from a file" in said
    assert "--set dataset.trust_pickle=true" in said.splitlines()[-1]
    assert not (tmp_path / "OPENED").exists()
    with pytest.raises(pf.UsageError, match=r"0\.npz"):  # the user consents, so it is opened
        pf.run(config=file, models="cnn4", data_dir=tmp_path, set={"dataset.trust_pickle": "true"})
    assert (tmp_path / "OPENED").exists()


@pytest.mark.parametrize(
    ("method", "extra", "key", "value"),
    [
        pytest.param(
            "local",
            {"backend": "ray"},
            "backend.runtime_env",
            '{"working_dir": "/x"}',
            marks=pytest.mark.satellites,
        ),
        pytest.param(
            "local",
            {"backend": "ray"},
            "backend.address",
            "evil:6379",
            marks=pytest.mark.satellites,
        ),
        ("fedktl", {"generator": "stylegan3"}, "generator.trust_pickle", True),
        ("fedktl", {"generator": "stylegan3"}, "generator.repo", "/x"),
    ],
)
def test_ours_that_run_code(quick, tmp_path, method, extra, key, value):
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"method": method, **extra, "set": {key: value}}))
    assert f"{key}=" in refused(config=file, **{**quick, **extra})


@pytest.mark.parametrize(
    ("values", "words"), [({"code": "/x"}, "opens.code=/x"), ({"trust": True}, "opens.trust=true")]
)
def test_a_third_party_s_options(quick, tmp_path, values, words):
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"set": {**values, "depth": 2}}))
    assert words in refused(method=Opens, config=file, **quick)
    found = pf.run(Opens, config=file, set=values, out=tmp_path / "r", **quick)
    recorded = json.loads((found.folder / "config.json").read_text())["options"]["opens"]
    assert recorded == {"code": None, "trust": False, "depth": 2} | values


@pytest.mark.slow
def test_the_default_is_no_consent(quick, tmp_path):
    """A run's config.json lists all options and can repeat the run."""
    first = pf.run(Opens, out=tmp_path / "r", **quick)
    recorded = json.loads((first.folder / "config.json").read_text())
    assert recorded["options"]["opens"]["trust"] is False
    again = pf.run(Opens, config=first.folder / "config.json", out=tmp_path / "again")
    assert again.summary == first.summary


@pytest.mark.slow
def test_a_resumed_folder_can_not_consent(installed, quick, tmp_path):
    quick = {**quick, "set": {"trust": "true"}}
    whole = pf.run("opens", out=tmp_path / "whole", **quick)
    config = tmp_path / "r" / "config.json"

    def stop(event):
        if isinstance(event, pf.events.RoundDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pf.run("opens", out=tmp_path / "r", progress=stop, **quick)
    assert json.loads(config.read_text())["options"]["opens"]["trust"] is True
    again = {"resume": True, "out": tmp_path / "r", "backend": "local"}
    assert "opens.trust=true comes from a file" in refused(**again)
    assert "differs from the run's" in refused(**again, set={"opens.trust": "false"})
    assert "--set NAME.KEY=VALUE" in refused(**again, set={"trust": "true"})
    assert pf.run(**again, set={"opens.trust": "true"}).summary == whole.summary


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install `Opens` as the method ``opens``."""
    about = tmp_path / "installed" / "opens-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: opens\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[protofl.methods]\nopens = {__name__}:Opens\n")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))


def test_show_says_where_it_counts():
    described = Opens.Config.model_fields["trust_"].description
    assert described == "open the file (from the command line only)"
