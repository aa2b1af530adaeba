"""The public names: few, each shown at work, and the examples of the documentation run."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path

import numpy as np
import protofl as pf
import pytest
from protofl.hosts.jobs import StartTrial, Train
from protofl.testing import CONTRACTS
from protofl.testing import toy as toyfed
from protofl.testing.toy_methods import Prototypes
from protofl_cli.app import app
from typer.main import get_command

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def examples():
    """Code that shows names at work: templates, examples, and fenced Python of pages."""
    templates = importlib.resources.files("protofl_cli") / "templates"
    yield from (path.read_text(encoding="utf-8") for path in templates.iterdir())
    yield from (p.read_text(encoding="utf-8") for p in (ROOT / "examples").rglob("*.py"))
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        yield from FENCE.findall(page.read_text(encoding="utf-8"))


def test_the_names_are_few():
    assert len(pf.__all__) <= 67


def test_every_name_is_used_in_an_example():
    used = {name for code in examples() for name in re.findall(r"\bpf\.(\w+)", code)}
    shown = {"HOOKSPEC_VERSION", "__version__"}  # values, not things to build with
    assert set(pf.__all__) - shown - used == set()


def test_the_templates_belong_to_the_wheel():
    """As hatchling's packages take along every file that git does not ignore."""
    folder = ROOT / "cli/protofl_cli/templates"
    assert len([*folder.glob("*.tmpl")]) >= 13
    for package in ("core/protofl", "plugins/protofl_plugins", "cli/protofl_cli"):
        assert (ROOT / package / "py.typed").is_file()


def test_the_page_s_examples_run(tmp_path, monkeypatch, capsys):
    """Run the examples of docs/reference/compatibility.md in order."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/reference/compatibility.md").read_text(encoding="utf-8")
    blocks = FENCE.findall(page)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"example {number}", "exec"), names)
    assert 0 <= float(capsys.readouterr().out) <= 1

    images = names["InAFile"]
    data = toyfed.make_images(toyfed.MIXED)
    np.savez(tmp_path / "images.npz", x_train=data.x.numpy(), y_train=data.y.numpy())
    assert images().cache_key(tmp_path).startswith("in-a-file")
    assert len(images().decode(tmp_path).y) == len(data.y)

    class Asks:
        """An engine that asks the example's question and trains nothing."""

        answers = []

        @pf.hookimpl
        def train(self, job):
            self.answers.append(names["given_to"](job))
            return {}

    plan = toyfed.make_plan(
        "toy",
        tmp_path,
        extra={("method", "toy"): Prototypes, ("engine", "asks"): Asks},
        engine="asks",
    )
    pool = toyfed.WatchedPool(plan)
    server = toyfed.Toy(plan).server
    assert server.knowledge == {}
    pool.host.handle(StartTrial(0))
    sent = pf.Payload(prototypes=data.x.new_zeros(1, 8), classes=data.y.new_zeros(1))
    for blob in (b"", sent.to_bytes()):
        pool.host.handle(Train(0, 0, blob=blob))
    assert Asks.answers == [{"toy": []}, {"toy": ["table", "known"]}]


@pytest.mark.parametrize("kind", CONTRACTS)
def test_every_contract_is_documented(kind):
    assert f"`{CONTRACTS[kind].__name__}`" in (ROOT / "docs/how-to/test-a-plugin.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("command", "page"), [("new-plugin", "tutorials/first-plugin.md"), ("check", "tutorials/first-plugin.md")]
)
def test_commands_of_an_author_are_documented(command, page):
    """Each long option is on the page, but those that every command has."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert f"protofl {command}" in text
    found = get_command(app).commands[command]
    options = {o for p in found.params for o in p.opts if o.startswith("--")}
    for option in options - {"--data-dir"}:
        assert option in text, option
