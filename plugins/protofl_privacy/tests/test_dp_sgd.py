"""Tests of ``dp-sgd``: its accountant, its steps, what it refuses, and runs that end."""

from __future__ import annotations

import math
import random

import pytest
import torch
from epsilon_audit import audited_epsilon
from runtime_toys import DATA, PARTS, quarters
from slowness import quick
from torch import nn

import protofl as pf
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.system.secret_stream import SecretStream
from protofl.testing import toy as toyfed
from protofl_privacy import dp_sgd
from protofl_privacy.accountant import epsilon_of, epsilon_of_steps, noise_for_steps
from protofl_privacy.dp_sgd import DPSGD, PerSample, clipped_sums, poisson_sample

pytest.importorskip("dp_accounting")

Toy, Norm = toyfed.group(toyfed.CNN), toyfed.group(toyfed.NORM)


# --- the accountant -------------------------------------------------------------------------------


def test_epsilon_is_the_published_one():
    """Abadi et al. (2016, Section 3.2): ε = 1.26 for q = 0.01, σ = 4, δ = 1e-5 and 10,000 steps.

    TensorFlow Privacy's tutorial says 2.92 to 3.01 for MNIST: 60 epochs of batches of 256, σ = 1.1.
    Both bound ε by RDP + ln(1/δ)/(α − 1). The bound of Canonne et al. is smaller.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    abadi, tutorial = (4.0, 0.01, 10_000, 1.26), (1.1, 256 / 6e4, 14_062, 3.01)
    for sigma, rate, steps, published in (abadi, tutorial):
        spent = RdpAccountant().compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
        orders = zip(spent._orders, spent._rdp, strict=True)
        moments = min(rdp + math.log(1e5) / (a - 1) for a, rdp in orders if a > 1)
        assert moments == pytest.approx(published, abs=0.006)
        assert 0.8 * published < epsilon_of_steps(sigma, rate, steps, 1e-5) < published


def test_without_sampling_it_bounds_the_exact_epsilon():
    """With q = 1, T steps are a Gaussian mechanism, whose exact ε is known."""
    for sigma, steps in ((1.0, 1), (8.0, 30)):
        exact = epsilon_of(sigma, steps, 1e-5)
        assert exact < epsilon_of_steps(sigma, 1.0, steps, 1e-5) < 1.15 * exact
    assert epsilon_of_steps(1.0, 0.1, 0, 1e-5) == 0


def test_noise_for_a_budget_spends_nearly_all_of_it():
    sigma = noise_for_steps(3.0, 0.1, 60, 1e-5)
    assert 2.98 < epsilon_of_steps(sigma, 0.1, 60, 1e-5) <= 3.0


# --- a step ---------------------------------------------------------------------------------------


def test_clipping_is_that_of_a_slow_loop():
    draw = torch.Generator().manual_seed(0)
    each = {"a": torch.randn(5, 3, 2, generator=draw), "b": torch.randn(5, 4, generator=draw)}
    each["a"][3] *= 0.01
    each["b"][3] *= 0.01  # shorter than the bound
    each["b"][4, 0] = math.nan
    expected = {"a": torch.zeros(3, 2), "b": torch.zeros(4)}
    for sample in range(4):
        norm = math.sqrt(sum(float(g[sample].pow(2).sum()) for g in each.values()))
        for name, gradients in each.items():
            expected[name] += gradients[sample] * min(1.0, 0.5 / norm)
    found = clipped_sums(each, 0.5, 1e-6)
    assert all(torch.allclose(found[name].float(), expected[name], atol=1e-6) for name in each)


def test_each_sample_is_drawn_with_the_rate():
    draw, counts, sizes = SecretStream(b"").uniform, torch.zeros(40), []
    for _ in range(2000):
        rows = poisson_sample(40, 0.2, draw)
        counts[rows] += 1
        sizes.append(float(len(rows)))
    assert ((counts / 2000 - 0.2).abs() < 4 * math.sqrt(0.16 / 2000)).all()
    # The size of a batch is binomial: batches of one size would reveal n.
    assert torch.tensor(sizes).var() == pytest.approx(40 * 0.16, rel=0.15)
    assert len(poisson_sample(40, 1.0, draw)) == 40
    assert len(poisson_sample(0, 0.5, draw)) == 0


def first_job(method="lg-fedavg", models=Toy, settings=None, **options):
    """Return client 0 as dp-sgd sees it, and the job of its first phase."""
    found = []

    class Captures(DPSGD):
        """Keeps what it gets, and leaves the training to the engine."""

        Config = DPSGD.Config

        @pf.hookimpl
        def train(self, client, job):
            found.append((client, job))

    plan = toyfed.make_plan(
        method, DATA, models=models, extra={("payload-transform", "captures"): Captures},
        transforms=["captures"], options={"captures": {"noise": 1.0, **(settings or {})}},
        backend="local", **options,
    )  # fmt: skip
    toyfed.Toy(plan).rounds(1)
    return next((client, job) for client, job in found if client.id == 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lg-fedavg", "fedprox", "fml"])
def test_gradients_of_single_samples_are_those_of_a_slow_loop(method):
    """Mapped, one by one, and by a backward pass of the whole model for each sample."""
    client, job = first_job(method)
    rows = torch.arange(4)
    x, y, gradients = client.train.inputs(rows), client.train.y[rows], PerSample(job)
    mapped, terms = gradients.of(x, y, rows)
    assert not gradients.notes, "torch can map this net"
    gradients._mapped = False
    single, _ = gradients.of(x, y, rows)
    for sample in range(4):
        one = slice(sample, sample + 1)
        batch = pf.Batch(x[one], y[one], rows[one])
        z = job.model.features(batch.x)
        found = job.loss(batch, pf.Output(z, job.model.head(z)), 0)
        names, parameters = zip(*gradients.trained.items(), strict=True)
        slow = torch.autograd.grad(sum(found.values()), parameters)
        for name, expected in zip(names, slow, strict=True):
            assert torch.allclose(mapped[name][sample], expected, atol=1e-6), name
            assert torch.allclose(single[name][sample], expected, atol=1e-6), name
        assert torch.allclose(terms["ce"][sample], found["ce"], atol=1e-5)


def weights(job):
    return torch.cat([p.detach().flatten() for group, _ in job.groups for p in group])


def set_weights(job, flat):
    with torch.no_grad():
        for group, _ in job.groups:
            for parameter in group:
                part, flat = flat[: parameter.numel()], flat[parameter.numel() :]
                parameter.copy_(part.view(parameter.shape))


@pytest.mark.slow
def test_a_step_without_noise_is_the_clipped_sum_by_the_batch_size():
    """The divisor is --batch-size, so that the number of samples does not scale a step."""
    options = {"noise": 1e-12, "rate": 1.0, "clip": 0.3}
    client, job = first_job(settings=options, lr=0.5, batch_size=7)
    before, gradients = weights(job), PerSample(job)
    rows = torch.arange(len(client.train))
    each, _ = gradients.of(client.train.inputs(rows), client.train.y, rows)
    sums = torch.cat([total.float().flatten() for total in clipped_sums(each, 0.3, 1e-6).values()])
    DPSGD().train(client, job)
    assert len(rows) != 7
    assert torch.allclose(weights(job), before - 0.5 / 7 * sums, atol=1e-6)


@pytest.mark.slow
def test_empty_batches_get_noise_of_the_right_size():
    """With a tiny rate, most steps have no sample: the weights make a random walk."""
    client, job = first_job(settings={"noise": 3.0, "rate": 0.02, "clip": 0.5}, lr=1.0)
    job.epochs = 2
    client._state.train = client._state.train.at(slice(0))
    before = weights(job)
    assert DPSGD().train(client, job) == {}, "no sample was seen, so there is no loss"
    walked = weights(job) - before
    steps = 2 * 50
    expected = 1.0 / 5 * 3.0 * 0.5 * math.sqrt(steps)
    assert float(walked.std()) == pytest.approx(expected, rel=0.1)
    assert abs(float(walked.mean())) < 4 * expected / math.sqrt(len(walked))


@pytest.mark.slow
def test_what_works_on_noisy_gradients_is_that_of_torch():
    """Momentum, weight decay and a bound on the whole gradient, by torch's own optimiser."""
    options = {"noise": 1.0, "rate": 0.5, "clip": 1.0}
    given = {"momentum": 0.9, "weight_decay": 0.1, "clip": 0.05, "lr": 0.1}
    client, job = first_job(settings=options, **given)
    before = weights(job)
    DPSGD().train(client, job)
    first = weights(job)
    set_weights(job, before)
    job.clip = 0.0
    DPSGD().train(client, job)
    assert (first - before).norm() < (weights(job) - before).norm()
    # Two steps of length 0.05 at most, the second with momentum; decay adds to both.
    most = 0.1 * (0.05 + 0.05 * 1.9) + 0.1 * 0.1 * 3 * float(before.norm())
    assert 0 < float((first - before).norm()) < most


