"""Steps that an engine records and replays: what a replay cannot follow is found on any device."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
import torch
from engine_toys import METHODS, make_plan
from slowness import KINDS, quick
from torch import nn
from torch.nn.functional import cross_entropy
from width_toys import nets_of

import protofl as pf
from protofl import Client
from protofl.federation.clients.step_trace import Waits
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import (
    EngineContract,
    MethodContract,
    ModelGroupContract,
    checks_of,
    run_checks,
)
from protofl.testing import toy as toyfed
from protofl.testing.equality import RESIDUAL, Run, assert_equal_runs
from protofl_plugins.engines import cuda_graphs
from protofl_plugins.engines.cuda_graphs import CUDAGraphs
from protofl_plugins.engines.eager import Eager

SHARED = {"number": 1.0, "tensor": torch.tensor(1.0), "round": 0}


class Sound:
    """A method whose hooks change values of this module, which its loss does not read."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def before_training(self, client):
        SHARED["number"] = 1.0 / (1 + client.round)
        SHARED["tensor"] = torch.tensor(SHARED["number"])
        SHARED["round"] = client.round
        return {"weight": SHARED["tensor"]}

    @pf.hookimpl
    def local_loss(self, client, batch, output, constants):
        return {
            "ce": self.factor(client, output, constants) * cross_entropy(output.logits, batch.y)
        }

    def factor(self, client, output, given):
        return given["weight"]


class Number(Sound):
    """Reads a Python number that changes."""

    def factor(self, client, output, given):
        return SHARED["number"]


class CpuTensor(Sound):
    """Reads a tensor without dimensions from elsewhere."""

    def factor(self, client, output, given):
        return SHARED["tensor"]


class NewTensor(Sound):
    """Makes a tensor of a number that changes."""

    def factor(self, client, output, given):
        return torch.tensor(SHARED["number"])


class Branch(Sound):
    """Takes another way in a later round."""

    def factor(self, client, output, given):
        return given["weight"].abs() if SHARED["round"] < 2 else given["weight"].relu()


class Generator(Sound):
    """Draws from a generator of its own."""

    def factor(self, client, output, given):
        return torch.rand((), generator=torch.Generator().manual_seed(1))


