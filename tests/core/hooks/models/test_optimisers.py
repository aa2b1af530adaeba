"""Tests of learning rate schedules and optimizers: against torch's, and in interrupted runs."""

from __future__ import annotations

import json

import pytest
import torch
from runtime_toys import install, lines_of, make_plan, open_federation, train, without_times
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

import protofl as pf
from protofl.hooks.models.optimisers import SCHEDULES, schedule_of

ROUNDS = 12
THEIRS = {
    "constant": ({}, lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    "step": ({"every": 5, "factor": 0.3}, lambda o: lr_scheduler.StepLR(o, 5, gamma=0.3)),
    "exponential": ({"factor": 0.8}, lambda o: lr_scheduler.ExponentialLR(o, 0.8)),
    "cosine": ({"floor": 0.1}, lambda o: lr_scheduler.CosineAnnealingLR(o, ROUNDS, eta_min=0.1)),
}


def theirs(make, rounds=ROUNDS):
    """Return the rates of a torch scheduler that starts at 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule, found = make(optimizer), []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.fixture
def toys(monkeypatch):
    install(monkeypatch)


def test_there_is_torch_s_of_each():
    assert THEIRS.keys() == SCHEDULES.keys()


@pytest.mark.parametrize("name", THEIRS)
def test_factors_are_those_of_torch(name):
    options, make = THEIRS[name]
    schedule = schedule_of(name, options)
    assert [schedule.factor(t, ROUNDS) for t in range(ROUNDS)] == pytest.approx(theirs(make))
    assert schedule.factor(-1, ROUNDS) == 1


@pytest.mark.parametrize("name", THEIRS)
def test_a_warm_up_comes_before_it(name):
    options, _ = THEIRS[name]
    plain, warm = schedule_of(name, options), schedule_of(name, options | {"warmup": 3})
    rates = [warm.factor(t, ROUNDS + 3) for t in range(ROUNDS + 3)]
    assert rates[:3] == [0.25, 0.5, 0.75]
    assert rates[3:] == pytest.approx([plain.factor(t, ROUNDS) for t in range(ROUNDS)])


def test_a_cosine_over_rounds_of_its_own_is_that_of_no_run():
    schedule = schedule_of("cosine", {"over": 8, "warmup": 2, "floor": 0.2})
    rates = [schedule.factor(t, 10) for t in range(10)]
    assert rates == [schedule.factor(t, 1000) for t in range(10)]
    assert rates[2] == 1 and rates[8] == rates[9] == pytest.approx(0.2)
    assert not schedule.horizon and schedule_of("cosine", {}).horizon == "schedule.over"
    assert not any(schedule_of(name, {}).horizon for name in ("constant", "step", "exponential"))


# --- in a run ---------------------------------------------------------------------------------


class Rates:
    """Local training with a module at its own learning rate; reports the server's rate."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def setup_client(self, client: pf.Client) -> None:
        client.add_module("own", torch.nn.Linear(4, 4), lr=0.02)

    @pf.hookimpl
    def local_loss(self, client: pf.Learner, batch: pf.Batch, output: pf.Output) -> pf.Terms:
        return {"ce": cross_entropy(client.module("own")(output.logits), batch.y)}

    @pf.hookimpl
    def end_round(self, server: pf.Server) -> dict:
        return {"server_lr": server.lr}


class Asks:
    """An engine that records the learning rates and trains nothing."""

    seen: list = []

    @pf.hookimpl
    def train(self, job: pf.backends.TrainJob) -> dict:
        self.seen.append([lr for _, lr in job.groups])
        return {}


def test_all_rates_of_a_round_follow(monkeypatch):
    from runtime_toys import PARTS

    monkeypatch.setitem(PARTS, ("engine", "asks"), Asks)
    Asks.seen.clear()
    options = {"schedule": {"factor": 0.5, "every": 1}}
    plan = make_plan(Rates, engine="asks", lr_schedule="step", options=options, rounds=3, clients=1)
    lines = lines_of(plan)
    assert Asks.seen == [pytest.approx([0.1 * f, 0.02 * f]) for f in (1, 0.5, 0.25)]
    assert [line["lr"] for line in lines] == pytest.approx([0.1, 0.05, 0.025])
    assert [line["extra"]["server_lr"] for line in lines] == [line["lr"] for line in lines]


def test_without_a_schedule_no_line_has_a_rate():
    plan = make_plan(Rates, rounds=1)
    (line,) = lines_of(plan)
    assert "lr" not in line and line["extra"]["server_lr"] == plan.settings.lr
    assert not {"schedule", "optimizer"} & plan.settings.options.keys()


@pytest.mark.always
@pytest.mark.slow
def test_a_run_that_is_resumed_has_the_rates_of_a_whole_one(toys, tmp_path):
    options = {
        "rounds": 4,
        "lr_schedule": "cosine",
        "set": {"schedule.warmup": 1, "optimizer.betas": "0.8,0.9"},
        "optimizer": "AdamW",
        "lr": 0.01,
        "weight_decay": 0.1,
    }

    class Stop(Exception):
        pass

    def stop(event):
        if isinstance(event, pf.events.RoundDone) and event.row["round"] == 1:
            raise Stop

    whole = train("fedtgp", tmp_path / "whole", **options)
    with pytest.raises(Stop):
        train("fedtgp", tmp_path / "part", progress=stop, **options)
    part = train(None, tmp_path / "part", resume=True)
    assert without_times(part.record) == without_times(whole.record)
    for path in (tmp_path / "whole/checkpoint").glob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "part/checkpoint" / path.name).read_bytes()
    config = json.loads((tmp_path / "whole/config.json").read_text())
    assert config["optimizer"] == "adamw"
    assert config["options"]["optimizer"] == {"betas": [0.8, 0.9]}
    assert config["options"]["schedule"] == {"warmup": 1, "floor": 0.0, "over": None}
    again = pf.run(config=tmp_path / "whole/config.json", out=tmp_path / "again", backend="local")
    assert without_times(again.record) == without_times(whole.record)