def outputs(client, job, samples, direction, seeds):
    """Return how much the weights look like those with the sample, for runs with other seeds."""
    first, result = weights(job), []
    client._state.train = samples
    for seed in seeds:
        client._state.seed = seed
        set_weights(job, first)
        DPSGD().train(client, job)
        result.append((first - weights(job)) @ direction)
    set_weights(job, first)
    return torch.stack(result)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_an_audit_stays_below_epsilon_and_finds_noise_that_is_too_small(steps, monkeypatch):
    """Whole phases with and without a sample; the test is along the sample's clipped gradient."""
    noise = 2 * math.sqrt(steps)  # ε = 2.1
    settings = {"noise": noise, "rate": 1.0, "clip": 0.01}
    client, job = first_job(models=toyfed.group(toyfed.PIXELS), settings=settings, lr=0.01)
    job.epochs, samples = steps, client._state.train.at(slice(4))
    rows = torch.arange(4)
    each, _ = PerSample(job).of(samples.inputs(rows), samples.y, rows)
    one = {name: gradients[3:] for name, gradients in each.items()}
    direction = torch.cat(
        [total.float().flatten() for total in clipped_sums(one, 1.0, 1e-6).values()]
    )
    epsilon = epsilon_of_steps(noise, 1.0, steps, 1e-5)

    def found():
        inside = outputs(client, job, samples, direction, range(600))
        outside = outputs(client, job, samples.at(slice(3)), direction, range(600, 1200))
        return audited_epsilon(inside, outside, 1e-5)

    assert found() < epsilon
    monkeypatch.setattr(DPSGD, "noise_multiplier", lambda self, view: noise / 6)
    assert found() > epsilon, "a sixth of the noise"


