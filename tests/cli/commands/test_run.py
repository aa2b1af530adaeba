"""Tests of ``protofl run``: output, files, precedence of options, and exit codes."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import protofl as pf
from protofl.federation.round.federation import Federation
from protofl.hooks.discovery.registry import Registry
from protofl.system.formatting import size_text
from protofl_cli.commands.run import _to_continue
from protofl_cli.options.run_options import OF_DATA
from protofl_cli.screens.render import Bars, waiting

LAST_TABLE = (
    "best on test samples (as the papers)",
    "last round",
    "majority guess",
    "over clients",
    "upload a round",
)


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run(cli, digits, tmp_path):
    result = cli("run", "fedsa", *digits, "--out", "r")
    assert result.exit_code == 0, result.output
    before, after = result.output.split("round 1/2: accuracy")
    for words in ("ce + align + mcl + calibration", "server_train", "pathological", "1,797 images"):
        assert words in before
    assert "images of 8 px are brought to 28 px" in before
    assert "malicious" not in before and "unseen" not in before
    assert "round 2/2: accuracy" in after
    for words in (*LAST_TABLE, "seconds a round", "run folder", "protofl report "):
        assert words in after
    names = {"config.json", "metrics.jsonl", "summary.json", "partition.json"}
    names |= {"preparation.json", "checkpoint"}
    assert names <= {path.name for path in (tmp_path / "r").iterdir()}
    assert max(map(len, result.output.splitlines())) <= 100
    assert "keeps on disk" not in before, "a run that keeps little says so at its end only"


def test_one_client_has_no_spread(cli, tiny):
    commands = ("run", "local", *tiny, "--clients", 1, "--out", "r"), ("evaluate", "r", tiny[-1])
    for words in (*commands, ("runs", "show", "r")):
        result = cli(*words)
        assert result.exit_code == 0, result.output
        assert "±" not in result.output and "std" not in result.output


def test_a_run_without_rounds_has_steps_and_no_options_without_a_value(cli, tiny, tmp_path):
    result = cli("run", "fedproto", *tiny, "--schedule", "buffered", "--devices", "tiers")
    assert result.exit_code == 0, result.output
    assert re.search(r"schedule +buffered\(a=0.5, mixing=1\)", result.output)
    assert "2 steps, up to 3 of 3 clients in training" in result.output
    assert "step 2/2:" in result.output and "round" not in result.output.partition("step 1/2:")[2]
    for words in ("last step ", "upload a step ", "staleness of uploads  +mean ", "clients idle "):
        assert re.search(words, result.output), words
    shown = cli("runs", "show", "--runs", "runs", next((tmp_path / "runs").iterdir()).name)
    assert "  steps " in shown.output and "concurrency" not in shown.output


@pytest.mark.parametrize(("keep", "rounds"), [("current", 2), ("last", 3), ("best", 4)])
def test_a_run_says_what_it_will_keep_and_what_it_has_kept(
    cli, tiny, tmp_path, monkeypatch, keep, rounds
):
    monkeypatch.setattr("protofl_cli.screens.tables._MUCH", 0)
    result = cli("run", "fedproto", *tiny, "--trials", 2, "--keep", keep, "--out", "r")
    before, _, after = result.output.partition("round 1/2: accuracy")
    assert f"weights of {rounds} rounds" in before
    files = [*(tmp_path / "r" / "checkpoint").glob("client-00000-*")]
    assert len(files) == rounds if keep != "best" else 2 < len(files) <= rounds
    size = sum(f.stat().st_size for f in (tmp_path / "r").rglob("*") if f.is_file())
    assert re.search(rf"on disk +{size_text(size)}", after)


@pytest.mark.parametrize(
    ("models", "dataset", "words"),
    [
        ("mlp", "wine", ("178 rows of 13 numbers, 3 classes", "mlp1, mlp2, mlp3, mlp4")),
        pytest.param(
            "text",
            "python-docs",
            ("sequences of 32 tokens", "bag, bag-mlp, textcnn, gru"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_data_that_are_no_images(cli, data_dir, tmp_path, models, dataset, words):
    where = ("--backend", "local", "--data-dir", data_dir, "--out", "r")
    split = ("--set", "partition.beta=1")  # the majority guess can be improved
    result = cli("run", "fedproto", "--models", models, "--dataset", dataset, *split, *where)
    assert result.exit_code == 0, result.output
    assert all(part in result.output for part in words)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert summary["final_test_accuracy"] > summary["majority_accuracy"] + 0.05  # the run learned


def test_the_absent_are_counted(cli, data_dir, tmp_path):
    where = ("--backend", "local", "--data-dir", data_dir, "--out", "r")
    words = ("--models", "mlp", "--dataset", "wine", "--clients", 12, "--rounds", 2)
    result = cli("run", "fedproto", *words, "--devices", "tiers", "--deadline", "0.095", *where)
    assert result.exit_code == 0, result.output
    counts = [len(row["absent"]) for row in rows_of(tmp_path / "r")]
    assert min(counts) > 0
    for number, count in enumerate(counts, 1):
        (line,) = [x for x in result.output.splitlines() if x.startswith(f"round {number}/2")]
        assert f" {count} absent," in line
    assert f"{sum(counts)} of 24 selected: deadline {sum(counts)}" in result.output


def test_models_for_other_data_are_refused(cli, data_dir):
    result = cli(
        "run", "fedproto", "--models", "htfe8", "--dataset", "wine", "--data-dir", data_dir
    )
    assert result.exit_code == 2
    assert "htfe8 takes images, and the data are rows of 13 numbers" in result.stderr
    assert "models that take tables: htfe-mlp-4, mlp" in result.stderr


def test_run_folder_by_default(cli, digits, tmp_path):
    result = cli("run", "local", *digits, "--subset", 90, "--rounds", 1)
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("local-cnn4-digits-s0-") and folder.name in result.output


def test_quiet_prints_the_last_table_only(cli, tiny):
    result = cli("run", "local", *tiny, "--quiet")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("local · cnn4 · npz:")
    assert all(words in result.output for words in LAST_TABLE)
    assert "server_train" not in result.output and "round 1/2" not in result.output


def test_a_metric_without_a_value_is_in_the_last_table(cli, tiny, tmp_path):
    y = np.arange(120) % 3
    x = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")
    for name, site in {"all": y, "some": np.minimum(y, 1)}.items():
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, site=site)
        words = ["--models", "mlp", "--dataset", f"npz:{tmp_path / name}.npz"]
        words += ["--set", "dataset.by=site", "--metrics", "auc", "--rounds", 1, "--quiet"]
        result = cli("run", "local", "--no-dry-run", "--data-dir", tmp_path / "d", *words)
        assert result.exit_code == 0, result.output
        text = " ".join(result.output.split())
        if name == "all":
            assert "auc of clients none for 3 of 3 clients, such as site 0" in text
        else:
            assert "auc of clients none for 1 of 2 clients, such as site 0" in text
            assert "final auc" in text and "mean of the others 0." in text


@pytest.mark.slow
def test_profile_prints_where_the_time_went(cli, tiny, tmp_path):
    result = cli("run", "fedproto", *tiny, "--out", "r", "--profile", "--quiet")
    assert result.exit_code == 0, result.output
    _, after = result.output.split("Where the time went: 2 rounds, ")
    for words in ("train", "  forward", "  backward", "prototypes", "waiting", "server_aggregate"):
        assert words in after
    assert "before the rounds: plan" in after
    assert (tmp_path / "r/profile/summary.json").exists()
    assert "profile" not in config_of(tmp_path / "r")
    assert max(map(len, result.output.splitlines())) <= 100
    again = cli("run", "--resume", "--out", "r", "--profile", "--quiet")  # nothing is left to run
    assert again.exit_code == 0 and "Where the time went" not in again.output


@pytest.mark.slow
def test_trials_have_mean_and_deviation(cli, tiny, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # a long data set name would wrap the headings
    result = cli("run", "local", *tiny, "--trials", 2, "--seed", 5)
    assert result.exit_code == 0, result.output
    assert "mean ± std" in result.output
    assert "seed 5" in result.output and "seed 6" in result.output
    assert "trial 2/2 round 1/2:" in result.output


def test_a_terminal_gets_a_live_line(cli, tiny, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    result = cli("run", "local", *tiny)
    assert result.exit_code == 0, result.output
    assert "━" in result.output and "round 2/2" in result.output
    assert "round 2/2:" not in result.output  # the form of a log line


def test_a_long_round_gives_signs_of_life(cli, tiny, monkeypatch):
    monkeypatch.setattr("protofl_cli.screens.render.SIGN_OF_LIFE", 0.0)
    train_server, print_line, said = Federation.train_server, Bars.line, threading.Event()

    def line(self, text, *style):
        print_line(self, text, *style)
        if re.search(r"training (\d+)/\1 clients", text):
            said.set()

    def slow(self, *given):
        assert said.wait(60)
        train_server(self, *given)

    monkeypatch.setattr(Bars, "line", line)
    monkeypatch.setattr(Federation, "train_server", slow)
    result = cli("run", "local", *tiny, "--rounds", 1)
    assert result.exit_code == 0, result.output
    line = r"^  round 1/1: training (\d+)/\1 clients, \d:\d\d$"
    assert re.search(line, result.output, re.MULTILINE)


def test_work_of_minutes_gives_signs_of_life(monkeypatch, capsys):
    monkeypatch.setattr("protofl_cli.screens.render.SIGN_OF_LIFE", 0.01)
    said, stream = threading.Event(), sys.stderr

    def write(text):
        stream.write(text)
        said.set() if "measuring" in text else None

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write, flush=stream.flush))
    with waiting("loading") as show:
        show("measuring steps")
        assert said.wait(60)
    assert re.search(r"^  measuring steps, 0 s$", capsys.readouterr().err, re.MULTILINE)


def test_the_help_names_the_options_that_data_sets_set(cli):
    registry = Registry()
    found = {
        name
        for plugin in registry.plugins("dataset")
        if registry.status(plugin)[0] == "ok"
        for name in getattr(registry.load("dataset", plugin.name), "defaults", {})
    }
    assert found - {"options", "resized"} <= {*OF_DATA} and "drop_last" in OF_DATA
    shown = " ".join(cli("run", "--help-all").output.replace("│", " ").split())
    assert "Leave out the last, smaller batch (default: the data set's, otherwise no)" in shown
    assert "The partitioner (default: the data set's, otherwise dirichlet)" in shown


def test_composition_from_the_command_line(cli, tiny, tmp_path):
    mix = "--use inference=fedproto --add local_loss=fedproto.align --drop local_loss.calibration"
    more = (
        "--drop local_loss.fedsa.mcl --with gaussian-noise --set alpha=0.5 --set gaussian-noise.s=0"
    )
    more += " --set partition.beta=0.7 --no-drop-last --checkpoint-every off --eval-every 2"
    result = cli("run", "fedsa", *tiny, *mix.split(), *more.split(), "--out", "r")
    assert result.exit_code == 0, result.output
    assert "ce + align + fedproto.align" in result.output
    config = config_of(tmp_path / "r")
    assert config["use"] == {"inference": "fedproto"}
    assert config["add"] == ["fedproto.align"]
    assert config["drop"] == ["calibration", "fedsa.mcl"]
    assert config["transforms"] == ["gaussian-noise"]
    assert config["options"]["fedsa"]["alpha"] == 0.5
    assert config["options"]["gaussian-noise"]["s"] == 0
    assert config["options"]["partition"]["beta"] == 0.7
    assert config["checkpoint_every"] == 0
    first, last = rows_of(tmp_path / "r")
    assert first["test_accuracy"] is None and last["test_accuracy"] is not None


@pytest.mark.slow
def test_config_file_and_who_wins(cli, tiny, tmp_path):
    (tmp_path / "run.toml").write_text(
        """
        method = "fedsa"
        models = "htfe8"
        lr = 0.02
        local-epochs = 2
        rounds = 7
        out = "from-file"
        use = ["inference=local"]
        drop = ["local_loss.mcl"]
        with = ["gaussian-noise"]
        checkpoint-every = "off"
        [set]
        alpha = 0.5
        lambda_3 = 3
        partition.beta = 0.9
        """
    )
    result = cli("run", "--config", "run.toml", *tiny, "--lr", 0.05, "--set", "alpha=0.25")
    assert result.exit_code == 0, result.output
    config = config_of(tmp_path / "from-file")
    assert (config["method"], config["models"], config["rounds"]) == ("fedsa", "cnn4", 2)
    assert (config["lr"], config["local_epochs"]) == (0.05, 2)
    assert config["use"] == {"inference": "local"} and config["drop"] == ["mcl"]
    assert config["transforms"] == ["gaussian-noise"] and config["checkpoint_every"] == 0
    assert config["options"]["fedsa"]["alpha"] == 0.25
    assert config["options"]["fedsa"]["lambda_3"] == 3
    assert config["options"]["partition"]["beta"] == 0.9


@pytest.mark.slow
def test_config_json_repeats_a_run(cli, tiny, tmp_path):
    mix = "--add local_loss=fedproto.align --drop local_loss.mcl --set alpha=0.5"
    assert cli("run", "fedsa", *tiny, *mix.split(), "--out", "a").exit_code == 0
    result = cli("run", "--config", "a/config.json", "--backend", "local", "--out", "b")
    assert result.exit_code == 0, result.output
    a, b = config_of(tmp_path / "a"), config_of(tmp_path / "b")
    assert a["set_by"] == b["set_by"]
    assert a == b
    skip = {"seconds", "time"}
    a, b = (
        [{k: v for k, v in row.items() if k not in skip} for row in rows_of(tmp_path / name)]
        for name in "ab"
    )
    assert a == b


@pytest.mark.slow
def test_interrupted_and_resumed(cli, tiny, tmp_path, monkeypatch):
    whole = Federation.round

    def interrupted(self, number):
        if number == 1:
            raise KeyboardInterrupt
        return whole(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "round", interrupted)
        result = cli("run", "local", *tiny, "--out", "r")
    assert result.exit_code == 130
    assert "interrupted" in result.stderr and "1 finished round is saved" in result.stderr
    assert "protofl run --resume --out r" in result.stderr
    assert "Traceback" not in result.output

    result = cli("run", "--resume", "--out", "r", "--lr", 0.5)
    assert result.exit_code == 2 and "--lr 0.5 differs from the run's 0.01" in result.stderr
    result = cli("run", "--resume", "--out", "r", "--set", "alpha=1")
    assert result.exit_code == 2
    result = cli("run", "--resume", "--out", "r", "--backend", "local")
    assert result.exit_code == 0, result.output
    assert "Resuming after 1 finished round." in result.output
    assert [row["round"] for row in rows_of(tmp_path / "r")] == [0, 1]
    result = cli("run", "--resume", "--out", "r", "--quiet")  # a finished run prints its table
    assert result.exit_code == 0 and "best on test samples" in result.output


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated by SIGTERM")],
)
def test_interruptions(subprocess_of, tiny, tmp_path, number, code, words):
    process = subprocess_of("run", "local", *tiny, "--rounds", 5000, "--out", "r")
    metrics = tmp_path / "r" / "metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.stat().st_size:
            break
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == code
    assert "server_train" in output
    assert not (tmp_path / "r" / "parked").exists()
    assert words in errors and "--resume --out r" in errors
    assert "Traceback" not in errors


FAILING = """
import protofl as pf

