"""Tests of ``--engine auto``: engines are measured and compared before a run on a GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from runtime_toys import GIVEN, PARTS, make_plan, train
from slowness import quick

import protofl as pf
from protofl.backends import Host, Plan
from protofl.federation.round.federation import Federation
from protofl.runs.lifecycle import engine_choice, engine_trial
from protofl.runs.lifecycle.engine_choice import (
    Measured,
    choose_engine,
    shortest,
    would_measure,
)
from protofl.runs.lifecycle.engine_trial import (
    EngineTrial,
    Spread,
    TrialRound,
    difference,
    differently_rounded,
    for_trial,
    preparations,
    spread,
    tolerance,
    trial_clients,
    trial_rounds,
    try_engine,
)
from protofl_plugins.engines.cuda_graphs import CUDAGraphs
from protofl_plugins.engines.eager import Eager

# --- the choice, of measured seconds --------------------------------------------------------------

EAGER = Measured("eager", per_batch=0.010)
GRAPHS = Measured("cuda-graphs", {"streams": 8}, preparation=20.0, per_batch=0.001)


@pytest.mark.parametrize(
    ("others", "batches", "engine", "words"),
    [
        ([GRAPHS], 100_000, "cuda-graphs (streams 8)", "about 8.3 times as fast as eager (120 s"),
        ([GRAPHS], 1_000, "eager", "would train for about 21 s, 20 s of it preparation, and eager"),
        ([replace(GRAPHS, preparation=0.0)], 10, "cuda-graphs (streams 8)", "10.0 times as fast"),
        ([replace(GRAPHS, refusal="fails: no graph")], 100_000, "eager", "fails: no graph"),
        ([replace(GRAPHS, preparation=0, per_batch=0.0099)], 1_000, "eager", "and eager for 10 s"),
        ([], 1_000, "eager", "no other engine was measured"),
    ],
)
def test_the_shortest_predicted_run_wins(others, batches, engine, words):
    chosen, line = shortest([EAGER, *others], batches)
    assert str(chosen) == engine and line.startswith(f"engine {engine}: ") and words in line


def test_variants_compete_with_each_other():
    one, eight = (Measured("g", {"streams": n}, 1.0, s) for n, s in ((1, 0.004), (8, 0.002)))
    assert shortest([EAGER, one, eight], 1e5)[0] is eight
    assert shortest([EAGER, one, replace(eight, preparation=500.0)], 1e5)[0] is one
    chosen, line = shortest([EAGER, one, replace(eight, refusal="fails: out of memory")], 1e5)
    assert chosen is one and line.endswith("; g (streams 8): fails: out of memory")


def test_a_line_has_what_eager_did_for_the_engine():
    note = "engine g: resnet is trained by eager: no graph"
    line = shortest([EAGER, Measured("g", per_batch=0.010, notes=[note])], 1000)[1]
    assert line.startswith("engine eager: ") and line.endswith(note)


def test_preparation_is_what_the_first_rounds_took_longer():
    rounds = [
        TrialRound(n, s, {0: 5 * n, 1: 5 * n}, {}) for n, s in enumerate((9.0, 3.0, 1.0, 1.5))
    ]
    trial = EngineTrial(rounds)
    assert (trial.steady, trial.preparation, trial.batches) == (1.0, 10.5, 10)


# --- equality -------------------------------------------------------------------------------------

STEPS = 68
"""Mini-batches of a client in the cases of the table: two rounds of 34."""

ON_A_CARD = [
    # method, loss of eager, losses that are right, losses that are wrong (H200, cnn4, digits)
    ("local", 0.3861, [0.3862], [0.588]),
    ("fedavg", 0.4871, [0.4871], [0.576, 0.817]),
    ("fedsa", 1.419, [1.419], [1.0e35]),
    ("fedorgp", 47.48, [47.54, 47.55], [torch.nan]),
    ("heterofl", 0.4232, [0.4232], [0.622]),
    ("fedgh", 0.4647, [0.4648], [0.744]),
    ("fedproto", 0.7077, [0.7077], [0.713]),
    ("alignfed", 6.43, [6.43], [18.4, 18.2]),
    ("fedtsp", 2.54, [2.54], [torch.nan, 1.92, 1.96]),
]


def trial_of(loss, update=1.0, steps=STEPS):
    rounds = [TrialRound(0, 1.0, {0: steps}, {0: {"ce": loss}})]
    return EngineTrial(rounds, {0: {"head.bias": torch.full((4,), update)}})


@pytest.mark.parametrize(("method", "loss", "right", "wrong"), ON_A_CARD)
def test_the_tolerance_tells_right_from_wrong_on_a_card(method, loss, right, wrong):
    def differs(other):
        return difference(trial_of(loss), trial_of(other), "tf32", {0: "cnn4"}, method)

    assert not any(map(differs, right))
    for line in map(differs, wrong):
        assert f"loss term ce of {method} is" in line and "(cnn4, round 1)" in line


def test_the_tolerance_follows_steps_and_precision():
    assert tolerance(1, "float32") == pytest.approx(2**0.5 * 2**-14)
    assert tolerance(4, "tf32") == pytest.approx(8**0.5 * 2**-11)
    assert tolerance(4, "bfloat16") == 8 * tolerance(4, "tf32")
    assert tolerance(400, "tf32") == pytest.approx(10 * tolerance(4, "tf32"))


def test_updates_and_terms_of_donors_are_named():
    names = {0: "cnn4"}
    line = difference(trial_of(1.0), trial_of(1.0, 1.1), "tf32", names, "fedproto")
    assert line == "the update of head.bias of fedproto differs by 10.0% (cnn4, round 1)"
    assert not difference(trial_of(1.0), trial_of(1.0, 1.0001), "tf32", names, "fedproto")
    assert difference(trial_of(1.0), trial_of(1.0, torch.nan), "tf32", names, "fedproto")
    one, two = (
        EngineTrial([TrialRound(3, 1.0, {0: 9}, {0: {"ce": 2.0, "fedtgp.align": value}})])
        for value in (0.5, 0.9)
    )
    line = difference(one, two, "tf32", {0: "resnet18"}, "fedproto")
    assert line == "loss term align of fedtgp is 0.9 and not 0.5 (resnet18, round 4)"


def test_a_small_term_has_an_error_of_the_size_of_the_large_ones():
    one, two = (
        EngineTrial([TrialRound(0, 1.0, {0: 20}, {0: {"ce": 2.0, "small": value}})])
        for value in (1e-6, 2e-6)
    )
    assert not difference(one, two, "tf32", {0: "cnn4"}, "fedproto")


def test_a_run_that_diverges_with_every_engine_is_no_difference():
    nan = trial_of(torch.nan, torch.nan)
    assert not difference(nan, nan, "tf32", {0: "cnn4"}, "fedproto")


def test_what_rounding_does_to_a_net_is_measured():
    """In a fresh ResNet rounding alone changes a loss by more than the tolerance of a tame net."""
    eager, again = trial_of(1.0, 1.0), trial_of(1.02, 0.9)
    measured = spread(eager, again)
    assert measured.losses[0] == pytest.approx(0.02)
    assert measured.updates[0]["head.bias"] == pytest.approx(0.1)

    def differs(other, **options):
        return difference(eager, other, "tf32", {0: "resnet50"}, "fedproto", **options)

    assert differs(again) and not differs(again, measured=measured)
    assert not differs(trial_of(0.9, 0.5), measured=measured)
    assert "loss term ce" in differs(trial_of(1.2), measured=measured)
    assert "the update of head.bias" in differs(trial_of(1.0, 2.0), measured=measured)
    assert differs(trial_of(torch.nan), measured=measured)
    endless = spread(eager, trial_of(torch.inf, torch.nan))
    assert not endless.losses[0] and not endless.updates[0]["head.bias"]
    each = Spread(updates={0: {"a": 0.001, "b": 0.01, "c": 0.2}})
    margin = engine_trial.MARGIN
    assert [each.update(0, name) / margin for name in "abc"] == pytest.approx([0.01, 0.01, 0.2])
    assert not each.update(1, "a") and not each.loss(0)


# --- what is tried --------------------------------------------------------------------------------


def test_the_trial_has_a_client_of_each_architecture():
    plan = make_plan("local", architectures="dense8,dense8,dense8,dense5")
    assert trial_clients(plan) == [0, 3, 1, 2]
    assert trial_clients(make_plan("local", participation=0.5)) == [0, 1]
    assert trial_clients(make_plan("local", models="toy1", clients=1)) == [0]


def test_the_trial_has_the_values_of_first_and_last_rounds():
    assert trial_rounds(100) == [0, 1, 50, 99]
    assert trial_rounds(1) == [0, 1, 2, 3]


def test_the_trial_has_the_batches_of_the_run():
    plan = make_plan("local", batch_size=4, clients=2, partition="dirichlet")
    sizes = plan.split(0).train_sizes.tolist()
    short = for_trial(plan, [1])
    rows, of_run = short.split(0).train(1), plan.split(0).train(1)
    assert len(rows) == 16 + sizes[1] % 4 < sizes[1] and torch.equal(rows, of_run[: len(rows)])
    assert short.info is plan.info  # a loss may read the number of clients, and a graph keep it


class Grouped(Eager):
    """An engine that trains clients together; a class attribute has the groups."""

    seen: list = []

    @pf.hookimpl
    def train_group(self, jobs):
        self.seen.append([job.client_state.id for job in jobs])
        return [self._train(job) for job in jobs]

    def _train(self, job):
        with job.stream():
            return self.train(job)

    @pf.hookimpl
    def choose_groups(self, architectures):
        return [[*range(len(architectures))]]


def test_clients_of_the_trial_train_at_the_same_time(monkeypatch):
    monkeypatch.setattr(Grouped, "seen", [])
    plan = Plan.make({**GIVEN, "method": "fedproto", "clients": 5, "engine": "grouped"},
                     PARTS | {("engine", "grouped"): Grouped})  # fmt: skip
    trial = try_engine(plan, [0, 1, 2])
    assert len(Grouped.seen) == 4 and all(sorted(group) == [0, 1, 2] for group in Grouped.seen)
    assert [each.number for each in trial.rounds] == [0, 1, 2, 3]
    assert {*trial.rounds[0].sums} == {*trial.updates} == {0, 1, 2}
    assert trial.rounds[3].steps[0] == 4 * trial.rounds[0].steps[0] > 0
    assert trial.rounds[1].sums[0].keys() == {"ce", "align"}


def test_learning_rates_of_a_trial_are_small():
    """So that rounding does not grow from step to step."""
    plan = make_plan("fedproto", lr=0.1)
    trial = try_engine(plan, [0, 1])
    (update, _), (of_run, _) = (
        (max(float(each.abs().max()) for each in found.values()), found)
        for found in (trial.updates[0], whole_updates(plan))
    )
    assert 0 < update < of_run / 1000
    assert plan.rate(0) == 1 and for_trial(plan, [0]).rate(0) == engine_trial.RATE


def whole_updates(plan):
    """Return what four rounds change in client 0."""
    host = Host(plan)
    federation = Federation(plan, host)
    federation.start_trial(0)
    start = {name: t.clone() for name, t in host.client(0).model.state_dict().items()}
    for number in range(4):
        federation.round(number)
    return {name: t - start[name] for name, t in host.client(0).model.state_dict().items()}


def test_the_second_trial_of_eager_differs_by_rounding_alone():
    plan = make_plan("fedproto", models="toy1", clients=2)
    one, two, again = (try_engine(each, [0, 1]) for each in (plan, differently_rounded(plan), plan))
    assert not any(spread(one, again).losses.values())
    found = spread(one, two)
    assert all(0 < each < 1e-4 for each in found.losses.values())
    assert any(found.updates[0].values())


class OtherSums(Eager):
    """Sums in another order, as another algorithm on a GPU has them."""

    @pf.hookimpl
    def train(self, job):
        torch.backends.mkldnn.enabled = False
        try:
            return super().train(job)
        finally:
            torch.backends.mkldnn.enabled = True


class WithoutOne(OtherSums):
    """It does not update one tensor."""

    @pf.hookimpl
    def train(self, job):
        weight = job.model.head.weight
        before = weight.detach().clone()
        found = super().train(job)
        with torch.no_grad():
            weight.copy_(before)
        return found


@pytest.mark.slow
def test_a_resnet_is_equal_whatever_the_order_of_sums(tmp_path):
    """Batches of ten and BatchNorm: at the run's own rate the losses differ by per cents."""
    x = np.random.default_rng(0).standard_normal((80, 3, 32, 32)).astype(np.float32)
    np.savez(tmp_path / "images.npz", x_train=x, y_train=np.arange(80) % 10)
    given = GIVEN | {"method": "fedproto", "models": "torchvision:resnet50", "clients": 2}
    given |= {"batch_size": 10, "lr": 0.01, "dataset": f"npz:{tmp_path / 'images.npz'}"}

    def tried(engine, change=lambda plan: plan):
        options = given | ({"engine": "other"} if engine else {})
        parts = PARTS | ({("engine", "other"): engine} if engine else {})
        return try_engine(change(Plan.make(options, parts)), [0, 1])

    eager, again = tried(None), tried(None, differently_rounded)
    measured = spread(eager, again)

    def differs(engine):
        names = dict.fromkeys((0, 1), "resnet50")
        return difference(eager, tried(engine), "float32", names, "fedproto", measured=measured)

    assert not differs(OtherSums)
    assert "the update of head.weight of fedproto differs by" in differs(WithoutOne)