class Calls(nn.Module):
    """Counts its calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x.mean() / self.calls


class Average(nn.Module):
    """Keeps a moving average that is not a buffer."""

    def __init__(self):
        super().__init__()
        self.average = torch.tensor(1.0)

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.detach().mean()
        return self.average


class ModulesNumber(Sound):
    """Has a module with a number that changes."""

    module = Calls

    @pf.hookimpl
    def setup_client(self, client):
        client.add_module("own", self.module())

    def factor(self, client, output, given):
        return client.module("own")(output.features)


class ModulesTensor(ModulesNumber):
    """Has a module with a tensor that changes."""

    module = Average


BAD = {
    Number: "uses 1.0 in its first call and 0.5 in a later one",
    CpuTensor: r"reads a tensor \[\] whose values change between calls \(1.0, later 0.5\)",
    NewTensor: r"reads a tensor \[\] whose values change between calls \(1.0, later 0.5\)",
    Branch: r"computes aten\.abs\.default in its first call, and aten\.relu\.default in a later",
    Generator: r"draws from a generator of its own \(aten\.rand\.generator",
    ModulesNumber: r"uses \d in its first call and \d in a later one",
    ModulesTensor: "reads a tensor .* whose values change between calls",
}


def own_plan(method, folder, engine="cuda-graphs", members=(RESIDUAL,), **options):
    extra = {("method", "own"): method}
    group = toyfed.group(*members)
    options = {"backend": "local", **options}
    return toyfed.make_plan("own", folder, None, group, extra, engine=engine, **options)


@pytest.mark.parametrize("method", BAD)
def test_the_dry_run_finds_what_a_replay_cannot_follow(method, tmp_path):
    with pytest.raises(pf.UsageError) as caught:
        dry_run(own_plan(method, tmp_path))
    what, near, do = str(caught.value).splitlines()
    assert "local_loss, client " in what and re.search(BAD[method], what), what
    assert "test_replayed_steps.py:" in what
    assert "an engine that replays a step" in near
    assert "before_training" in do and "--engine eager" in do
    dry_run(own_plan(method, tmp_path, "eager"))


@pytest.mark.slow
@pytest.mark.parametrize("method", [Number, CpuTensor, Branch])
def test_a_run_without_the_dry_run_goes_on_by_eager(method, tmp_path):
    wanted, found = (
        Run(own_plan(method, tmp_path, engine), rounds=3) for engine in ("eager", "cuda-graphs")
    )
    assert any("trained by eager: the step " in note for note in found.notes)
    assert_equal_runs(found, wanted, 1e-5)


@pytest.mark.parametrize("name", quick(METHODS, *KINDS))
def test_every_method_can_be_replayed(name, tmp_path):
    members = nets_of(name, [RESIDUAL], [RESIDUAL])
    dry_run(make_plan(name, tmp_path, members, engine="cuda-graphs"))


@pytest.mark.slow
def test_a_value_of_given_reaches_a_recorded_step(tmp_path):
    notes = []
    dry_run(own_plan(Sound, tmp_path), notes.append)
    assert not notes
    wanted, found = (
        Run(own_plan(Sound, tmp_path, engine), rounds=3) for engine in ("eager", "cuda-graphs")
    )
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-5)


class Reads(Sound):
    """Makes a number of the output."""

    def factor(self, client, output, given):
        return float(output.logits.detach().abs().max())


class Picks(Sound):
    """Makes a shape of the output."""

    def factor(self, client, output, given):
        scores = output.logits.flatten()
        return scores[scores > scores.mean()].mean()


@pytest.mark.parametrize("method", [Reads, Picks])
def test_a_step_that_waits_is_trained_by_eager(method, tmp_path):
    """A capture on a GPU fails there too."""
    wanted, found = (
        Run(own_plan(method, tmp_path, engine), rounds=2) for engine in ("eager", "cuda-graphs")
    )
    (note,) = found.notes
    assert "trained by eager: the step makes numbers or shapes of tensors' values" in note
    assert_equal_runs(found, wanted, 0.0)
    dry_run(own_plan(method, tmp_path))


def test_a_trace_names_an_operation_that_waits():
    x = torch.ones(3)
    with pytest.raises(Waits, match=r"aten\.nonzero.*test_replayed_steps\.py"):
        pf.backends.StepTrace(lambda: x.nonzero(), [x])()


KEPT = []


class KeepsInModule(nn.Module):
    """Keeps its output for code outside of the step."""

    def forward(self, x):
        self.last = x.detach().mean() * 2
        return self.last


class KeepsTensor(ModulesNumber):
    """Has a module that keeps what it computes."""

    module = KeepsInModule


class KeepsInList(Sound):
    """Keeps a tensor of the step in a list."""

    def factor(self, client, output, given):
        KEPT[:] = [output.logits.detach() * 2]
        return given["weight"]


@pytest.mark.parametrize("method", quick([KeepsTensor, KeepsInList], KeepsInList))
def test_a_step_that_keeps_a_tensor_is_trained_by_eager(method, tmp_path):
    """A graph writes into the memory of its capture, and another graph's tensor is not changed."""
    wanted, found = (
        Run(own_plan(method, tmp_path, engine), rounds=2) for engine in ("eager", "cuda-graphs")
    )
    (note,) = found.notes
    assert "trained by eager: the step keeps a tensor that it has computed (aten." in note
    assert_equal_runs(found, wanted, 0.0)
    dry_run(own_plan(method, tmp_path))


def test_what_a_step_reads_outside_of_its_memory_is_kept():
    x, constant, cache = torch.ones(3), torch.arange(3.0), {}

    def step():
        if "table" not in cache:
            cache["table"] = constant + 1
        return (x * cache["table"]).sum()

    found = pf.backends.StepTrace.read_outside(step, [x])
    assert found[0] is constant
    (table,) = found[1:]
    assert table._cdata == cache["table"].untyped_storage()._cdata


