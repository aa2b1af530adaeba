"""Forged published folders, each with its digests written anew, as an author or a host can."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import protofl as pf
from protofl_workbench.publishing import layout

SMALL = {"models": "mlp", "dataset": "wine", "clients": 3, "rounds": 2, "validation": 0.2}
SMALL |= {"backend": "local", "dry_run": False, "progress": False}


@pytest.fixture(scope="module")
def published(tmp_path_factory, data_dir):
    """Publish one run of two trials and one of a single trial."""
    home = tmp_path_factory.mktemp("forged")
    pf.run("fedproto", out=home / "runs/ours", trials=2, data_dir=data_dir, **SMALL)
    pf.run("local", out=home / "runs/base", data_dir=data_dir, **SMALL)
    pf.publish(home / "runs", home / "published", authors=["Ann Lee"])
    return home / "published"


@pytest.fixture
def folder(published, tmp_path, monkeypatch, data_dir):
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(data_dir))
    return Path(shutil.copytree(published, tmp_path / "copy"))


# --- ways to edit a folder ------------------------------------------------------------------------


def rows(change, run="ours"):
    """Edit the lines of a record, a list of tables."""

    def edit(folder):
        path = folder / "runs" / run / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        changed = change(lines)
        lines = lines if changed is None else changed
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    return edit


def table(file, change):
    """Edit a JSON file, written as protofl writes it."""

    def edit(folder):
        values = json.loads((folder / file).read_text())
        values = change(values) or values
        (folder / file).write_text(json.dumps(values, indent=1) + "\n")

    return edit


def text(file, old, new):
    def edit(folder):
        content = (folder / file).read_text(encoding="utf-8")
        assert old in content
        (folder / file).write_text(content.replace(old, new), encoding="utf-8")

    return edit


def several(*edits):
    return lambda folder: [edit(folder) for edit in edits]


def put(*path, value):
    """Return a change of a nested value."""

    def change(values):
        for key in path[:-1]:
            values = values[key]
        values[path[-1]] = value

    return change


def bytes_of(file, content):
    return lambda folder: (folder / file).write_bytes(content)


def one_trial(folder):
    """Remove the second, worse trial from rows, configuration and split, but not from the rest."""
    rows(lambda lines: lines[:2])(folder)
    table("runs/ours/config.json", put("trials", value=1))(folder)


def second_trial_removed_everywhere_but_the_page(folder):
    one_trial(folder)
    run = pf.load_run(folder / "runs/ours")
    path = folder / "runs/ours/summary.json"
    path.write_text(json.dumps(run.derived_summary(), indent=1) + "\n")
    mean = run.derived_summary()["mean"]

    def change(values):
        about = next(one for one in values["runs"] if one["name"] == "ours")
        about |= {key: mean[key] for key in about if key in mean} | {"trials": 1}
        about["seconds"] = round(sum(row.seconds["total"] for row in run.rows), 3)

    table("publication.json", change)(folder)


def best(folder, share=0.99):
    """Set every accuracy of the summary of a run."""

    def change(values):
        for one in (values, values["mean"], *values["trials"]):
            one |= {key: share for key in one if key.endswith("test_accuracy")}

    table("runs/ours/summary.json", change)(folder)


FORGERIES = {
    # those of the issue
    "no rows": (rows(lambda lines: []), "has 0 lines"),
    "empty record of a single trial": (bytes_of("runs/base/metrics.jsonl", b""), "has 0 lines"),
    "rows of another trial": (
        rows(lambda lines: [line | {"trial": 1 - line["trial"]} for line in lines]),
        "line 1 is round 1 of trial 1",
    ),
    "renumbered rounds": (
        rows(lambda lines: [line | {"round": line["round"] + 5} for line in lines]),
        "line 1 is round 6 of trial 0",
    ),
    "last round dropped": (rows(lambda lines: lines[:-1]), "round 2 of trial 1 follows"),
    "summary of 99 %": (best, "summary.json: best_test_accuracy is 0.99"),
    "publication of 99 %": (
        table("publication.json", put("runs", 0, "final_test_accuracy", value=0.99)),
        "publication.json: runs.0.final_test_accuracy is 0.99, and the runs give",
    ),
    "page of 99 %": (text("index.html", "</h1>", " 99 %</h1>"), "index.html is not what the runs"),
    # more of our own: rows
    "doubled row": (rows(lambda lines: [lines[0], *lines]), "line 2 is round 1 of trial 0"),
    "extra round": (
        rows(lambda lines: [*lines, lines[-1] | {"round": 2}]),
        "says no further line",
    ),
    "extra trial": (
        rows(lambda lines: [*lines, lines[-1] | {"round": 0, "trial": 2}]),
        "says no further line",
    ),
    "rows in another order": (rows(lambda lines: lines[::-1]), "line 1 is round 2 of trial 1"),
    "trial dropped with its configuration": (one_trial, "summary.json: trials.1"),
    "trial dropped from all but the texts": (
        second_trial_removed_everywhere_but_the_page,
        "README.md is not what the runs give",
    ),
    "fewer rounds configured": (
        table("runs/ours/config.json", put("rounds", value=1)),
        "line 2 is round 2 of trial 0",
    ),
    "patience that did not end it": (
        several(
            table("runs/ours/config.json", put("patience", value=1)),
            rows(lambda lines: [lines[0], lines[2]]),
        ),
        "line 2 is round 1 of trial 1",
    ),
    "accuracies removed": (
        rows(lambda lines: [line.pop("test_accuracy") and None for line in lines] and lines),
        "has no evaluated round",
    ),
    "better accuracy in one row": (
        rows(lambda lines: lines[1].update(test_accuracy=0.999)),
        "and the rows give 0.999",
    ),
    "key that is there twice": (
        text("runs/ours/metrics.jsonl", '{"trial": 0, "round": 0,',
             '{"test_accuracy": 0.99, "trial": 0, "round": 0,'),
        "metrics.jsonl is not written as protofl writes it",
    ),
    "figure that no row has": (
        table("runs/ours/summary.json", put("mean", "final_f1", value=0.99)),
        "summary.json: mean.final_f1 is 0.99, and the rows give nothing",
    ),
    # more of our own: split and configuration
    "another split": (
        table("runs/base/partition.json", lambda values: [
            counts.reverse() for counts in values["train_counts"]] and values),
        "base/summary.json: majority_accuracy is",
    ),
    "another seed": (
        table("runs/base/config.json", put("seed", value=7)),
        "seed is",
    ),
    "another method": (
        table("runs/base/config.json", put("method", value="fedavg")),
        "method is \"local\", and the runs give \"fedavg\"",
    ),
    # more of our own: texts and page
    "README of 99 %": (
        lambda folder: (folder / "README.md").write_text(
            re.sub(r"\| [\d.]+ % \|", "| 99.00 % |", (folder / "README.md").read_text())),
        "README.md is not what the runs give: line",
    ),
    "further page": (bytes_of("results.html", b"99 %"), "results.html is not a file that protofl"),
    "further file of a run": (
        bytes_of("runs/ours/best.json", b"{}\n"),
        "runs/ours/best.json is not a file of a run",
    ),
    "further run": (
        lambda folder: shutil.copytree(folder / "runs/ours", folder / "runs/theirs"),
        "runs/theirs/config.json is not a file of a run",
    ),
    "run left out of publication.json": (
        table("publication.json", lambda values: values["runs"].pop() and values),
        "runs/ours/config.json is not a file of a run",
    ),
    "another author in the README": (
        text("README.md", "Ann Lee", "Bo Ek"),
        "README.md is not what the runs give: line",
    ),
    "older requirements": (
        text("requirements.txt", "torch==", "torch==0"),
        "requirements.txt is not what the runs give: line",
    ),
    "another digest of plugins": (
        table("publication.json", put("plugins", 0, "code", value="000000000000")),
        "publication.json: plugins.0.code is",
    ),
    "record that is not for all parts": (
        table("publication.json", lambda values: values.update(left_out=[]) or values),
        "publication.json: left_out",
    ),
}  # fmt: skip
"""{forgery: (edit, phrase of the message)}; all have exit code 1."""


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_folder_is_refused_without_a_repeated_run(folder, cli, name):
    edit, says = FORGERIES[name]
    edit(folder)
    layout.write_digests(folder)
    found = cli("verify", folder, "--no-run")
    message = " ".join(found.stderr.split())
    print(f"{name}: {message}")
    assert found.exit_code == 1 and says in message, found.output + found.stderr


DAMAGED = {
    "no runs": (table("publication.json", put("runs", value=[])), 2, "runs"),
    "runs without a name": (table("publication.json", put("runs", value=[{}])), 2, "name"),
    "seconds in words": (table("publication.json", put("runs", 0, "seconds", value="x")), 1,
                         'runs.0.seconds is "x"'),
    "no data": (table("publication.json", lambda v: v["runs"][0].pop("data") and v), 1,
                "runs.0.data is nothing"),
    "format in words": (table("publication.json", put("format", value="x")), 2, "format is 'x'"),
    "later format": (table("publication.json", put("format", value=99)), 2, "has format 99"),
    "publication that is a list": (bytes_of("publication.json", b"[]\n"), 2, "is damaged"),
    "half a configuration": (bytes_of("runs/ours/config.json", b"["), 2, "config.json is damaged"),
    "configuration without data": (
        table("runs/ours/config.json", lambda v: v.pop("data") and v), 1, "lacks the data"),
    "name of the folder above": (
        table("publication.json", put("runs", 0, "name", value="..")), 2, "name is '..'"),
    "name with a path": (
        table("publication.json", put("runs", 0, "name", value="../ours")), 2, "name is"),
    "one name twice": (
        table("publication.json", put("runs", 0, "name", value="ours")), 2, "two runs have"),
    "license that is a table": (table("publication.json", put("license", value={})), 2, "license"),
}  # fmt: skip
"""{damage: (edit, exit code, phrase of the message)}."""


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_folder_is_a_clear_error(folder, cli, name):
    edit, code, says = DAMAGED[name]
    edit(folder)
    layout.write_digests(folder)
    found = cli("verify", folder, "--no-run")
    message = " ".join(found.stderr.split())
    print(f"{name}: {message}")
    assert found.exit_code == code and says in message, message
    assert "internal error" not in message


@pytest.mark.parametrize("file", ["publication.json", "SHA256SUMS", "runs/ours/metrics.jsonl"])
def test_a_pipe_in_place_of_a_file_blocks_nothing(folder, cli, file):
    (folder / file).unlink()
    os.mkfifo(folder / file)
    assert cli("verify", folder).exit_code in (1, 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text + text.splitlines(keepends=True)[0], "has a second digest of"),
        (lambda text: text.replace("\n", "\u2028", 1), "line 1 is not the digest of a file"),
        (lambda text: text.replace("\n", "\r\n", 1), "line 1 is not the digest of a file"),
        (lambda text: f"{text}\n", "is not the digest of a file"),
    ],
)
def test_lines_of_the_digests_have_one_form(folder, cli, change, says):
    path = folder / "SHA256SUMS"
    path.write_bytes(change(path.read_text()).encode())
    found = cli("verify", folder, "--no-run")
    assert found.exit_code == 1 and says in " ".join(found.stderr.split())


# --- repeated runs --------------------------------------------------------------------------------


def forge_rows_and_all_that_follows(folder, run="base"):
    """Set accuracies of 99 %, and write everything anew with the code of protofl."""
    from protofl_workbench.publishing import derivation
    from protofl_workbench.publishing.read_me import read_me

    rows(lambda lines: [line | {"test_accuracy": 0.99} for line in lines], run)(folder)
    write_all(folder, derivation, read_me)


def write_all(folder, derivation, read_me):
    values = json.loads((folder / "publication.json").read_text())
    with derivation.inside(folder):
        runs = {one["name"]: pf.load_run(f"runs/{one['name']}") for one in values["runs"]}
        for run in runs.values():
            text = json.dumps(run.derived_summary(), indent=1) + "\n"
            (run.folder / "summary.json").write_text(text)
        runs = {name: pf.load_run(run.folder) for name, run in runs.items()}
        values = derivation.described(runs, values)
        derivation.draw(runs, values, Path())
        derivation.write_texts(values, Path())
        Path("README.md").write_text(read_me(values))
    layout.write_digests(folder)


def test_rows_that_are_forged_with_all_that_follows_need_a_repeated_run(folder, cli):
    forge_rows_and_all_that_follows(folder)
    found = cli("verify", folder, "--no-run")
    said = " ".join(found.output.split())
    assert found.exit_code == 0 and "not verified: no run was repeated" in said
    assert "to the last bit" not in said
    found = cli("verify", folder, "--run", "base")
    said = " ".join(found.output.split())
    assert found.exit_code == 1, said
    assert "not confirmed: repeated 1 of 2 runs: base, 2 of 2 rounds: other figures here" in said


def test_an_edited_version_does_not_silently_loosen_the_comparison(folder, cli):
    from protofl_workbench.publishing import derivation
    from protofl_workbench.publishing.read_me import read_me

    for run in ("ours", "base"):
        table(f"runs/{run}/config.json", put("versions", "torch", value="2.5.0"))(folder)
    rows(lambda lines: [line | {"train_loss": 0.5} for line in lines], "base")(folder)
    write_all(folder, derivation, read_me)
    found = cli("verify", folder, "--run", "base")
    said = " ".join(found.output.split())
    assert found.exit_code == 0 and "verified" not in said
    assert "within the tolerance: repeated 1 of 2 runs: base, 2 of 2 rounds: not compared" in said
    assert "not compared to the last bit, because torch was 2.5.0 and is" in said


def test_the_run_is_drawn_by_the_verifier(folder, cli, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "protofl_workbench.publishing.verification.secrets.choice",
        lambda runs: drawn.append([run["name"] for run in runs]) or runs[0],
    )
    before = layout.files_in(folder)
    found = cli("verify", folder)
    said = " ".join(found.output.split())
    assert found.exit_code == 0, said
    assert drawn == [["base", "ours"]] and "drawn at random from 2 runs" in said + found.stderr
    assert "verified: repeated 1 of 2 runs: base, 2 of 2 rounds: equal to the last bit." in said
    assert "Not repeated: ours. Not checked: title and description;" in said
    assert layout.files_in(folder) == before


def test_a_page_of_other_versions_is_not_called_checked(folder, cli):
    table("publication.json", put("drawn_with", "matplotlib", value="3.0.0"))(folder)
    layout.write_digests(folder)
    found = cli("verify", folder, "--no-run")
    said = " ".join(found.output.split())
    assert found.exit_code == 0
    assert "Not checked:" in said and "page, drawn with matplotlib 3.0.0 (here" in said


def test_no_reader_writes_into_a_published_folder(folder, cli, tmp_path):
    before = layout.files_in(folder)
    ours = folder / "runs/ours"
    for words in (
        ("runs", "list", folder),
        ("runs", "list", folder / "runs"),
        ("runs", "show", ours),
        ("runs", "diff", ours, folder / "runs/base"),
        ("runs", "show", "ours", "--runs", folder),
        ("compare", folder),
        ("report", folder, "--out", tmp_path / "page.html"),
        ("plot", "curve", folder, "--out", tmp_path / "curve.svg"),
    ):
        found = cli(*words)
        assert found.exit_code in (0, 1), found.output + found.stderr
    assert layout.files_in(folder) == before
    assert cli("verify", folder, "--no-run").exit_code == 0


# --- hostile runs ---------------------------------------------------------------------------------


def test_publish_follows_no_links(published, cli, tmp_path):
    run = Path(shutil.copytree(published / "runs/base", tmp_path / "runs/base"))
    secret = tmp_path / "secret.json"
    shutil.move(run / "partition.json", secret)
    (run / "partition.json").symlink_to(secret)
    found = cli("publish", tmp_path / "runs", "--out", tmp_path / "out")
    assert found.exit_code == 2 and "partition.json is a link" in " ".join(found.stderr.split())
    assert not (tmp_path / "out").exists()


HOSTILE = "\x1b[2J<script>alert(1)</script> [x](https://evil.com) | `a` ![y](z) www.evil.com"


def test_names_of_a_hostile_run_are_plain_text(published, cli, tmp_path):
    run = Path(shutil.copytree(published / "runs/base", tmp_path / "runs/base"))
    table("config.json", put("models", value=HOSTILE))(run)
    table("config.json", put("recipe", value={"name": HOSTILE}))(run)
    found = cli("publish", tmp_path / "runs", "--out", tmp_path / "out")
    assert found.exit_code == 0, found.stderr
    text = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    for sign in ("\x1b", "<script", "](https://evil", "www.evil", "![y]", "`a`"):
        assert sign not in text, sign
    assert "\x1b" not in found.output + found.stderr
    assert "<script>alert" not in (tmp_path / "out/index.html").read_text(encoding="utf-8")