# --- what a server sees ---------------------------------------------------------------------------


@pytest.mark.slow
def test_uploads_tell_nothing_of_the_number_of_samples():
    options = {"transforms": ["dp-sgd"], "options": {"dp-sgd": {"noise": 1.0, "rate": 0.3}}}
    images = toyfed.make_images([[3, 3, 2], [9, 9, 9], [1, 0, 0], [4, 4, 4]])
    taken = []

    class Counts(nn.Module):
        def forward(self, x):
            return x.flatten(1)

    def extractor(sample, K):
        return nn.Sequential(Counts(), nn.Linear(math.prod(sample.shape), K))

    models = toyfed.group(toyfed.architecture("counts", extractor))
    plan = toyfed.make_plan("fedavg", DATA, images, models, local_epochs=2, **options)
    with pytest.MonkeyPatch.context() as patch:
        draw = dp_sgd.poisson_sample
        patch.setattr(dp_sgd, "poisson_sample", lambda n, *rest: taken.append(n) or draw(n, *rest))
        federation = toyfed.Toy(plan)
        federation.rounds(1)
    per_client = {n: taken.count(n) for n in {*taken}}
    assert set(per_client.values()) == {2 * 3}, "steps do not depend on the number of samples"
    for blob in federation.pool.uploads(0).values():
        assert int(pf.Payload.from_bytes(blob)["samples"]) == 1
    # So the server takes a plain mean.
    uploads = [pf.Payload.from_bytes(blob) for blob in federation.pool.uploads(0).values()]
    mean = torch.stack([upload["model/head.weight"] for upload in uploads]).mean(0)
    assert torch.allclose(federation.server.global_state["model/head.weight"], mean, atol=1e-6)