def test_constants_are_allowed_and_kept():
    x, constant = torch.ones(3), torch.arange(3.0)
    trace = pf.backends.StepTrace(lambda: (x * constant).sum(), [x])
    trace()
    x.add_(1)
    trace()
    assert trace.constants[0] is constant
    constant.add_(1)
    with pytest.raises(pf.backends.NotReplayable, match=r"reads a tensor \[3\] whose values"):
        trace()


# --- the same for the plugins of others -----------------------------------------------------------


def failures(contract, plugin, check):
    others = dict.fromkeys({*checks_of(contract)} - {f"test_{check}"})
    (found,) = run_checks(type("Chosen", (contract,), {"plugin": plugin, **others}))
    return found.outcome, found.why


@pytest.mark.parametrize("method", BAD)
def test_protofl_check_finds_a_bad_method(method):
    outcome, why = failures(MethodContract, method, "recorded_steps_can_be_replayed")
    assert outcome == "failed" and re.search(BAD[method], why)


def test_protofl_check_passes_a_sound_method():
    assert failures(MethodContract, Sound, "recorded_steps_can_be_replayed") == ("passed", "")


class Counted(nn.Module):
    """An extractor whose scale depends on the number of calls."""

    def __init__(self, sample, K):
        super().__init__()
        self.calls, self.flat, self.linear = Calls(), nn.Flatten(), nn.LazyLinear(K)
        self.linear(torch.zeros(1, sample.shape[0] * sample.shape[1] * sample.shape[2]))

    def forward(self, x):
        z = self.linear(self.flat(x))
        return z + self.calls(z)


def test_protofl_check_finds_a_bad_architecture():
    group = toyfed.group(toyfed.architecture("counted", Counted))
    outcome, why = failures(ModelGroupContract, group, "recorded_steps_can_be_replayed")
    assert outcome == "failed" and "counted: the step uses" in why
    group = toyfed.group(RESIDUAL)
    assert failures(ModelGroupContract, group, "recorded_steps_can_be_replayed") == ("passed", "")


class Careless(Eager):
    """An engine that says that it replays, and does not check what it records."""

    replays = True


@pytest.mark.parametrize(
    ("engine", "outcome"), [(CUDAGraphs, "passed"), (Careless, "failed"), (Eager, "skipped")]
)
def test_protofl_check_finds_an_engine_that_does_not_check(engine, outcome):
    check = "it_finds_a_step_that_cannot_be_replayed"
    assert failures(EngineContract, engine, check)[0] == outcome


# --- fixed memory ---------------------------------------------------------------------------------


def test_all_tensors_of_given_lie_on_the_device(tmp_path):
    """A tensor without dimensions works from the CPU, and a graph keeps its first value."""
    found = toyfed.Toy(own_plan(Sound, tmp_path))
    record = found.client(0)
    record.device, record.steps = torch.device("meta"), 2
    given = {"own": {"weight": torch.tensor(2.0), "draws": [pf.per_step(torch.ones(2, 3))], "n": 1}}
    loss = found.plan.composition.loss(Client(record, "own"), given, pf.Phase())
    (tree,) = loss.constants(0).values()
    assert tree["weight"].is_meta and tree["draws"][0].is_meta and tree["n"] == 1
    assert tree["draws"][0].shape == (3,)


class Scaled(nn.Module):
    """Has a plain number and a plain tensor."""

    def __init__(self, number):
        super().__init__()
        self.number, self.tensor = number, torch.tensor(number)

    def forward(self, x):
        return x.mean() * self.number + self.tensor


class OwnScale(Sound):
    """Gives each client a module with values of its own that are not buffers."""

    @pf.hookimpl
    def setup_client(self, client):
        client.add_module("own", Scaled(1.0 + client.id))

    def factor(self, client, output, given):
        return client.module("own")(output.features)


