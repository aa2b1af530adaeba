"""Tests of missing paths, and of paths that begin with ``~``, also without a home folder."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

import protofl as pf
from protofl.backends import Plan
from protofl_cli.app import main


@pytest.fixture
def homeless(monkeypatch):
    """A user without HOME and without an entry in the list of users, as in containers."""

    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "PROTOFL_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pf.expand_user("~/runs/a") == tmp_path / "runs/a"
    assert pf.expand_user("~") == pf.expand_user(Path("~")) == tmp_path
    assert pf.expand_user("a/~/b") == Path("a/~/b")


def test_another_user_and_a_folder_that_is_called_so(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pf.UsageError, match="there is no user 'tilde' on this machine") as caught:
        pf.expand_user("~tilde/r")
    assert caught.value.do.endswith(str(tmp_path / "~tilde/r"))
    (tmp_path / "~tilde").mkdir()
    assert pf.expand_user("~tilde/r") == Path("~tilde/r")
    assert pf.expand_user("~tilde") == Path("~tilde")


def test_a_user_without_a_home(homeless, few, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pf.UsageError, match=r"~/\.cache: this user has no home folder") as caught:
        pf.expand_user("~/.cache")
    assert "HOME" in caught.value.do
    assert pf.expand_user("runs/a") == Path("runs/a")
    given = {"models": "cnn4", "clients": 2, "rounds": 1, "feature_dim": 8, "backend": "local"}
    given |= {"progress": False, "dry_run": False, "dataset": few}
    with pytest.raises(pf.UsageError, match="this user has no home folder"):
        pf.run("local", **given)
    pf.run("local", **given, data_dir=tmp_path / "data", out=tmp_path / "run")
    assert pf.load_run(tmp_path / "run").rounds_done == 1


@pytest.mark.parametrize(
    "command",
    [
        ["run", "local", "--models", "cnn4", "--out", "~nobody-here/r"],
        ["run", "local", "--models", "cnn4", "--dataset", "npz:~nobody-here/x.npz"],
        ["run", "local", "--models", "cnn4", "--dataset", "folder:~nobody-here"],
        ["run", "local", "--models", "cnn4", "--data-dir", "~nobody-here"],
        ["run", "local", "--models", "cnn4", "--init", "~nobody-here/r"],
        ["runs", "show", "~nobody-here/r"],
        ["report", "~nobody-here/r"],
        ["compare", "~nobody-here/r", "~nobody-here/s"],
        ["partition", "show", "--data-dir", "~nobody-here"],
        ["sweep", "local", "--models", "cnn4", "--grid", "lr=1,2", "--out", "~nobody-here/s"],
    ],
    ids=" ".join,
)
def test_commands_name_the_user(command, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["protofl", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    said = "".join(capsys.readouterr())
    assert ended.value.code == 2, said
    assert "there is no user 'nobody-here'" in " ".join(said.split()), said
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("dataset", ["csv", "parquet", "npz", "folder", "domains"])
def test_a_missing_path_has_a_similar_name(dataset, tmp_path):
    (tmp_path / "patients.csv").write_text("")
    given = {"method": "local", "models": "mlp", "data_dir": str(tmp_path / "data")}
    for path, near in (
        (tmp_path / "patient.csv", f"did you mean {tmp_path / 'patients.csv'}?"),
        (tmp_path / "none" / "patient.csv", f"the folder {tmp_path / 'none'} does not exist"),
    ):
        with pytest.raises(pf.UsageError, match=r"^no (file|folder) ") as caught:
            Plan.make({**given, "dataset": f"{dataset}:{path}"}, report=lambda line: None)
        assert caught.value.near == near and f"--dataset {dataset}:" in caught.value.do