def refusal(method, models=Toy, **options):
    """Return the error of a dry run."""
    given = {"transforms": ["dp-sgd"], "options": {"dp-sgd": {"noise": 1.0}}} | options
    with pytest.raises(pf.ProtoflError) as caught:
        dry_run(toyfed.make_plan(method, DATA, models=models, backend="local", **given))
    return str(caught.value)


@pytest.mark.parametrize(
    ("method", "reason"),
    quick(
        [
            ("fedtsp", "fedtsp reads client.train_features, and what comes of it gets no noise"),
            ("fedgh", "fedgh reads client.train_features, and what comes of it gets no noise"),
            ("fedproto", "fedproto reads client.train_features"),
            ("fedtgp", "fedtgp reads client.train_features"),
            ("fedsa", "fedsa reads client.train_features"),
            (
                "feddistill",
                "feddistill collects values of batches during training (after_batch)",
            ),
            ("fedgen", "fedgen reads client.steps"),
            ("heterofl", "heterofl reads client.class_counts"),
            ("scaffold", "scaffold reads client.steps"),
            ("feddap", "feddap reads client.domain"),
            ("fedl2g", "fedl2g reads client.train,"),
            ("centralised", "centralised reads client.train,"),
        ],
        # It is refused before torch's first optimiser is made, which takes a second.
        ("feddistill", "feddistill collects values of batches during training (after_batch)"),
    ),
)
def test_methods_that_read_samples_are_refused(method, reason):
    assert reason in refusal(method)


def test_other_refusals_name_the_reason():
    text = refusal("fedavg", Norm)
    assert "BatchNorm1d" in text and "take nets without BatchNorm" in text
    assert "give a budget (--set dp-sgd.epsilon=8)" in refusal("fedavg", options={})
    assert "--patience 2 reads what clients report" in refusal("fedavg", patience=2)
    assert "--sampling size reads what clients report" in refusal("fedavg", sampling="size")
    assert "--sampling loss reads what clients report" in refusal("fedavg", sampling="loss")
    assert "--observe features sends what" in refusal("fedavg", observe=["features"])
    assert "--record-predictions last sends" in refusal("fedavg", record_predictions=["last"])
    large = {"options": {"dp-sgd": {"noise": 1.0, "delta": 0.009}}}
    images = toyfed.make_images([[99, 99, 99]] * 4)
    with pytest.raises(pf.ProtoflError, match=r"delta=0\.009 is not below 1/\d\d\d, and the small"):
        toyfed.make_plan("fedavg", DATA, images, Toy, transforms=["dp-sgd"], **large)
    toyfed.make_plan("fedavg", DATA, models=Toy, transforms=["dp-sgd"], **large)
    assert "does not shift and flip images (--augment)" in refusal("fedavg", augment=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    ["fedavg", "fedprox", "fedper", "fedrep", "lg-fedavg", "ditto", "moon", "fedkd", "fml",
     "fedmrl", "fedit", "ffa-lora", "hetlora", "flexlora"],
)  # fmt: skip
def test_methods_whose_uploads_come_from_the_model_run(method):
    options = {"transforms": ["dp-sgd"], "options": {"dp-sgd": {"noise": 0.5, "rate": 0.5}}}
    plan = toyfed.make_plan(method, DATA, models=Toy, backend="local", **options)
    dry_run(plan)
    federation = toyfed.Toy(plan)
    lines = federation.rounds(2)
    assert all(math.isfinite(line["train_loss"]) for line in lines)
    steps = 2 * sum(phase.epochs for phase in plan.info.phases)
    expected = [epsilon_of_steps(0.5, 0.5, rounds * steps, 1e-5) for rounds in (1, 2)]
    assert [line["extra"]["dp-sgd.epsilon_if_deployed"] for line in lines] == pytest.approx(
        expected
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "fedrep", "lg-fedavg"])
def test_every_step_on_samples_costs_budget_and_draws_anew(method, monkeypatch):
    """Ditto trains two models in one step, and FedRep two parts of a model in two phases."""
    taken, draw = dict[int, list[list[int]]](), dp_sgd.poisson_sample

    def counted(n, *rest):
        rows = draw(n, *rest)
        taken.setdefault(n, []).append(rows.tolist())
        return rows

    monkeypatch.setattr(dp_sgd, "poisson_sample", counted)
    options = {"transforms": ["dp-sgd"], "options": {"dp-sgd": {"noise": 0.5, "rate": 0.5}}}
    images = toyfed.make_images([[9, 8, 8], [9, 9, 9], [7, 7, 7], [9, 8, 9]])
    plan = toyfed.make_plan(method, DATA, images, models=Toy, backend="local", **options)
    federation = toyfed.Toy(plan)
    lines = federation.rounds(2)
    phases = [phase.epochs * 2 for phase in plan.info.phases]
    for rows in taken.values():  # clients differ in their number of samples
        assert len(rows) == 2 * sum(phases)
        starts, at = [], 0
        for steps in [*phases, *phases]:
            starts.append(rows[at])
            at += steps
        assert len({*map(str, starts)}) == len(starts), (
            "phases and rounds have streams of their own"
        )
    spent = epsilon_of_steps(0.5, 0.5, len(next(iter(taken.values()))), 1e-5)
    assert lines[1]["extra"]["dp-sgd.epsilon_if_deployed"] == pytest.approx(spent)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "fedrep", "lg-fedavg"])
