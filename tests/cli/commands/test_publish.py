"""Tests of ``protofl publish`` and ``protofl verify``, as users type them."""

from __future__ import annotations

import getpass
import json
import re
import shutil
import socket
from pathlib import Path

import pytest

import protofl as pf
from protofl_workbench.publishing.papers import read_bibtex

MINE = '''"""A method in a file."""

import protofl as pf
from torch.nn.functional import cross_entropy


class Mine:
    """Cross-entropy."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": cross_entropy(output.logits, batch.y)}
'''
SMALL = {"models": "cnn4", "clients": 3, "rounds": 2, "batch_size": 64, "feature_dim": 16}
SMALL |= {"backend": "local", "dry_run": False, "progress": False, "validation": 0.2}


@pytest.fixture(scope="module")
def alone(tmp_path_factory, data_dir, few):
    """Do one short run; return the folder above ``runs/``."""
    home = tmp_path_factory.mktemp("home of ann")
    common = {"dataset": few, "data_dir": data_dir, **SMALL, "rounds": 1}
    pf.run("local", out=home / "runs/local", **common)
    return home


@pytest.fixture(scope="module")
def made(alone, tmp_path_factory, data_dir, few):
    """Do two runs more: fedproto with two seeds, and a method in a file."""
    home = Path(shutil.copytree(alone, tmp_path_factory.mktemp("home of ann") / "work"))
    (home / "mine.py").write_text(MINE, encoding="utf-8")
    common = {"dataset": few, "data_dir": data_dir, **SMALL}
    pf.run("fedproto", out=home / "runs/fedproto", trials=2, **common)
    pf.run(f"{home / 'mine.py'}:Mine", out=home / "runs/mine", **common)
    return home


@pytest.fixture(scope="module")
def published(made):
    """Publish the runs once; the tests change copies of the folder."""
    pf.publish(made / "runs", made / "published", authors=["Ann Lee", "Bo Ek"], license="CC-BY-4.0")
    return made / "published"


@pytest.fixture
def moved(published, tmp_path):
    """Return a copy of the published folder in another place, with another name."""
    return Path(shutil.copytree(published, tmp_path / "some where/else"))


