"""Tests of the way from options to a run: one registry, one validation, a frozen plan."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from runtime_toys import GIVEN, install, train
from typer.testing import CliRunner

import protofl as pf
from protofl.backends import Plan
from protofl.hooks.discovery.registry import Registry
from protofl.runs.lifecycle import backend_choice
from protofl.runs.request.planning import plan_run
from protofl.runs.request.request import read_request
from protofl.system.options.settings import Settings
from protofl_cli.app import app

SOURCE = '''
import protofl as pf


class Sends:
    """Sends prototypes, and nothing comes back."""

    @pf.hookimpl
    def upload_payload(self, client):
        return client.class_prototypes()
'''

WORDS = [word for key in ("models", "dataset", "partition", "clients", "rounds", "batch_size")
         for word in ("--" + key.replace("_", "-"), str(GIVEN[key]))]  # fmt: skip
WORDS += ["--device", "cpu", "--data-dir", str(GIVEN["data_dir"])]


@pytest.fixture(autouse=True)
def toys(monkeypatch, tmp_path):
    install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def cli():
    def type_in(*words):
        found = CliRunner().invoke(app, [str(word) for word in words])
        assert found.exit_code == 0, found.output
        return found.output

    return type_in


@pytest.fixture
def counted(monkeypatch):
    """Return the registries that are made, and the options of methods that are validated."""
    registries, validated = [], []
    original, validate = Registry.__init__, Settings.model_validate

    def init(self, *given, **named):
        registries.append(self)
        original(self, *given, **named)

    def model_validate(values, **named):
        if values.get("method", "-") != "-":  # not the defaults of a plugin
            validated.append(values)
        return validate(values, **named)

    monkeypatch.setattr(Registry, "__init__", init)
    monkeypatch.setattr(Settings, "model_validate", model_validate)
    return registries, validated


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def rows_of(page, start):
    """Return the rows of a page that start so, with single spaces."""
    rows = (" ".join(line.split()) for line in page.splitlines())
    return [row for row in rows if row.startswith(start)]


def counts(counted):
    found = tuple(map(len, counted))
    for each in counted:
        each.clear()
    return found


@pytest.mark.slow
def test_a_run_has_one_registry_and_validates_its_options_once(counted, tmp_path, file):
    train("fedproto", tmp_path / "run", progress=False, dry_run=True)
    assert counts(counted) == (1, 1)
    train(f"{file}:Sends", tmp_path / "file", progress=False)
    assert counts(counted) == (1, 1)
    pf.run(config=tmp_path / "run" / "config.json", out=tmp_path / "again", progress=False)
    assert counts(counted) == (1, 1)
    pf.run(out=tmp_path / "run", resume=True, rounds=3, progress=False)
    assert counts(counted) == (1, 1)


@pytest.mark.slow
def test_the_command_line_validates_once(counted, cli):
    cli("run", "fedproto", *WORDS, "--out", "run")
    assert counts(counted) == (1, 1)
    cli("run", "fedproto", *WORDS, "--plan")
    assert counts(counted) == (1, 1)
    cli("run", "fedproto", *WORDS, "--reuse", "runs")
    assert counts(counted) == (1, 1)


def test_a_plan_never_changes():
    plan = Plan.make(GIVEN | {"method": "fedproto"})
    with pytest.raises(FrozenInstanceError):
        plan.settings = plan.settings.model_copy(update={"rounds": 7})
    for held in (plan.choices, plan.set_by):
        with pytest.raises(TypeError):
            held["engine"] = "cuda-graphs"
    with pytest.raises(AttributeError):
        plan.notes.append("a line")
    other = plan.choosing("engine", "vmapped", {"group": 2})
    assert (other.settings.engine, other.choices["engine"].name) == ("vmapped", "vmapped")
    assert other.settings.options["engine"] == {"group": 2}
    assert (plan.settings.engine, plan.choices["engine"].name) == ("eager", "eager")
    assert "engine" not in plan.settings.options


def test_auto_becomes_another_plan():
    plan, notes = Plan.make(GIVEN | {"method": "fedproto", "backend": "auto"}), []
    assert "backend" not in plan.choices  # nothing stands in for a choice that is not made
    chosen = backend_choice.choose_backend(plan, notes.append)
    assert (plan.settings.backend, chosen.settings.backend) == ("auto", "local")
    assert backend_choice.choose_backend(chosen, notes.append) is chosen


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"measure": "public-logits"}, "--measure public-logits"),
        ({"observe": "prototypes"}, "--observe prototypes"),
        ({"min_clients": 5}, "min-clients"),
    ],
)
def test_what_cannot_be_done_is_found_when_the_plan_is_made(options, words):
    request = read_request({**GIVEN, "method": "local", **options})
    with pytest.raises(pf.UsageError, match=words):
        plan_run(request, print)


@pytest.mark.slow
@pytest.mark.parametrize(("startup", "backend"), [(1e9, "local"), (0.0, "process")])
def test_the_page_of_the_plan_has_the_choices_of_the_run(cli, monkeypatch, startup, backend):
    monkeypatch.setattr(backend_choice, "STARTUP", startup)
    for module in (
        "protofl.runs.lifecycle.backend_choice",
        "protofl.federation.plan.resolution",
    ):
        monkeypatch.setattr(f"{module}.usable_cores", lambda: [0, 1])
    page = cli("run", "fedproto", *WORDS, "--lr", "0.2", "--plan")
    assert f"engine eager, backend {backend}" in page
    assert ("with 1 process," if backend == "local" else "with 2 processes,") in page
    begun = []

    def watch(plan, note, **about):
        begun.append(chosen := original(plan, note, **about))
        return chosen.choosing("backend", "local")

    original = backend_choice.choose_backend
    monkeypatch.setattr(backend_choice, "choose_backend", watch)
    screen = cli("run", "fedproto", *WORDS, "--lr", "0.2", "--out", "run")
    assert [plan.settings.backend for plan in begun] == [backend]
    assert rows_of(page, "set by") == rows_of(screen, "set by") != []
    config = json.loads(Path("run/config.json").read_text(encoding="utf-8"))
    assert config["engine"] == "eager" and config["set_by"]["lr"] == "user"
    others = {who for who in config["set_by"].values() if who != "user"}
    assert all(f"set by {who}" in page for who in others)


def test_a_request_that_changes_keeps_its_registry():
    request = read_request({**GIVEN, "method": "fedproto"})
    assert request.with_options({**request.options, "rounds": 3}).registry is request.registry
    other = request.with_options({**request.options, "block": ["method/fedtgp"]})
    assert other.registry is not request.registry
    assert replace(request, out=None).options == request.options


# --- the drawing of the page ----------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs/background/architecture.md"
BOXES = ("read_request", "build", "make", "choose_backend", "start")
"""The functions that end the boxes of the drawing, in its order."""


def test_the_page_draws_the_way_of_the_options(tmp_path):
    """Each box of the drawing is left once, in the drawing's order."""
    block = re.search(r"<!-- options -->\n```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    drawn = re.findall(r"^ +\d \w+ +(\S+\.py)", block[1], re.MULTILINE)
    left = []

    def watch(frame, event, _):
        code, caller = frame.f_code, frame.f_back and frame.f_back.f_code.co_name
        if event != "return" or code.co_name not in BOXES or caller == "validated_defaults":
            return
        place = Path(code.co_filename)
        if PAGE.parents[2] in place.parents:
            left.append(place.relative_to(PAGE.parents[2]).as_posix())

    options = {**GIVEN, "backend": "auto", "out": tmp_path / "run", "progress": False}
    sys.setprofile(watch)
    try:
        pf.run("local", **options)
    finally:
        sys.setprofile(None)
    assert [place for place in left if place in drawn] == drawn