def test_hosts_in_other_processes_are_tried_one_client_at_a_time(monkeypatch):
    monkeypatch.setattr(Grouped, "seen", [])
    plan = Plan.make({**GIVEN, "method": "fedproto", "engine": "grouped"},
                     PARTS | {("engine", "grouped"): Grouped})  # fmt: skip
    elsewhere = plan.settings.model_copy(update={"backend": "process"})
    trial = try_engine(replace(plan, settings=elsewhere), [0, 1])
    assert not Grouped.seen and {*trial.updates} == {0, 1}


def test_preparations_are_counted_by_shape_and_group():
    plan = make_plan("local", batch_size=4, partition="iid")
    rest = {int(size) % 4 for size in plan.split(0).train_sizes}
    eager = plan.choices["engine"]
    shapes = 2 * (1 + len(rest - {0}))
    assert preparations(plan, eager, range(4)) == shapes
    grouped = Plan.make({**GIVEN, "method": "local", "batch_size": 4, "engine": "grouped"},
                        PARTS | {("engine", "grouped"): Grouped})  # fmt: skip
    assert preparations(grouped, grouped.choices["engine"], range(4)) == 2 * shapes


# --- pretended engines on a GPU -------------------------------------------------------------------


class Equal(Eager):
    """An engine with the same results as eager."""