def test_the_unfinished_and_the_missing_are_refused(cli, alone, tmp_path):
    """The quick test of the command: errors before anything is written."""
    cut = Path(shutil.copytree(alone / "runs/local", tmp_path / "runs/cut"))
    shutil.rmtree(cut / "checkpoint")
    (cut / "summary.json").unlink()
    found = cli("publish", tmp_path / "runs", "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert "cut is not finished" in found.stderr and "--resume" in found.stderr
    assert cli("publish", tmp_path / "no", "--out", tmp_path / "out").exit_code == 2
    precious = tmp_path / "full/precious.txt"
    precious.parent.mkdir()
    precious.write_text("x")
    found = cli("publish", alone / "runs/local", "--out", precious.parent, "--force")
    assert found.exit_code == 2 and "is not a published folder" in found.stderr
    assert precious.read_text() == "x"
    for words, says in ((["--include", "weight"], "did you mean 'weights'?"),):
        found = cli("publish", alone / "runs/local", "--out", tmp_path / "out", *words)
        assert found.exit_code == 2 and says in found.stderr, found.stderr
    assert not (tmp_path / "out").exists()


def test_versions_that_differ_are_refused(cli, alone, tmp_path):
    other = Path(shutil.copytree(alone / "runs/local", tmp_path / "runs/other"))
    config = json.loads((other / "config.json").read_text())
    config["versions"]["torch"] = "2.5.0"
    (other / "config.json").write_text(json.dumps(config))
    found = cli("publish", alone / "runs/local", tmp_path / "runs", "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert re.search(r"different versions of torch: .* and 2\.5\.0", " ".join(found.stderr.split()))


@pytest.mark.slow
def test_a_changed_plugin_is_refused(cli, made, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    run = Path(shutil.copytree(made / "runs/mine", tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    config["classes"] = {"method/mine": f"{tmp_path / 'mine.py'}:Mine"}
    (run / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text(MINE.replace("output.logits", "2 * output.logits"))
    found = cli("publish", run, "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert "has changed since the run with method/mine" in " ".join(found.stderr.split())
    (tmp_path / "mine.py").write_text(f"# {tmp_path}\n{MINE}")
    found = cli("publish", run, "--out", tmp_path / "out")
    assert found.exit_code == 2 and "line 1 has" in " ".join(found.stderr.split())
    assert not (tmp_path / "out").exists() and not (tmp_path / ".out.part").exists()


@pytest.mark.slow
def test_the_folder_has_all_parts_and_no_place_of_the_machine(published, made, data_dir):
    files = {path.relative_to(published).as_posix() for path in published.rglob("*")}
    for name in ("README.md", "index.html", "papers.bib", "requirements.txt",
                 "SHA256SUMS", "plugins/mine.py",
                 "runs/mine/config.json", "runs/local/metrics.jsonl",
                 "runs/fedproto/partition.json", "runs/fedproto/summary.json"):  # fmt: skip
        assert name in files
    assert not any(
        "checkpoint" in n or n.endswith((".safetensors", "preparation.json")) for n in files
    )
    host, user = socket.gethostname(), getpass.getuser()
    for path in published.rglob("*"):
        text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
        for fact in (str(made), str(data_dir), str(Path.home()), "home of ann", f"/{user}/"):
            assert fact not in text, (path, fact)
        assert not re.search(rf"\bon {re.escape(host)}\b", text)
    config = json.loads((published / "runs/mine/config.json").read_text())
    assert config["classes"] == {"method/mine": "plugins/mine.py:Mine"}
    assert config["dataset"] == "npz:few.npz" and "data_dir" not in config


@pytest.mark.slow
def test_the_record_is_that_of_the_run(published, made):
    for name in ("fedproto", "local", "mine"):
        for file in ("metrics.jsonl", "summary.json"):
            ours, theirs = ((f / "runs" / name / file).read_bytes() for f in (published, made))
            assert ours == theirs
        assert pf.load_run(published / "runs" / name).finished


@pytest.mark.slow
def test_the_papers_are_those_of_all_components(published):
    papers = read_bibtex((published / "papers.bib").read_text(encoding="utf-8"), "papers.bib")
    keys = {paper.key for paper in papers}
    # protofl, the method, and the group and split, whose modules cite FedTGP
    assert keys == {"protofl", "tan2022fedproto", "zhang2024fedtgp"}
    version = json.loads((published / "publication.json").read_text())["versions"]["protofl"]
    (own,) = (paper for paper in papers if paper.key == "protofl")
    assert own.fields["note"] == f"version {version}"


@pytest.mark.slow
def test_a_moved_folder_is_verified(cli, moved, few):
    found = cli("verify", moved, "--dataset", f"npz:few.npz={few}", "--run", "local")
    assert found.exit_code == 0, found.output
    said = " ".join(found.output.split())
    assert "verified: repeated 1 of 3 runs: local, 1 of 1 round: equal to the last bit" in said
    found = cli("verify", moved, "--no-run", "--json")
    values = json.loads(found.stdout)
    assert values["confirmed"] and values["repeated"] is None and values["extra"] == []
    digest = values["digest"]
    assert cli("verify", moved, "--no-run", "--digest", digest[:16]).exit_code == 0
    found = cli("verify", moved, "--no-run", "--digest", "0123456789abcdef")
    assert found.exit_code == 1 and "another publication" in found.stderr


@pytest.mark.slow
def test_code_of_the_folder_needs_consent(cli, moved, few):
    words = ("verify", moved, "--run", "mine", "--dataset", f"npz:few.npz={few}", "--rounds", "1")
    found = cli(*words)
    assert found.exit_code == 2 and "does not run without your consent" in " ".join(
        found.stderr.split()
    )
    others = cli(*words[:2], *words[4:])  # a run without foreign code is repeated
    said = " ".join(others.output.split())
    assert others.exit_code == 0 and "drawn at random from 2 runs" in said + others.stderr
    assert "mine, which cannot be repeated here" in said
    found = cli(*words, "--trust-code", moved / "plugins/mine.py", "--json")
    assert found.exit_code == 0, found.output
    values = json.loads(found.stdout)["repeated"]
    assert values["exact"] and values["rounds"] == values["equal_rounds"] == 1


@pytest.mark.slow
def test_one_changed_byte_is_refused(cli, moved, few):
    path = moved / "runs/fedproto/metrics.jsonl"
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    found = cli("verify", moved, "--dataset", f"npz:few.npz={few}")
    assert found.exit_code == 1
    assert "changed: runs/fedproto/metrics.jsonl" in found.stderr
    values = json.loads(cli("verify", moved, "--json").stdout)
    assert values["changed"] == ["runs/fedproto/metrics.jsonl"] and not values["confirmed"]


@pytest.mark.slow
def test_other_data_are_refused(cli, moved, tmp_path):
    import numpy as np

    found = cli("verify", moved, "--run", "local")
    assert found.exit_code == 2 and "not part of the folder: npz:few.npz" in found.stderr
    np.savez(
        tmp_path / "other.npz", x_train=np.zeros((90, 8, 8), np.uint8), y_train=np.arange(90) % 10
    )
    other = f"npz:{tmp_path / 'other.npz'}"
    found = cli("verify", moved, "--run", "local", "--dataset", f"npz:few.npz={other}")
    assert found.exit_code == 2 and "are not those of local" in " ".join(found.stderr.split())
    assert "did you mean" in cli("verify", moved, "--run", "locla").stderr


@pytest.mark.slow
def test_more_is_published_only_if_it_is_asked_for(cli, made, tmp_path):
    out = tmp_path / "out"
    words = ("publish", made / "runs/local", "--out", out)
    found = cli(*words, "--include", "weights,preparation", "--json")
    assert found.exit_code == 0, found.output
    values = json.loads(found.stdout)
    assert values["runs"] == ["local"] and "no license is given" in " ".join(values["notes"])
    names = {path.relative_to(out).as_posix() for path in out.rglob("*")}
    assert "runs/local/preparation.json" in names
    assert "runs/local/weights/t0-last/client-00000.safetensors" in names
    assert cli(*words).exit_code == 2
    found = cli(*words, out, "--force")  # its own copy of the run is not published again
    assert found.exit_code == 0, found.output
    assert not (out / "runs/local/weights").exists()
    assert cli("verify", out, "--no-run").exit_code == 0


@pytest.mark.slow
def test_other_files_are_refused(cli, made, tmp_path, data_dir, few):
    common = {"dataset": few, "data_dir": data_dir, **SMALL, "rounds": 1}
    start = made / "runs/fedproto"
    pf.run("fedproto", out=tmp_path / "run", init=start, **common)
    pf.publish(tmp_path / "run", tmp_path / "out")
    words = ("verify", tmp_path / "out", "--dataset", f"npz:few.npz={few}")
    found = cli(*words)
    assert found.exit_code == 2 and "the file of init is not part of the folder" in found.stderr
    found = cli(*words, "--file", f"init={made / 'runs/local'}")
    assert found.exit_code == 2 and "the file of init is not that of run" in found.stderr
    found = cli(*words, "--file", f"init={start}")
    assert found.exit_code == 0 and "equal to the last bit" in " ".join(found.output.split())
    assert (
        "did you mean 'init'"
        in cli(*words, "--file", f"int={start}", "--file", f"init={start}").stderr
    )
