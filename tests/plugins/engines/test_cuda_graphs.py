"""CUDA graphs on the simulated GPU: captures, streams, order of launches, copies, random draws."""

from __future__ import annotations

import gc
from collections import Counter, deque

import pytest
import simulated_gpu
import torch
from engine_toys import METHODS, make_plan
from slowness import quick
from width_toys import nets_of

import protofl as pf
from protofl.testing import toy as toyfed
from protofl.testing.equality import (
    DROPOUT,
    RAGGED,
    RESIDUAL,
    Run,
    assert_equal_runs,
    double_precision,
)
from protofl_plugins.engines import cuda_graphs


def run(
    method, folder, members, engine="cuda-graphs", rounds=2, start=0, engine_options=None, **options
):
    parts = {"parts": {"engine": engine_options}} if engine_options else {}
    options = {"device": "simgpu", "lr": 0.005, **options, **parts}
    return Run(make_plan(method, folder, members, engine=engine, **options), rounds, start)


ABLE = [method for method in METHODS if method not in ("fedl2g", "fedtsp")]
"""The simulated device can't carry out FedL2G's forward differentiation and FedTSP's set-up."""

LONGER = {"centralised": {"epochs": 20}}
"""Options of methods whose clients train nothing: the server takes enough steps to record them."""

STILL = ("afl", "fedcgs", "fedpft", "gh-ofl")
"""Methods that record nothing: clients train nothing, and servers only a head by AdamW."""

SERVER_ADAM = ("fedgen", "fedktl", "fedpkd", "feddf", "fedet", "ds-fl")
"""Methods whose servers train with Adam."""


@pytest.mark.parametrize(
    ("method", "streams"),
    quick([(method, streams) for method in ABLE for streams in (1, 2, 8)], ("fedproto", 2)),
)
def test_every_method_equals_eager(method, streams, gpu, monkeypatch, tmp_path):
    """With eight streams also the captures of the first use, and chains."""
    monkeypatch.setattr(cuda_graphs, "CHAIN", 2)
    members = nets_of(method, [toyfed.CNN, RESIDUAL], [RESIDUAL])
    engine = {"streams": streams, "capture": "always" if streams == 8 else "auto"}
    own = {"set": LONGER.get(method, {})}
    with double_precision():
        wanted = run(method, tmp_path, members, "eager", 2, 1, **own)
        found, again = (
            run(method, tmp_path, members, "cuda-graphs", 2, 1, engine, **own) for _ in range(2)
        )
        assert not found.notes
        assert not gpu.freed_early
        assert gpu.graphs or method in STILL
        # The server's steps are recorded, too, and a recorded Adam rounds in another order.
        assert_equal_runs(found, wanted, 1e-5 if method in SERVER_ADAM else 1e-9)
        assert toyfed.same(found.tensors(), again.tensors())


OPTIONS = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.5},
    "adam": {"optimizer": "adam", "lr": 0.003, "weight_decay": 0.1, "local_epochs": 1.5},
    "a rate that falls": {"lr_schedule": "exponential", "momentum": 0.5},
    "augmented": {"augment": True},
    "without the last batch": {"drop_last": True, "local_epochs": 2, "shuffle": False},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(OPTIONS, "adam"))