class Wrong(Eager):
    """An engine that changes the weights."""

    @pf.hookimpl
    def train(self, job):
        found = super().train(job)
        with torch.no_grad():
            job.model.head.bias.add_(0.1)
        return found


class WrongTerm(Eager):
    """An engine that adds up a loss term wrongly."""

    @pf.hookimpl
    def train(self, job):
        return {label: value * 1.1 for label, value in super().train(job).items()}


class Failing(Eager):
    """An engine that fails."""

    @pf.hookimpl
    def train(self, job):
        raise ValueError("no graph\nand more")


class Varied(Eager):
    """An engine with variants, of which one fails."""

    class Config(pf.Config):
        """Options."""

        streams: int = 2

    made: list = []

    def __init__(self):
        self.seen = []
        self.made.append(self)

    @pf.hookimpl
    def train(self, job, config):
        self.seen.append(config.streams)
        if config.streams > 4:
            raise MemoryError
        return super().train(job)

    @pf.hookimpl
    def variants(self, clients):
        return [{"streams": n} for n in (8, 4, 1)]


SECONDS = {"eager": (0.0, 100.0), "slow-start": (300_000.0, 1.0)}
"""{engine: (seconds of its first round more than others, seconds of a round)}."""


@pytest.fixture
def chosen(gpu, monkeypatch):
    """Return ``chosen(engine, …)``, the choice for a plan on a GPU; seconds are pretended."""
    original = engine_choice.try_engine
    monkeypatch.setattr(engine_trial, "BATCHES", 1)

    def tried(plan, clients):
        found = original(plan, clients)
        first, each = SECONDS.get(plan.settings.engine, (0.0, 10.0))
        config = plan.choices["engine"].config
        each /= getattr(config, "streams", 1)
        rounds = [
            replace(one, seconds=each + first * (n == 0)) for n, one in enumerate(found.rounds)
        ]
        return replace(found, rounds=rounds)

    monkeypatch.setattr(engine_choice, "try_engine", tried)

    def choose(engine, name="fast", change=None, **options):
        given = GIVEN | {"method": "fedproto", "clients": 2, "dry_run": True, "device": "simgpu"}
        given |= options
        plan = Plan.make(given, PARTS | {("engine", name): engine})
        assert (plan.settings.engine == "auto") is (given["device"] == "simgpu")
        update = {"engine": "auto"} | (change or {})
        plan = replace(plan, settings=plan.settings.model_copy(update=update))
        choice = choose_engine(plan, [name])
        assert choice.plan.choices["engine"].name == choice.plan.settings.engine
        return choice

    return choose