# --- optimisers -------------------------------------------------------------------------------


def weights_after(steps=3, **options):
    """Return a client's weights before and after a round of full-batch steps, and the plan."""
    plan = make_plan("local", clients=1, batch_size=1000, local_epochs=steps, rounds=1, **options)
    federation = open_federation(plan)
    start = {k: v.clone() for k, v in plan.initial_model(0, 0).state_dict().items()}
    federation.round(0)
    return start, federation.pool.client(0).model.state_dict(), plan


@pytest.mark.parametrize(
    ("name", "kind", "written", "arguments"),
    [
        ("AdamW", torch.optim.AdamW, {"betas": "0.8,0.9"}, {"betas": (0.8, 0.9)}),
        ("rmsprop", torch.optim.RMSprop, {"momentum": "0.5"}, {"momentum": 0.5}),
        ("sgd", torch.optim.SGD, {"nesterov": "true"}, {"nesterov": True, "momentum": 0.9}),
        ("adam", torch.optim.Adam, {"amsgrad": True}, {"amsgrad": True}),
        ("adagrad", torch.optim.Adagrad, {}, {}),
    ],
)
@pytest.mark.parametrize("decay", [None, 0.05], ids=["", "decay"])
def test_a_round_is_that_of_torch_s_optimiser(name, kind, written, arguments, decay):
    """It equals a plain training loop over the client's single batch."""
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    options = {"optimizer": written} if written else {}
    start, found, plan = weights_after(
        optimizer=name, options=options, weight_decay=decay, lr=0.01, **momentum
    )
    model = plan.initial_model(0, 0)
    model.load_state_dict(start)
    more = {} if decay is None else {"weight_decay": decay}
    optimizer = kind(model.parameters(), lr=0.01, **arguments, **more)
    rows = plan.split(0).train(0)
    x, y = plan.data.x[rows].float() / 127.5 - 1, plan.data.y[rows]
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    for key, wanted in model.state_dict().items():
        torch.testing.assert_close(found[key], wanted, rtol=1e-4, atol=1e-6)


def test_weight_decay_of_none_is_that_of_the_optimiser():
    """The default is 0.01 for AdamW and 0 for Adam."""
    plans = {
        key: weights_after(optimizer=name, weight_decay=decay)[1]
        for key, name, decay in [
            ("own", "adamw", None),
            ("given", "adamw", 0.01),
            ("none", "adamw", 0.0),
            ("adam", "adam", None),
            ("adam0", "adam", 0.0),
        ]
    }

    def same(a, b):
        return all(torch.equal(plans[a][key], plans[b][key]) for key in plans[a])

    assert same("own", "given") and not same("own", "none") and same("adam", "adam0")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "adamv"}, r"unknown optimizer 'adamv'\ndid you mean 'adam' or"),
        ({"optimizer": "lbfgs"}, r"--optimizer lbfgs cannot train a client's net\n.*closure"),
        ({"optimizer": "sparseadam"}, "--optimizer sparseadam cannot train .*\n.*dense gradients"),
        ({"optimizer": "rprop", "weight_decay": 0.1}, "--weight-decay: rprop has none"),
        (
            {"optimizer": "adamw", "options": {"optimizer": {"beta": 1}}},
            "unknown option of optimizer adamw 'beta'\ndid you mean 'betas'",
        ),
        (
            {"options": {"optimizer": {"weight_decay": 1}}},
            r"optimizer.weight_decay=1 is an option of the run\nwrite --weight-decay",
        ),
        (
            {"optimizer": "adamw", "options": {"optimizer": {"betas": "2,3"}}},
            r"--optimizer adamw cannot train .* with betas=\(2, 3\)\nInvalid beta",
        ),
        ({"weight_decay": -1}, "--weight-decay -1 is not possible"),
        ({"weight_decay": float("inf")}, "--weight-decay inf is not possible: .* finite number"),
        ({"lr": float("nan")}, "--lr nan is not possible"),
        ({"lr_schedule": "linear"}, "--lr-schedule linear is not possible: .*'cosine'"),
        (
            {"lr_schedule": "step", "options": {"schedule": {"evry": 3}}},
            "unknown option of schedule 'evry'\ndid you mean 'every'.*\n--lr-schedule step has",
        ),
        (
            {"options": {"schedule": {"floor": 0.1}}},
            "unknown option of schedule 'floor'\n.*\n--lr-schedule constant has: warmup",
        ),
        (
            {"lr_schedule": "step", "options": {"schedule": {"factor": 2}}},
            "schedule: factor=2 is not possible",
        ),
    ],
)
def test_mistakes_are_told_before_anything_starts(options, words):
    with pytest.raises(pf.UsageError, match=words):
        make_plan("local", **options)