def test_uploads_depend_on_samples_by_clipped_gradients_alone(method):
    """With C near 0 and equal noise, no sample is left in the uploads of three rounds."""

    def uploads(x, **settings):
        images = toyfed.make_images(toyfed.MIXED)
        images.x = x(images.x)
        options = {"transforms": ["dp-sgd"], "options": {"dp-sgd": settings}}
        plan = toyfed.make_plan(method, DATA, images, Toy, backend="local", **options)
        federation = toyfed.Toy(plan)
        federation.rounds(3)
        sent = [federation.pool.uploads(number) for number in range(3)]
        sent = [pf.Payload.from_bytes(blob) for each in sent for blob in each.values()]
        return torch.cat([each[key].flatten() for each in sent for key in sorted(each)])

    def same(x):
        return x

    def other(x):
        return x.flip(0)

    hidden = {"noise": 1e6, "clip": 1e-6, "rate": 0.5}
    first, second = uploads(same, **hidden), uploads(other, **hidden)
    assert torch.allclose(first, second, atol=1e-4)
    shown = {"noise": 1e-3, "clip": 1.0, "rate": 0.5}
    assert not torch.allclose(uploads(same, **shown), uploads(other, **shown), atol=1e-2)


@pytest.mark.slow
def test_phases_on_public_samples_are_the_engine_s():
    """FedMD: clients learn from scores of public samples, which cost nothing."""
    plan = toyfed.make_plan(
        "fedmd", DATA, models=Toy, backend="local", transforms=["dp-sgd"],
        options={"dp-sgd": {"noise": 0.5}}, public=f"npz:{public_file()}",
    )  # fmt: skip
    dry_run(plan)
    lines = toyfed.Toy(plan).rounds(2)
    private = sum(p.epochs for p in plan.info.phases if p.data == "private")
    assert any(p.data == "public" for p in plan.info.phases)
    expected = epsilon_of_steps(0.5, 0.1, 2 * 10 * private, 1e-5)
    assert lines[1]["extra"]["dp-sgd.epsilon_if_deployed"] == pytest.approx(expected)


def public_file():
    """Write public samples like those of the toys, and return their file."""
    import numpy as np

    path, images = DATA / "public-of-dp-sgd.npz", toyfed.make_images(toyfed.MIXED)
    x = images.x[:12].numpy()
    np.savez(path, x_train=x, y_train=images.y[:12].numpy())
    return path


# --- runs -----------------------------------------------------------------------------------------

Tiny = toyfed.dataset(quarters())


def run(out, method="lg-fedavg", **options):
    given = {
        "partition": "iid", "clients": 4, "batch_size": 6, "rounds": 4, "lr": 0.1,
        "data_dir": DATA, "device": "cpu", "backend": "local", "engine": "eager",
        "transforms": ["dp-sgd"], "out": out,
    }  # fmt: skip
    return pf.run(method, models=PARTS["model-group", "toy1"], dataset=Tiny, **(given | options))