def test_options_equal_eager(kind, gpu, tmp_path):
    with double_precision():
        wanted, found = (
            run("fedproto", tmp_path, [RESIDUAL], engine, 2, **OPTIONS[kind])
            for engine in ("eager", "cuda-graphs")
        )
        assert not found.notes and not gpu.freed_early
        assert_equal_runs(found, wanted, 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("chain", [2, 8])
def test_an_order_that_is_longer_than_the_table(chain, gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_graphs, "AHEAD", 12)
    monkeypatch.setattr(cuda_graphs, "CHAIN", chain)
    monkeypatch.setattr(cuda_graphs, "CHAIN_PAYS", 1)
    with double_precision():
        wanted, found = (
            run("fedproto", tmp_path, [RESIDUAL], engine, 1, local_epochs=3)
            for engine in ("eager", "cuda-graphs")
        )
        assert not found.notes
        assert_equal_runs(found, wanted, 1e-9)


# --- launches -------------------------------------------------------------------------------------

STEPS = [6, 6, 6, 4, 4, 2]
"""Batches of the six clients in `TWO_EPOCHS`, by falling number."""

TWO_EPOCHS = {"drop_last": True, "local_epochs": 2}


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(["fedavg", "fedproto"], "fedproto"))
def test_steps_are_launched_in_turn_and_with_one_launch_each(method, gpu, tmp_path):
    """`fedproto` has a hook ``after_batch``, which is not called by default."""
    options = TWO_EPOCHS | {"engine_options": {"capture": "always"}}
    found = run(method, tmp_path, [RESIDUAL], **options)
    with gpu.watched() as launches:
        found.federation.round(2)
    graphs = [stream for stream, what in launches if what == "graph"]
    order = graphs[:6]
    turns = [
        stream for turn in range(6) for stream, n in zip(order, STEPS, strict=True) if n > turn
    ]
    assert len({*order}) == 6 and graphs == turns
    numbers = [n for n, (_, what) in enumerate(launches) if what == "graph"]
    between = [what for _, what in launches[numbers[5] : numbers[-1] + 1]]
    assert between == ["graph"] * (len(turns) - 5)


def chains(found):
    """Return the chains of a run, one for each captured step; None where it has none."""
    stages = found.plan.choices["engine"].instance._stages.values()
    return [program.chain for stage in stages for program in stage._programs.values()]


