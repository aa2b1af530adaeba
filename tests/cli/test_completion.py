"""Tests of shell completion: commands, options and plugin names, without imports of plugins."""

from __future__ import annotations

import subprocess
import sys

import pytest

from protofl_cli.options.completion import VARIABLE, plugin_names, words

COMPLETE = """
import os, sys
from protofl_cli.start import main
sys.argv = ["protofl"]
os.environ |= {environment!r}
try:
    main()
finally:
    heavy = {{"torch", "numpy", "protofl_plugins", "protofl_privacy"}}
    print(f"heavy: {{sorted(heavy & {{*sys.modules}})}}", file=sys.stderr)
"""


def completed(line, tmp_path):
    """Return what bash gets for a command line at whose end Tab is pressed."""
    number = str(len(line.split()) - (not line.endswith(" ")))
    environment = {VARIABLE: "complete_bash", "COMP_WORDS": line, "COMP_CWORD": number}
    code = COMPLETE.format(environment=environment)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0 and done.stderr == "heavy: []\n", done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("protofl ru", ["run", "runs"]),
        ("protofl deploy re", ["rehearse"]),
        ("protofl run --part", ["--partition", "--participation", "--participants-from"]),
        ("protofl run --quie", ["--quiet"]),
        ("protofl run fedpr", ["fedproto", "fedprox"]),
        ("protofl sweep fedsa-", ["fedsa-lora"]),
        ("protofl run fedproto --models cnn", ["cnn1d", "cnn4"]),
        ("protofl run --partition pa", ["pathological"]),
        ("protofl run --with top-k,mini", ["top-k,minimum-count"]),
        ("protofl run --precision b", ["bf16"]),
        ("protofl show method/fedpr", ["method/fedproto", "method/fedprox"]),
        ("protofl show mach", ["machine"]),
        ("protofl show fedpr", ["fedproto", "fedprox"]),
        ("protofl list-plugins --kind part", ["partitioner"]),
        ("protofl runs list --js", ["--json"]),
    ],
)
def test_bash(line, expected, tmp_path):
    assert completed(line, tmp_path) == expected


def test_a_broken_command_prints_nothing(cli, monkeypatch):
    """Whatever fails, the line that the user types stays as it is."""
    from protofl_cli import app

    def broken(*given):
        raise ValueError("broken")

    monkeypatch.setattr(app, "Installed", broken)
    typed = {VARIABLE: "complete_bash", "COMP_WORDS": "protofl ru", "COMP_CWORD": "1"}
    for name, value in typed.items():
        monkeypatch.setenv(name, value)
    result = cli()
    assert result.exit_code == 1 and result.output == ""


def test_names_come_from_entry_points():
    complete = plugin_names("partitioner")
    assert complete("do") == ["domain"] and complete("nothing") == []
    assert plugin_names("metric", further=["all"])("macro-f1,a") == ["macro-f1,all", "macro-f1,auc"]
    assert words([1, "last"])("l") == ["last"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(cli, shell):
    shown = cli("--show-completion", shell)
    assert shown.exit_code == 0 and VARIABLE in shown.stdout