@pytest.mark.slow
def test_the_last_round_spends_the_budget_and_an_engine_changes_nothing(tmp_path):
    settings = {"dp-sgd.epsilon": 6.0, "dp-sgd.rate": 0.25}
    result = run(tmp_path / "run", set=settings)
    spent = [row.extra["dp-sgd.epsilon_if_deployed"] for row in result.record]
    assert spent == sorted(spent) and 5.95 < spent[-1] <= 6.0
    assert len(spent) == 4 and not result.record[-1].ended
    other = run(tmp_path / "vmapped", set=settings, engine="vmapped")
    assert [r.test_accuracy for r in other.record] == [r.test_accuracy for r in result.record]
    assert [r.train_loss for r in other.record] == [r.train_loss for r in result.record]


@pytest.mark.slow
def test_a_run_ends_before_it_costs_more_than_the_budget_also_after_a_resume(tmp_path):
    settings = {
        "dp-sgd.epsilon": 6.0,
        "dp-sgd.noise": noise_for_steps(6.0, 0.25, 2 * 4, 1e-5),
        "dp-sgd.rate": 0.25,
    }
    result = run(tmp_path / "run", set=settings, local_epochs=1)
    assert len(result.record) == 2
    assert "the budget is 6" in result.record[-1].ended
    assert pf.load_run(tmp_path / "run").state == "finished"
    parts = {"models": PARTS["model-group", "toy1"], "dataset": Tiny, "progress": False}
    again = pf.run("lg-fedavg", out=tmp_path / "run", resume=True, rounds=8, **parts)
    assert len(again.record) == 2


@pytest.mark.slow
def test_a_client_whose_budget_is_spent_does_not_train():
    """A server that goes on where the trial should have ended gets weights that it knows."""
    noise = noise_for_steps(6.0, 0.25, 4, 1e-5)
    settings = {"epsilon": 6.0, "noise": noise, "rate": 0.25}
    client, job = first_job(settings=settings, local_epochs=1)
    before = weights(job)
    client._state.round = 1
    assert DPSGD().train(client, job) == {}
    assert torch.equal(weights(job), before)
    client._state.round = 0
    DPSGD().train(client, job)
    assert not torch.equal(weights(job), before)


@pytest.mark.slow
def test_a_killed_run_continues_with_the_same_noise_and_budget(tmp_path):
    """ε counts rounds, and a round that is computed again draws what it drew before.

    The killed run has worker processes, the other one does not.
    """
    from killed_runs import Place, killed

    words = ("--with=dp-sgd", "--set=dp-sgd.epsilon=8", "--set=dp-sgd.rate=0.25")
    place = Place(tmp_path, "lg-fedavg", "process", rounds=4, words=words)
    chain = killed(place, 2, random.Random("dp-sgd"))
    assert not chain.wrong, "its folder is that of a run that was not killed"
    spent = [row.extra["dp-sgd.epsilon_if_deployed"] for row in pf.load_run(place.whole).rows]
    assert spent == sorted(spent) and 7.9 < spent[-1] <= 8


def test_other_plugins_do_not_see_the_samples():
    client, _ = first_job()
    state = client._state
    assert len(client.train) > 1 and client.num_samples == len(client.train)
    other = pf.Client(state, "lg-fedavg")
    assert other.num_samples == 1
    reads = ("train", "class_counts", "steps", "domain", "train_features", "class_prototypes")
    for name in reads:
        with pytest.raises(pf.UsageError, match=r"captures: lg-fedavg reads client\."):
            value = getattr(other, name)
            value()


@pytest.mark.parametrize(
    ("rate", "epochs", "steps"), [(0.3, 1, 3), (0.3, 2, 6), (0.1, 0.25, 3), (0.1, 1.1, 11)]
)
def test_the_steps_of_epochs(rate, epochs, steps):
    """A fraction of an epoch is rounded up, as its mini-batches are elsewhere."""
    assert dp_sgd.steps_of(rate, epochs) == steps
