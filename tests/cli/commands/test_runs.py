"""Tests of ``protofl runs``: list, show and rm."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
from written_records import seal

from protofl.errors import Diverged
from protofl.records.failure import record_divergence
from protofl.system.files.lock import folder_lock


@pytest.fixture(scope="module")
def done(tmp_path_factory, data_dir):
    """Return a folder of three runs: local with two seeds, and fedproto with one round left."""
    import protofl as pf

    folder = tmp_path_factory.mktemp("done") / "runs"
    given = {"dataset": "wine", "models": "mlp", "clients": 3, "rounds": 2, "dry_run": False}
    given |= {"data_dir": data_dir, "backend": "local", "progress": False, "partition": "iid"}
    for seed in (0, 1):
        pf.run("local", out=folder / f"local-{seed}", seed=seed, **given)
    pf.run("fedproto", out=folder / "proto", **given)
    lines = (folder / "proto/metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "proto/metrics.jsonl").write_bytes(lines[0])
    seal(folder / "proto", finished=None)
    (folder / "proto/metrics.jsonl").write_bytes(lines[0] + lines[1][:40])
    return folder


@pytest.fixture
def runs(done, tmp_path):
    return shutil.copytree(done, tmp_path / "runs")


def test_list(cli, runs):
    output = cli("runs", "list").output
    assert [line.split()[0] for line in output.splitlines()[2:5]] == ["local-0", "local-1", "proto"]
    assert "1/2" in output and "unfinished" in output
    assert "all: models mlp, data wine, split iid" in output and "3 runs in runs" in output
    assert max(map(len, output.splitlines())) <= 100


def test_list_of_some(cli, runs):
    def names(*words):
        return [path["folder"].rpartition("/")[2] for path in listed(cli, *words)]

    assert names() == ["local-0", "local-1", "proto"]
    assert names("--method", "local") == ["local-0", "local-1"]
    assert names("--method", "local", "--seed", 1) == ["local-1"]
    assert names("--unfinished") == ["proto"]
    assert names("--dataset", "wine", "--models", "mlp") == ["local-0", "local-1", "proto"]
    assert names("--dataset", "digits") == [] and names("--models", "cnn4") == []
    assert "No such runs" in cli("runs", "list", "--models", "cnn4").output
    assert cli("runs", "list", "--runs", runs).output == cli("runs", "list", runs).output


def listed(cli, *words):
    return json.loads(cli("runs", "list", "--json", *words).output)


def test_list_says_what_goes_on_and_what_is_damaged(cli, runs):
    (runs / "local-0/config.json").write_text("{")
    with folder_lock(runs / "proto", "--out"):
        states = {run["folder"]: run["state"] for run in listed(cli)}
        output = cli("runs", "list").output
    assert states == {
        "runs/local-0": "damaged",
        "runs/local-1": "finished",
        "runs/proto": "going on",
    }
    assert "local-0/config.json is damaged: invalid JSON" in output


@pytest.mark.slow
def test_list_needs_no_torch_and_no_numpy(runs):
    code = (
        "import sys; sys.argv[1:] = ['runs', 'list']\n"
        "from protofl_cli.start import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'numpy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=runs.parent)


def test_show_by_folder_and_by_identity(cli, runs):
    identity = listed(cli)[0]["identity"]
    one = cli("runs", "show", "runs/local-0").output
    assert f"identity          {identity}" in one and "seed              0" in one
    assert "protofl run --config runs/local-0/config.json" in one
    assert "2 of 2" in one and "3 clients with" in one and "wine" in one
    assert cli("runs", "show", f"{identity[:8]}-s0").output == one
    page = " ".join(one.split())
    assert f"torch {torch.__version__}" in page
    assert f"instruction set {torch.backends.cpu.get_cpu_capability()}" in page
    both = cli("runs", "show", identity[:8]).output
    assert one in both and "local-1" in both
    proto = cli("runs", "show", "proto").output
    assert "protofl run --resume --out runs/proto" in proto and "1 of 2" in proto
    about = json.loads(cli("runs", "show", "proto", "local-1", "--json").output)
    assert [run["state"] for run in about] == ["unfinished", "finished"]
    assert about[1]["summary"]["best_test_accuracy"] > 0 and about[0]["summary"] is None


def test_rm(cli, runs):
    refused = cli("runs", "rm", "proto")
    assert refused.exit_code == 2 and "--force" in refused.output
    result = cli("runs", "rm", "proto", "local-0", "--force")
    assert result.exit_code == 0 and "removed runs/proto" in result.output
    assert [run["folder"] for run in listed(cli)] == ["runs/local-1"]


def test_rm_of_one_that_goes_on_removes_none(cli, runs):
    with folder_lock(runs / "proto", "--out"):
        result = cli("runs", "rm", "local-0", "proto", "--force")
    assert result.exit_code == 2 and "is still running" in result.output
    assert len(listed(cli)) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "nowhere"], "there is no folder nowhere"),
        (["show", "locall-0"], "did you mean 'local-0'"),
        (["rm", "runs"], "not a run folder"),
        (["show", "runs"], "runs in it: local-0, local-1, proto"),
    ],
)
def test_mistakes(cli, runs, words, message):
    result = cli("runs", *words)
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_run_reuse(cli, runs, data_dir):
    """An equal run is shown, a longer one continues it, a different one gets its own folder."""
    words = ["--models", "mlp", "--dataset", "wine", "--partition", "iid", "--clients", 3]
    words += ["--data-dir", data_dir, "--backend", "local", "--no-dry-run", "--reuse", "runs"]
    found = cli("run", "local", *words, "--rounds", 2)
    assert found.exit_code == 0, found.output
    assert "runs/local-0 has this run already" in found.output
    assert "majority guess" in found.output and "round 1/2" not in found.output
    more = cli("run", "local", *words, "--rounds", 3)
    assert "round 3/3" in more.output and "round 2/3" not in more.output
    assert listed(cli, "--method", "local", "--seed", 0)[0]["done"] == 3
    other = cli("run", "local", *words, "--rounds", 1, "--seed", 7)
    assert other.exit_code == 0, other.output
    identity = listed(cli, "--seed", 7)[0]["identity"]
    assert (runs / f"local-mlp-wine-s7-{identity[:8]}").is_dir()
    refused = cli("run", "local", *words, "--out", "x")
    assert refused.exit_code == 2 and "leave --out and --resume out" in refused.output


def test_one_that_diverged(cli, data_dir, runs):
    """`list` and `show` report the divergence until the run has more rounds."""
    words = "run fedproto --dataset wine --models mlp --clients 3 --partition iid --rounds 2"
    words += " --lr 1e30 --no-dry-run --backend local --out runs/lost --data-dir"
    failed = cli(*words.split(), data_dir)
    assert failed.exit_code == 1 and "NaN" in failed.stderr
    assert {r["state"] for r in listed(cli) if r["folder"].endswith("lost")} == {"diverged"}
    assert "runs/lost" in [r["folder"] for r in listed(cli, "--unfinished")]
    page = " ".join(cli("runs", "show", "runs/lost").output.split())
    assert json.loads((runs / "lost/failure.json").read_text())["what"] in page
    (runs / "lost/metrics.jsonl").write_bytes((runs / "local-0/metrics.jsonl").read_bytes())
    assert "diverged" not in cli("runs", "list").output


def test_what_diverges_before_it_begins_leaves_nothing(tmp_path):
    with pytest.raises(Diverged), record_divergence(tmp_path, "cpu"):
        raise Diverged("NaN")
    assert not any(tmp_path.iterdir())


def test_a_line_may_lack_the_deviation(cli, runs):
    """Other programs may write records that have no value but the accuracy."""
    file = runs / "proto/metrics.jsonl"
    line = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    file.write_text(json.dumps(line | {"test_accuracy_std": None}) + "\n", encoding="utf-8")
    seal(runs / "proto", finished=None)
    shown = cli("runs", "show", "proto")
    assert shown.exit_code == 0, shown.output
    assert f"{line['test_accuracy']:.2%}" in shown.output