class Failing:
    "Fails in round 1."
    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def before_training(self, client):
        return {"round": client.round}

    @pf.hookimpl
    def local_loss(self, client, batch, output, constants):
        if constants["round"] == 1:
            raise ZeroDivisionError("on purpose")
        return {"ce": output.logits.sum() * 0}
"""


def test_a_run_that_fails(cli, tiny, strangers):
    strangers("trouble", {"method": {"failing": "trouble_module:Failing"}}, FAILING)
    result = cli("run", "failing", *tiny, "--out", "r")
    assert result.exit_code == 1
    assert "local_loss, client" in result.stderr and "ZeroDivisionError" in result.stderr
    assert "1 finished round is saved" in result.stderr
    assert "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) <= 3


@pytest.mark.slow
def test_debug_shows_the_worker_s_traceback(cli, tiny, strangers):
    strangers("trouble", {"method": {"failing": "trouble_module:Failing"}}, FAILING)
    words = [word if word != "local" else "process" for word in tiny]
    result = cli("run", "failing", *words, "--workers", 1, "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr and 'ZeroDivisionError("on purpose")' in result.stderr


BAD = {
    "unknown method": ("run fedsaa", "did you mean 'fedsa'"),
    "no method": ("run", "protofl run METHOD"),
    "no models": ("run fedsa --models ", "--models"),
    "unknown group": ("run fedsa --models cnn5", "did you mean 'cnn4'"),
    "unknown data set": ("run fedsa --dataset digitz", "did you mean 'digits'"),
    "data set without its argument": ("run fedsa --dataset npz", "npz:PATH"),
    "missing file": ("run fedsa --dataset npz:nowhere.npz", "nowhere.npz"),
    "unknown partitioner": ("run fedsa --partition dirichlett", "did you mean 'dirichlet'"),
    "unknown engine": ("run fedsa --engine egaer", "did you mean 'eager'"),
    "unknown backend": ("run fedsa --backend proces", "did you mean 'process'"),
    "unknown key": ("run fedsa --set lamda_2=1", "did you mean 'lambda_2'"),
    "value out of range": ("run fedsa --set lambda_2=-1", "greater than or equal to 0"),
    "value of another type": ("run fedsa --set alpha=often", "alpha"),
    "unknown plugin in set": ("run fedsa --set fedtgp.tau=1", "fedtgp"),
    "set without value": ("run fedsa --set alpha", "[NAME.]KEY=VALUE"),
    "set without key": ("run fedsa --set =1", "[NAME.]KEY=VALUE"),
    "participation 0": ("run fedsa --participation 0", "--participation"),
    "no clients": ("run fedsa --clients 0", "--clients"),
    "too many clients": ("run fedsa --clients 1500", "1500 clients"),
    "optimizer": ("run fedsa --optimizer lion", "unknown optimizer 'lion'"),
    "device": ("run fedsa --device abacus", "abacus"),
    "more classes than there are": (
        "run fedsa --partition pathological --set partition.classes_per_client=11",
        "at most 10",
    ),
    "checkpoints": ("run fedsa --checkpoint-every often", "expected N|off"),
    "out under a file": ("run fedsa --out file/below", "cannot be written"),
    "out is a file": ("run fedsa --out file", "--out"),
    "out in use": ("run fedsa --out used", "--resume"),
    "resume without a run": ("run --resume --out used", "config.json"),
    "resume without out": ("run --resume", "--out"),
    "missing config": ("run --config nowhere.toml", "nowhere.toml"),
    "config is no TOML": ("run --config file", "TOML"),
    "drop an absent term": ("run fedproto --drop local_loss.mcl", "unknown loss term 'mcl'"),
    "drop of another hook": ("run fedsa --drop inference.mcl", "unknown loss term"),
    "add a present term": ("run fedsa --add local_loss=fedsa.mcl", "holds it already"),
    "add without term": ("run fedproto --add fedsa", "write METHOD.TERM"),
    "add without method": ("run fedproto --add upload_payload=", "unknown method ''"),
    "add an unknown term": ("run fedproto --add local_loss=fedsa.mlc", "did you mean 'mcl'"),
    "unknown hook": ("run fedsa --use inferense=local", "did you mean 'inference'"),
    "use without method": ("run fedsa --use inference", "HOOK=METHOD"),
    "unknown payload-transform": ("run fedsa --with noise", "payload-transform"),
    "blocked": ("run fedsa --block fedsa", "blocked"),
    "other heads": ("run lg-fedavg --models res34-htc4", "gives all clients one head"),
    "other models": ("run fedavg --models htcnn8", "homogeneous group"),
    "public": ("run fedsa --public some", "--public"),
}


@pytest.mark.parametrize("case", BAD)
def test_found_before_training(cli, data_dir, tmp_path, case):
    (tmp_path / "file").write_text("no = [")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    command, message = BAD[case]
    words = command.split(" ")
    if "--models" not in words and words[1:2] != ["--resume"]:
        words += ["--models", "cnn4"]
    result = cli(*words, *([] if "--resume" in words else ["--data-dir", data_dir]), "--no-dry-run")
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    lines = result.stderr.strip().splitlines()
    assert lines[0].startswith("error: ") and len(lines) <= 3
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.slow
def test_as_a_stranger_types_it(subprocess_of, data_dir, tmp_path):
    """Uses the defaults of the console script: worker processes, a dry run, checkpoints."""
    words = ("--models", "cnn4", "--clients", 2, "--rounds", 1, "--workers", 1, "--subset", 90)
    process = subprocess_of("run", "fedproto", *words, "--data-dir", data_dir, "--out", "r")
    output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    assert "dry run" in output and "best on test samples" in output
    assert errors == ""
    assert (tmp_path / "r" / "checkpoint" / "manifest.json").exists()


MINE = '''
import protofl as pf


class Mine:
    """Sends prototypes, and nothing comes back."""

    @pf.hookimpl
    def upload_payload(self, client):
        return client.class_prototypes()
'''


@pytest.mark.slow
def test_a_class_of_a_file_runs(cli, tiny, tmp_path):
    (tmp_path / "my_own.py").write_text(MINE)
    result = cli("run", "my_own.py:Mine", *tiny, "--out", "run")
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["method"] == "mine"
    assert config["classes"] == {"method/mine": f"{tmp_path / 'my_own.py'}:Mine"}
    rows = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[0])["upload_floats"] > 0
    wrong = cli("run", "my_own.py:Mime", *tiny)
    assert wrong.exit_code == 2 and "did you mean 'Mine'" in wrong.output
    further = cli(
        "run", "local", "--class", "my_own.py:Mine", "--use", "upload_payload=mine", *tiny
    )
    assert further.exit_code == 0, further.output


@pytest.mark.slow
def test_a_class_of_a_file_runs_in_workers(cli, tiny, tmp_path):
    (tmp_path / "my_own.py").write_text(MINE)
    words = ["my_own.py:Mine", *tiny]
    assert cli("run", *words, "--out", "here").exit_code == 0
    words[words.index("local")] = "process"
    there = cli("run", *words, "--workers", "2", "--out", "there")
    assert there.exit_code == 0, there.output
    weights = [
        {p.name: p.read_bytes() for p in (tmp_path / out / "checkpoint").glob("*.safetensors")}
        for out in ("here", "there")
    ]
    assert weights[0] and weights[0] == weights[1]


@pytest.mark.slow
def test_a_finished_run_goes_on(cli, tiny, tmp_path):
    assert cli("run", "fedproto", *tiny, "--out", "run").exit_code == 0
    on = ("run", "--resume", "--out", "run", "--backend", "local")
    result = cli(*on, "--rounds", "3")
    assert result.exit_code == 0, result.output
    assert "Resuming after 2 finished rounds" in result.output
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 3
    fewer = cli(*on, "--rounds", "1")
    assert fewer.exit_code == 2 and "--rounds 1: the run has 3 already" in fewer.output


@pytest.mark.slow
def test_a_schedule_of_the_method_s_own_can_t_go_on(cli, tiny):
    """FedKD's energy threshold depends on the number of rounds."""
    assert cli("run", "fedkd", *tiny, "--out", "run").exit_code == 0
    result = cli("run", "--resume", "--out", "run", "--rounds", "3")
    assert result.exit_code == 2
    assert "fedkd depends on the number of rounds" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("words", "near"),
    [
        ("run fedproto --models cnn4 --learning-rate 0.1", "did you mean --lr?"),
        ("run fedproto --models cnn1d --dataset har.npz", "write npz:har.npz"),
    ],
)
def test_what_was_meant_is_named(cli, words, near):
    result = cli(*words.split())
    assert result.exit_code == 2 and near in result.stderr


def test_an_option_of_a_method_is_given_with_set():
    with pytest.raises(pf.UsageError) as caught:
        pf.run("fedproto", models="cnn4", lambda_=3)
    assert caught.value.near == "options of methods and other plugins: set={'lambda_': VALUE}"


def test_a_dry_run_is_not_asked_for(cli):
    result = cli("run", "fedproto", "--models", "mlp", "--dry-run")
    assert result.exit_code == 2
    assert "--plan" in result.stderr and "--no-dry-run" in result.stderr


def test_a_run_whose_folder_was_removed_cannot_be_resumed(tmp_path):
    folder = SimpleNamespace(path=tmp_path / "a", commit=None)
    assert _to_continue(folder) == ""
    folder.path.mkdir()
    assert "resume with: protofl run --resume --out" in _to_continue(folder)
