"""Tests of the commands ``protofl plot`` and ``protofl compare``."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from protofl_cli.app import app

ROUNDS = [[[0.1, 0.3], [0.4, 0.6]], [[0.2, 0.4], [0.3, 0.5]]]


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def runs(write):
    for method in ("fedproto", "fedtgp"):
        write(f"runs/{method}", ROUNDS, method=method)
    return "runs"


KINDS = [
    "curve --x mb --y worst --band range --target 0.5 --width page",
    "bars --figure best --group-by run",
    "differences --baseline fedtgp --figure best",
    "clients --font sans --width 5",
]


@pytest.mark.parametrize("words", KINDS)
def test_each_kind_is_drawn(cli, runs, tmp_path, words):
    kind, *options = words.split()
    result = cli("plot", kind, runs, *options)
    assert result.exit_code == 0 and result.output == f"picture: {kind}.png\n"
    assert (tmp_path / f"{kind}.png").stat().st_size > 3000


@pytest.mark.parametrize("words", ["differences --baseline fedtgp", "traffic", "curve", "bars"])
def test_groups_are_named_by_their_groups(cli, runs, monkeypatch, words):
    """The order of --label does not matter, and the command prints which group has which name."""
    from protofl_workbench.plots import figure_files

    drawn = []
    monkeypatch.setattr(figure_files, "save", lambda figure, file: drawn.append(figure))
    kind, *options = words.split()
    named = ("--label", "fedtgp=τ = 1", "--label", "fedproto=First")
    result = cli("plot", kind, runs, *options, *named)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        f"picture: {kind}.png", "label: First is fedproto", "label: τ = 1 is fedtgp",
    ]  # fmt: skip
    (axes,) = drawn[0].axes
    texts = [t.get_text() for t in axes.get_yticklabels()]
    texts += [t.get_text() for each in drawn[0].legends for t in each.get_texts()]
    if kind == "differences":
        assert texts == ["First"] and "difference to τ = 1" in axes.get_xlabel()
    else:
        assert [text for text in texts if text in ("First", "τ = 1")] == ["First", "τ = 1"]


def test_names_of_groups_with_signs_of_equality(cli, write):
    for tau in (1, 10):
        write(f"runs/t{tau}", ROUNDS, method="fedtgp", options={"fedtgp": {"tau": tau}})
    found = cli("compare", "runs", "--label", "fedtgp, tau=1=τ = 1", "--format", "csv").stdout
    assert {line.split(",")[4] for line in found.splitlines()[1:]} >= {"τ = 1"}
    shown = cli("compare", "runs", "--label", "fedtgp=TGP", "--baseline", "fedtgp, tau=10")
    assert "label: TGP, tau=1 is fedtgp, tau=1" in shown.output
    assert "difference to TGP, tau=10 in percentage points" in shown.output
    result = cli("compare", "runs", "--label", "fedtgp, tau=1=A", "--label", "fedtgp, tau=10=A")
    assert result.exit_code == 2 and "two groups would be called 'A'" in result.stderr


def test_unfinished_runs_have_empty_bars(cli, runs, write, monkeypatch):
    from protofl_workbench.plots import figure_files

    drawn = []
    monkeypatch.setattr(figure_files, "save", lambda figure, file: drawn.append(figure))
    write("runs/slow", ROUNDS, method="local", rounds=9)
    assert cli("plot", "bars", runs).exit_code == 0
    (axes,) = drawn[0].axes
    names = [text.get_text().replace("\n", " ") for text in axes.get_yticklabels()]
    assert names == ["fedproto", "fedtgp", "local (2 of 9 rounds)"]
    empty = [bar.get_facecolor()[:3] == (1, 1, 1) for bar in axes.patches]
    assert empty == [False, False, True]
    assert cli("plot", "curve", runs).exit_code == 0
    (legend,) = drawn[1].legends
    assert [t.get_text() for t in legend.get_texts()] == names


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["confusion", "split"])
def test_pictures_of_one_run(cli, runs, tmp_path, kind):
    assert cli("plot", kind, "runs/fedtgp", "--trial", 1, "--out", "x.pdf").exit_code == 0
    assert (tmp_path / "x.pdf").read_bytes()[:4] == b"%PDF"
    result = cli("plot", kind, runs)
    assert result.exit_code == 2 and "shows one run, and 2 were given" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plot bar runs", "unknown kind of picture 'bar'\n       did you mean 'bars'"),
        ("plot bars runs --x mb", "bars has no option --x\n       it belongs to curve"),
        ("plot differences runs --baseline fedtpg", "did you mean 'fedtgp'"),
        ("plot split runs --label a", "split has no options --group-by, --label and --order"),
        ("plot curve runs --label a", "expected GROUP=TEXT\n       groups: fedproto; fedtgp"),
        ("plot curve runs --label a --label b", "write: --label fedproto=a"),
        (
            "plot curve runs --label fedtpg=a",
            "unknown group 'fedtpg'\n       did you mean 'fedtgp'",
        ),
        ("compare runs --label =a", "--label =a: expected GROUP=TEXT"),
        ("plot curve runs --out x.gif", "cannot be written as .gif"),
        ("plot curve runs --out no/x.png", "its folder does not exist"),
        ("plot curve runs --width 100", "1 to 40 inches"),
        ("plot curve nowhere", "nowhere is not a run folder"),
        ("plot curve runs --y accuracie", "did you mean accuracy"),
        ("compare runs --baseline fedtpg", "did you mean 'fedtgp'"),
        ("compare runs --format html", "unknown format 'html'"),
        ("compare runs --out x.txt", "unknown format 'txt'"),
        ("compare runs --out x.md --format table", "is only for the screen"),
        ("compare runs --target 80", "expected an accuracy, more than 0 to 1"),
        ("compare nowhere", "nowhere is not a run folder"),
    ],
)
def test_mistakes(cli, runs, words, said):
    result = cli(*words.split())
    assert result.exit_code == 2 and said in result.stderr
    assert len(result.stderr.splitlines()) <= 3


def test_nothing_is_overwritten(cli, runs, tmp_path):
    (tmp_path / "x.png").write_text("mine")
    for words in ("plot curve runs --out x.png", "compare runs --out x.png --format md"):
        result = cli(*words.split())
        assert result.exit_code == 2 and "exists already" in result.stderr
        assert (tmp_path / "x.png").read_text() == "mine"
    assert cli("plot", "curve", runs, "--out", "x.png", "--force").exit_code == 0
    assert (tmp_path / "x.png").read_bytes()[1:4] == b"PNG"


def test_what_runs_lack_is_told(cli, runs, tmp_path, write):
    """A failed run is drawn up to its last round, with a note that it is unfinished."""
    write("runs/failed", ROUNDS, method="local", rounds=9, lr=0.5)
    write("runs/copy", ROUNDS, method="fedtgp")
    result = cli("plot", "curve", runs)
    assert result.exit_code == 0
    asked = 9 * len(ROUNDS)
    done = sum(map(len, ROUNDS))
    assert f"runs/failed: unfinished: {done} of {asked} rounds" in result.output
    assert "skipping runs/fedtgp, trial 0: same seed as runs/copy" in result.output
    (tmp_path / "runs/failed/metrics.jsonl").write_text("")
    result = cli("plot", "bars", "runs/failed")
    assert result.exit_code == 2 and f"runs/failed: unfinished: 0 of {asked}" in result.stderr


def test_a_comparison_on_the_screen(cli, runs):
    result = cli("compare", runs, "--target", 0.4)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert lines[0] == "digits, dirichlet β=0.1, 2 clients: test accuracy (%)"
    assert any(
        line.split() == ["fedtgp", "2", "45.00", "±", "5.00", "45.00", "±", "5.00"]
        for line in lines
    )
    assert "rounds to 40 %" in result.output and "fedtgp" in result.output
    assert max(map(len, lines)) <= 100


def test_a_comparison_as_a_file(cli, runs, tmp_path):
    said = cli("compare", runs, "--format", "json").stdout
    assert cli("compare", runs, "--out", "x.json").output == "comparison: x.json\n"
    assert (tmp_path / "x.json").read_text() == said
    assert {f["figure"] for f in json.loads(said)["figures"]} >= {"final", "best", "worst"}


def test_neither_imports_torch_nor_pyplot(runs, tmp_path):
    """Reading and drawing take a second; importing torch would take another."""
    code = (
        "import sys\n"
        "from protofl_cli.app import app\n"
        "for words in ('compare runs --target 0.4', 'plot curve runs'):\n"
        "    try: app(words.split())\n"
        "    except SystemExit as end: assert not end.code\n"
        "found = {'torch', 'matplotlib.pyplot'} & {*sys.modules}\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)