@pytest.mark.slow
def test_a_chain_of_steps_is_one_launch(gpu, monkeypatch, tmp_path):
    """Steps of a client with fewer than a chain, and what is left of others, are launched alone."""
    monkeypatch.setattr(cuda_graphs, "CHAIN", 3)
    options = TWO_EPOCHS | {"engine_options": {"capture": "always"}}
    found = run("fedproto", tmp_path, [RESIDUAL], **options)
    with gpu.watched() as launches:
        found.federation.round(2)
    graphs = [stream for stream, what in launches if what == "graph"]
    order, launched = graphs[:6], [steps // 3 + steps % 3 for steps in STEPS]
    assert len({*order}) == 6 and launched == [2] * 6
    assert graphs == order * 2  # 12, and 28 without chains


CHAINED = {
    "dropout": ("fedproto", DROPOUT, {}),
    "adam, a rate that falls": ("fedavg", RESIDUAL, OPTIONS["adam"] | OPTIONS["a rate that falls"]),
}
ALONE = {
    "constants of each step": ("fedgen", RESIDUAL, {}),
    "after_batch": ("feddistill", RESIDUAL, {}),
    "after_batch by an option": ("fedproto", RESIDUAL, {"set": {"collect": "online"}}),
    "drawn batches": ("fedavg", RESIDUAL, {"augment": True}),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHAINED | ALONE)
def test_chains_change_no_bit(kind, gpu, monkeypatch, tmp_path):
    method, net, options = (CHAINED | ALONE)[kind]
    runs = []
    for length in (1000, 2):
        monkeypatch.setattr(cuda_graphs, "CHAIN", length)
        engine = {"engine_options": {"capture": "always"}}
        runs.append(run(method, tmp_path, [net], **{"local_epochs": 2, **options, **engine}))
        assert not runs[-1].notes and not gpu.freed_early
    alone, chained = runs
    assert toyfed.same(alone.tensors(), chained.tensors())
    assert [line["train_loss"] for line in alone.lines] == [
        line["train_loss"] for line in chained.lines
    ]
    assert not any(chains(alone)) and any(chains(chained)) == (kind in CHAINED)


@pytest.mark.slow
def test_a_graph_is_captured_on_the_stream_that_replays_it(gpu, tmp_path):
    """A cuBLAS workspace belongs to a stream: graphs of two stages must not share one."""
    found = run("local", tmp_path, [toyfed.CNN, RESIDUAL], engine_options={"capture": "always"})
    assert not found.notes
    assert all(graph.replayed_on == {graph.stream} for graph in gpu.graphs)
    stages = found.plan.choices["engine"].instance._stages
    assert len({stage._stream for stage in stages.values()}) == len(stages) == 6


@pytest.mark.slow
def test_orders_are_copied_once_for_a_client_and_phase(gpu, tmp_path):
    orders = []
    for epochs in (1, 3):
        found = run("local", tmp_path, [RESIDUAL], local_epochs=epochs)
        gpu.copies.clear()
        found.federation.round(2)
        orders.append(Counter(gpu.copies))
    # 8 bytes a sample and epoch; everything else does not depend on the number of epochs
    sizes = [8 * sum(classes) for classes in RAGGED]
    assert orders[1] - orders[0] == Counter(("to device", 3 * size) for size in sizes)
    assert orders[0] - orders[1] == Counter(("to device", size) for size in sizes)


# --- captures -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_warm_up_run_is_enough_after_the_first_capture(gpu, monkeypatch, tmp_path):
    runs, plain = Counter(), cuda_graphs._Program.step
    monkeypatch.setattr(
        cuda_graphs._Program, "step", lambda self: (runs.update([id(self)]), plain(self))
    )
    found = run("local", tmp_path, [toyfed.CNN, RESIDUAL], engine_options={"capture": "always"})
    assert not found.notes
    first, *others = runs.values()
    compared = 2
    assert first == cuda_graphs.WARM_UP + 1 + compared
    assert others and {*others} == {2 + compared}
    assert len(gpu.graphs) == len(runs)


@pytest.mark.slow
def test_a_step_is_captured_once_it_pays(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_graphs, "PAYS", 4)
    found, captured = run("fedavg", tmp_path, [RESIDUAL], rounds=0, **TWO_EPOCHS), []
    for number in range(3):
        found.federation.round(number)
        captured.append(len(gpu.graphs))
    # Of a round, five of the six clients use their step at least four times, one twice: see STEPS.
    assert captured == [5, 6, 6]


@pytest.mark.slow
def test_a_chain_is_captured_once_it_pays(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_graphs, "CHAIN", 2)
    monkeypatch.setattr(cuda_graphs, "CHAIN_PAYS", 8)
    found, captured = run("fedavg", tmp_path, [RESIDUAL], rounds=0, **TWO_EPOCHS), []
    for number in range(4):
        found.federation.round(number)
        captured.append(sum(chain is not None for chain in chains(found)))
    # In two rounds all clients but one take their step eight times: see STEPS.
    assert captured == [0, 5, 5, 6]


@pytest.mark.slow
def test_programs_without_a_graph_are_bounded(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_graphs, "PROGRAMS", 2)
    monkeypatch.setattr(cuda_graphs, "PAYS", 10)
    found = run("fedavg", tmp_path, [RESIDUAL], rounds=3, engine_options={"streams": 1})
    stages = found.plan.choices["engine"].instance._stages.values()
    programs = [program for stage in stages for program in stage._programs.values()]
    assert len(gpu.graphs) == sum(program.recorded for program in programs) == 1
    assert max(len(stage._programs) for stage in stages) <= 1 + 2 + 1


# --- comparison -----------------------------------------------------------------------------------


def without(name):
    """Return a graph that leaves out all operations of a name."""

    class Wrong(simulated_gpu.Graph):
        def replay(self):
            self.steps = [step for step in self.steps if name not in str(step[0])]
            super().replay()

    return Wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "words"),
    [("aten.addmm", "loss term ce is"), ("aten.convolution_backward", "the update of")],
    ids=["forward", "update"],
)
def test_a_wrong_graph_never_serves(missing, words, gpu, monkeypatch, tmp_path):
    wanted = run("fedavg", tmp_path, [toyfed.CNN], "eager")
    monkeypatch.setattr(simulated_gpu.Module, "CUDAGraph", without(missing))
    found = run("fedavg", tmp_path, [toyfed.CNN], engine_options={"capture": "always"})
    (note,) = {*found.notes}
    assert "is trained by eager: its graph does not compute the step: " in note and words in note
    assert_equal_runs(found, wanted, 0.0)


