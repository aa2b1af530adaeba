"""Tests of the command on the page: it repeats the run with the same options."""

from __future__ import annotations

import shlex

import pytest
from reported_pages import read
from runtime_toys import DATA, install
from slowness import quick

from protofl import report
from protofl.backends import Plan
from protofl.runs.request.request import Request, read_request
from protofl.runs.results.configuration import config_of
from protofl.system.options.settings import Settings
from protofl_cli.commands.run import run as run_command
from protofl_cli.options.run_options import whole_command
from protofl_workbench.reporting.configuration import command_line as typed

TOY = "--models toy --dataset tiny --partition iid --clients 4 --device cpu --backend local"


def request_of(line):
    """Return the request that the command line builds from a shell line."""
    protofl, run, *words = shlex.split(line.replace("\\\n", " "))
    assert (protofl, run) == ("protofl", "run")
    context = whole_command("run", run_command, "").make_context("run", words)
    given = {name.removesuffix("_"): value for name, value in context.params.items()}
    known = {*Settings.model_fields, "set", "with", "class"}  # not --out, --quiet, …
    request = read_request({name: value for name, value in given.items() if name in known})
    assert isinstance(request, Request)
    return request


def config_after(line):
    request = request_of(line)
    options = {**request.options, "data_dir": DATA}
    return config_of(Plan.make(options, request.extra, lambda line: None))


@pytest.mark.parametrize(
    "options",
    quick(
        [
            "fedproto",
            "fedproto --set variant=official --set lambda=0.3 --no-dry-run --keep current",
            "fedsa --use server_train=fedtgp --drop local_loss.mcl --set fedtgp.tau=50 --lr 0.007",
            "fedproto --add local_loss=fedsa.mcl --with quantise --set quantise.to=fp16",
            "fedproto --optimizer adamw --set optimizer.betas=0.9,0.98 --weight-decay 0.01",
            "fedproto --lr-schedule cosine --set schedule.warmup=2 --set schedule.over=30",
            "fedproto --malicious 0.3 --with sign-flip --metrics ece,macro-f1 --set ece.bins=7",
            "fedproto --devices tiers --deadline 2.5 --over-select 0.2 --participation 0.5",
            "fedmd --public 12 --measure public-logits,flops --subset 1/2",
            "fedproto --checkpoint-every off --eval-every 3 --augment --hold-split --seed 5",
        ],
        "fedproto --set variant=official --set lambda=0.3 --no-dry-run --keep current",
        "fedsa --use server_train=fedtgp --drop local_loss.mcl --set fedtgp.tau=50 --lr 0.007",
        "fedproto --malicious 0.3 --with sign-flip --metrics ece,macro-f1 --set ece.bins=7",
    ),
)
def test_a_run_is_made_again(monkeypatch, options):
    install(monkeypatch)
    config = config_after(f"protofl run {options} {TOY}")
    line = typed(config)
    assert all(len(row) < 100 and row.endswith("\\") for row in line.splitlines()[:-1])
    again = config_after(line)
    assert again.pop("set_by") and config.pop("set_by")  # the data set's values are now typed
    assert again == config


def test_the_commands_stand_on_the_page(runs, monkeypatch, undrawn):
    monkeypatch.chdir(runs)
    install(monkeypatch)
    commands = [code.text for code in read(report(runs / "proto")).all("code")]
    assert commands[0] == "protofl run --config proto/config.json"
    request = read_request({}, config=runs / "proto/config.json")
    assert request_of(commands[1]).options["options"]["fedproto"] == {
        key: str(value).removesuffix(".0")
        for key, value in request.options["options"]["fedproto"].items()
    }


def test_odd_characters_are_quoted():
    hostile = {"method": "x; rm -rf ~", "models": "a b", "options": {"x": {"k": "$(id) 'q'"}}}
    words = shlex.split(typed(hostile).replace("\\\n", " "))
    assert words == ["protofl", "run", "x; rm -rf ~", "--models", "a b", "--set", "x.k=$(id) 'q'"]