@pytest.mark.slow
def test_an_equal_and_faster_engine_is_taken(chosen):
    choice = chosen(Equal)
    assert choice.plan.settings.engine == "fast" and "10.0 times as fast as eager" in choice.line
    first, second = choice.table["measured"]
    assert (first["engine"], second["engine"]) == ("eager", "fast")
    assert second["batch_seconds"] == pytest.approx(first["batch_seconds"] / 10)
    assert choice.table["mini_batches"] == sum(
        -(-int(size) // 6) * 2 for size in choice.plan.split(0).train_sizes
    )
    json.dumps(choice.table)


@pytest.mark.parametrize(
    ("engine", "options", "why"),
    [
        (Wrong, {}, "fast: its results are not eager's: "),
        (WrongTerm, {}, "loss term ce of fedproto is"),
        (Failing, {}, "fast: fails: "),
        (Equal, {"dry_run": False}, "with --no-dry-run nothing is compared"),
    ],
)
def test_another_engine_is_not(chosen, engine, options, why):
    choice = chosen(engine, **options)
    assert choice.plan.settings.engine == "eager"
    assert choice.line.startswith("engine eager: ") and why in choice.line
    assert "\n" not in choice.line


@pytest.mark.slow
def test_an_engine_that_prepares_itself_wins_in_long_runs_only(chosen):
    short = chosen(Equal, "slow-start")
    assert short.plan.settings.engine == "eager"
    assert "of it preparation" in short.line
    long = chosen(Equal, "slow-start", rounds=10_000)
    assert long.plan.settings.engine == "slow-start"
    assert long.table["measured"][1]["preparation_seconds"] >= 300_000


def test_a_short_run_tries_no_other_engine(chosen, monkeypatch):
    monkeypatch.setitem(SECONDS, "eager", (0.0, 0.01))
    choice = chosen(Failing)
    assert choice.line.endswith("; a trial of others would take as long")
    assert choice.plan.settings.engine == "eager" and len(choice.table["measured"]) == 1


@pytest.mark.slow
def test_variants_share_an_instance_until_one_fails(chosen, monkeypatch):
    monkeypatch.setattr(Varied, "made", [])
    choice = chosen(Varied)
    assert choice.plan.settings.options["engine"] == {"streams": 4}
    assert "(streams 8): fails: " in choice.line
    used = [engine for engine in Varied.made if engine.seen]
    assert [sorted({*engine.seen}) for engine in used] == [[8], [1, 4]]
    # The run's engine is another one: the steps of the trials have other learning rates.
    assert not choice.plan.choices["engine"].instance.seen
    assert choice.plan.choices["engine"].config.streams == 4


class Slower(Varied):
    """An engine whose variants train ever longer."""

    made: list = []

    @pf.hookimpl
    def variants(self, clients):
        return [{"streams": n} for n in (4, 2, 1)]


def test_a_slower_variant_ends_the_trials(chosen, monkeypatch):
    monkeypatch.setattr(Slower, "made", [])
    choice = chosen(Slower)
    assert choice.plan.settings.options["engine"] == {"streams": 4}
    (used,) = [engine for engine in Slower.made if engine.seen]
    assert {*used.seen} == {4, 2}


WEIGHT = [1.0]


class Fading:
    """A method whose loss reads a number that is another in each round."""

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def before_training(self, client):
        WEIGHT[0] = 1.0 / (1 + client.round)
        return {}

    @pf.hookimpl
    def local_loss(self, batch, output):
        return {"ce": WEIGHT[0] * torch.nn.functional.cross_entropy(output.logits, batch.y)}


def test_an_engine_that_cannot_replay_the_method_is_not_taken(chosen, monkeypatch):
    monkeypatch.setitem(PARTS, ("method", "fading"), Fading)
    choice = chosen(CUDAGraphs, method="fading", device="cpu")
    assert choice.plan.settings.engine == "eager"
    assert "fast: its steps cannot be replayed: " in choice.line
    assert "the step uses 1.0 in its first" in choice.line


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture
def others(monkeypatch):
    """Take other engines for ``auto``, with their classes."""

    def take(**classes):
        monkeypatch.setattr(engine_choice, "ENGINES", tuple(classes))
        monkeypatch.setattr(choose_engine, "__defaults__", (tuple(classes),))

    return take


def notes_of(said):
    return [event.text for event in said if isinstance(event, pf.events.Note)]


@pytest.mark.slow
@pytest.mark.parametrize("name", quick(["wrong", "varied"], "wrong"))
def test_a_run_on_a_gpu_chooses_and_goes_on_with_its_choice(
    gpu, tmp_path, toys, others, name, monkeypatch
):
    file = tmp_path / "engines.py"
    file.write_text(ENGINES)
    others(**{name: None})
    monkeypatch.setattr(engine_choice, "GAIN", 1e-9)  # any engine with equal results
    monkeypatch.setattr(engine_choice, "WORTH", 0.0)
    said = []
    given = {
        "device": "simgpu",
        "clients": 2,
        "dry_run": True,
        "classes": {f"engine/{name}": f"{file}:{name.title()}"},
    }

    def stop(event):
        said.append(event)
        if isinstance(event, pf.events.RoundDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("fedproto", tmp_path / "run", progress=stop, **given)
    config = pf.load_run(tmp_path / "run").config
    chosen = "eager" if name == "wrong" else name
    assert config["engine"] == chosen
    assert config["options"].get("engine") == (None if name == "wrong" else {"streams": 3})
    table = config["engine_trial"]["measured"]
    assert [one["engine"] for one in table] == ["eager", name]
    assert ("refused" in table[1]) is (name == "wrong")
    line = next(note for note in notes_of(said) if note.startswith("engine "))
    assert line.startswith(f"engine {chosen}") and line in config["notes"]
    first = notes_of(said)[0]
    assert first == config["notes"][0] and "not repeatable to the bit" in first
    assert config["arithmetic"] == {
        "convolutions": "tf32", "products": "float32", "repeatable": False
    }  # fmt: skip
    monkeypatch.setattr(engine_choice, "try_engine", None)  # a trial would fail
    said = []
    result = train(None, tmp_path / "run", resume=True, progress=said.append)
    assert [row.get("engine") for row in result.record] == [None, None]
    assert not [note for note in notes_of(said) if note.startswith("engine ")]


ENGINES = """
import torch
import protofl as pf
from protofl_plugins.engines.eager import Eager


class Wrong(Eager):
    '''An engine that changes the weights.'''

    @pf.hookimpl
    def train(self, job):
        found = super().train(job)
        with torch.no_grad():
            job.model.head.bias.add_(0.1)
        return found


class Varied(Eager):
    '''An engine with a variant.'''

    class Config(pf.Config):
        '''Options.'''

        streams: int = 2

    @pf.hookimpl
    def variants(self, clients):
        return [{"streams": 3}]
"""


def test_a_cpu_plan_has_eager():
    plan = make_plan("local")
    assert plan.settings.engine == "eager" and not would_measure(plan)


def test_the_page_of_the_plan_says_what_would_be_measured(gpu):
    plan = Plan.make(GIVEN | {"method": "fedproto", "device": "simgpu", "dry_run": True}, PARTS)
    line = would_measure(plan)
    assert line.startswith("engine auto: the run begins with a trial of eager and cuda-graphs (4 ")
    assert not would_measure(plan.choosing("engine", "eager"))
    assert "nothing is compared" in would_measure(
        Plan.make(GIVEN | {"method": "fedproto", "device": "simgpu"}, PARTS)
    )


def test_a_cpu_has_eager_without_a_trial(tmp_path, toys, monkeypatch):
    monkeypatch.setattr(engine_choice, "try_engine", None)
    said = []
    run = train("local", tmp_path / "run", dry_run=True, progress=said.append)
    config = pf.load_run(run.folder).config
    assert (config["engine"], config["precision"]) == ("eager", "fp32")
    assert not {"engine_trial", "arithmetic", "notes"} & config.keys()
    assert "engine" not in config["set_by"]
    assert not [note for note in notes_of(said) if "engine" in note or "precision" in note]
    asked = train("local", tmp_path / "asked", engine="eager", dry_run=True, progress=False)
    assert pf.load_run(asked.folder).config["identity"] == config["identity"]


def test_a_run_goes_on_with_eager(tmp_path, toys):
    def stop(event):
        if isinstance(event, pf.events.RoundDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("local", tmp_path / "run", engine="vmapped", set={"engine.group": 2}, progress=stop)
    said = []
    with pytest.raises(pf.UsageError, match="--engine cuda-graphs differs"):
        train(None, tmp_path / "run", resume=True, engine="cuda-graphs")
    given = {"resume": True, "progress": said.append}
    found = train(None, tmp_path / "run", engine="eager", **given)
    assert [row.get("engine") for row in found.record] == [None, "eager"]
    notes = [event.text for event in said if isinstance(event, pf.events.Note)]
    assert [note for note in notes if "engine vmapped until here, and eager" in note]
    assert not [note for note in notes if "when the run began" in note]
    longer = train(None, tmp_path / "run", rounds=3, **given)
    assert [row.get("engine") for row in longer.record] == [None, "eager", "eager"]
    assert pf.load_run(found.folder).config["engine"] == "vmapped"