@pytest.mark.parametrize("engine", ["cuda-graphs", "vmapped"])
def test_plain_values_of_modules_are_the_clients_own(engine, tmp_path):
    wanted, found = (Run(own_plan(OwnScale, tmp_path, e), rounds=2) for e in ("eager", engine))
    assert_equal_runs(found, wanted, 1e-5)


class Keeps(Sound):
    """Keeps the features of all batches, and adds them up at the end."""

    @pf.hookimpl
    def after_batch(self, client, batch, output):
        client.scratch.setdefault("features", []).append(output.features)

    @pf.hookimpl
    def after_training(self, client):
        client.state["sum"] = torch.stack([f.sum() for f in client.scratch["features"]])


class SameMemory(cuda_graphs._Program):
    """A program whose output lies in the same memory after each run, as that of a graph."""

    def run(self, inputs, chain=None):
        super().run(inputs, chain)
        if hasattr(self, "first"):
            self.first.features.copy_(self.output.features)
            self.first.logits.copy_(self.output.logits)
        else:
            self.first = self.output
        self.output = self.first


@pytest.mark.slow
def test_what_after_batch_keeps_is_not_overwritten(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_graphs, "_Program", SameMemory)
    plans = [own_plan(Keeps, tmp_path, e, local_epochs=3) for e in ("eager", "cuda-graphs")]
    wanted, found = (Run(plan, rounds=1) for plan in plans)
    assert not found.notes
    for client in range(4):
        one, two = (run.host.client(client).state["own"]["sum"] for run in (wanted, found))
        torch.testing.assert_close(one, two)


# --- graphs ---------------------------------------------------------------------------------------


class ByRound(Sound):
    """A loss whose `given` holds another Python number in each round: another program each."""

    @pf.hookimpl
    def before_training(self, client):
        return {"weight": 1.0 / (1 + client.round)}


@pytest.mark.slow
def test_no_graph_is_dropped_while_its_stage_lives(monkeypatch, tmp_path):
    """Dropping one graph frees the workspace of others on its stream (pytorch issue 193402)."""
    monkeypatch.setattr(cuda_graphs, "PROGRAMS", 3)
    made, dropped = [], []
    original = cuda_graphs._Program.__init__

    def counted(self, stage, *given):
        original(self, stage, *given)
        made.append(weakref.ref(stage))
        weakref.finalize(self, dropped.append, len(made) - 1)

    monkeypatch.setattr(cuda_graphs._Program, "__init__", counted)
    plan = own_plan(ByRound, tmp_path)
    run, most = Run(plan, rounds=0), 0

    def kept():
        gc.collect()
        return {id(s): len(s._programs) for s in plan.choices["engine"].instance._stages.values()}

    for number in range(12):
        run.federation.round(number)
        stages = kept()
        alive = [n for n, stage in enumerate(made) if stage() is not None and id(stage()) in stages]
        assert not {*alive} & {*dropped}, f"round {number}: a program of a stage is dropped"
        assert len(made) - len(dropped) == sum(stages.values())
        most = max(most, *stages.values())
    assert dropped, "twelve rounds have more programs than a stage keeps"
    assert most <= 3 + 2  # one round brings two: a whole batch, and the last one


@pytest.mark.slow
def test_stages_that_differ_in_modules_numbers_are_bounded(monkeypatch, tmp_path):
    class Ages(OwnScale):
        """A module's number changes each round, outside of the step."""

        @pf.hookimpl
        def receive(self, client):
            client.module("own").number = 1.0 / (1 + client.round)

    monkeypatch.setattr(cuda_graphs, "PROGRAMS", 3)
    plan = own_plan(Ages, tmp_path)
    run = Run(plan, rounds=8)
    assert 0 < len(plan.choices["engine"].instance._stages) <= 2 * 3
    assert_equal_runs(run, Run(own_plan(Ages, tmp_path, "eager"), rounds=8), 1e-4)