class Short(simulated_gpu.Graph):
    """A graph that does only the first step of a chain."""

    def replay(self):
        batches = [n for n, (what, *_) in enumerate(self.steps) if "index_select" in str(what)]
        self.steps = self.steps[: batches[1]] if len(batches) > 1 else self.steps
        super().replay()


@pytest.mark.slow
def test_a_wrong_chain_never_serves(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(cuda_graphs, "CHAIN", 2)
    wanted = run("fedavg", tmp_path, [toyfed.CNN], "eager")
    monkeypatch.setattr(simulated_gpu.Module, "CUDAGraph", Short)
    found = run("fedavg", tmp_path, [toyfed.CNN], engine_options={"capture": "always"})
    (note,) = {*found.notes}
    assert "is trained by eager: its graph does not compute the step: " in note
    assert_equal_runs(found, wanted, 0.0)


@pytest.mark.slow
def test_fewer_clients_train_at_once_where_memory_is_short(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "graphs", deque(maxlen=0))  # it would keep their memory
    wanted = run("fedavg", tmp_path, [RESIDUAL], "eager")
    gc.collect()
    before = gpu.peak = gpu.live
    run("fedavg", tmp_path, [RESIDUAL], engine_options={"streams": 3})
    enough = gpu.peak - before
    gc.collect()
    gpu.total = gpu.live + enough
    found = run("fedavg", tmp_path, [RESIDUAL], engine_options={"streams": 6})
    assert "clients at once, for lack of memory" in found.notes[0]
    assert not any("eager" in note for note in found.notes), found.notes
    assert_equal_runs(found, wanted, 1e-5)


# --- random draws ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("capture", quick(["always", "auto"], "always"))
def test_each_client_draws_from_its_own_seed(capture, gpu, tmp_path):
    """Dropout in graphs, and in steps without one, of clients that are at work at once."""
    with double_precision():
        wanted = run("fedproto", tmp_path, [DROPOUT], "eager")
        one, eight, again = (
            run("fedproto", tmp_path, [DROPOUT], engine_options={"streams": n, "capture": capture})
            for n in (1, 8, 8)
        )
        assert not eight.notes and gpu.graphs
        for found in (one, eight):
            assert_equal_runs(found, wanted, 1e-9)
        assert toyfed.same(eight.tensors(), again.tensors())


# --- what a method keeps --------------------------------------------------------------------------


class KeepsObjects:
    """Keeps the batches and outputs of all steps, and draws a number in each."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": torch.nn.functional.cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def after_batch(self, client, batch, output):
        client.scratch.setdefault("seen", []).append((batch, output, torch.rand(())))

    @pf.hookimpl
    def after_training(self, client):
        parts = [
            [batch.x.sum(), batch.y.sum(), batch.index.sum(), output.features.sum(), drawn]
            for batch, output, drawn in client.scratch["seen"]
        ]
        client.state["seen"] = torch.stack(
            [torch.stack([p.double().cpu() for p in r]) for r in parts]
        )


@pytest.mark.slow
def test_what_after_batch_keeps_is_not_overwritten(gpu, tmp_path):
    plans = [
        toyfed.make_plan(
            "own",
            tmp_path,
            None,
            toyfed.group(RESIDUAL),
            {("method", "own"): KeepsObjects},
            engine=engine,
            device="simgpu",
            backend="local",
            local_epochs=2,
        )
        for engine in ("eager", "cuda-graphs")
    ]
    wanted, found = (Run(plan, rounds=1) for plan in plans)
    assert not found.notes and gpu.graphs
    for client in range(4):
        one, two = (run.host.client(client).state["own"]["seen"] for run in (wanted, found))
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
