"""Tests of ``dp-prototypes``: its accountant, its noise, what it refuses, and a run that ends."""

from __future__ import annotations

import math

import pytest
import torch
from epsilon_audit import audited_epsilon
from runtime_toys import DATA, PARTS, Kept, kept_group, quarters
from scipy.stats import norm
from slowness import quick

import protofl as pf
from protofl.system.secret_stream import SecretStream
from protofl.testing import toy as toyfed
from protofl_privacy import grid
from protofl_privacy.accountant import epsilon_of, noise_for, parts_of
from protofl_privacy.dp_prototypes import DPPrototypes, noisy_sums_and_counts

pytest.importorskip("dp_accounting")


def exact_delta(epsilon, sigma):
    """δ(ε) of the Gaussian mechanism of sensitivity 1 (Balle and Wang, 2018, Theorem 8)."""
    a = 1 / (2 * sigma)
    return norm.cdf(a - epsilon * sigma) - math.exp(epsilon) * norm.cdf(-a - epsilon * sigma)


@pytest.mark.parametrize(("sigma", "releases"), [(1.0, 1), (4.0, 10), (20.0, 100)])
def test_epsilon_is_that_of_balle_and_wang(sigma, releases):
    epsilon = epsilon_of(sigma, releases, 1e-5)
    assert exact_delta(epsilon, sigma / math.sqrt(releases)) == pytest.approx(1e-5, rel=1e-3)


def test_epsilon_is_the_published_one():
    """µ-GDP of µ = 1 is (ε, δ(ε))-DP with δ(1) = 0.1269 (Dong et al., 2022, Corollary 2.13)."""
    assert epsilon_of(1.0, 1, 0.12693674) == pytest.approx(1.0, abs=1e-5)
    assert epsilon_of(2.0, 4, 0.12693674) == pytest.approx(1.0, abs=1e-5)
    # The classical calibration √(2 ln(1.25/δ))/ε (Dwork and Roth, Theorem A.1) needs more noise.
    assert noise_for(0.9, 1, 1e-5) < math.sqrt(2 * math.log(1.25e5)) / 0.9


def test_noise_for_a_budget_spends_it_exactly():
    for releases in (1, 7, 50):
        sigma = noise_for(3.0, releases, 1e-5)
        assert epsilon_of(sigma, releases, 1e-5) == pytest.approx(3.0, rel=1e-6)
        assert epsilon_of(sigma, releases + 1, 1e-5) > 3.0
    sums, counts = parts_of(2.0, 0.3)
    assert 1 / sums**2 + 1 / counts**2 == pytest.approx(1 / 4)


def outputs(with_sample, repeats, noise, seed):
    """Statistics of releases: how much the noisy sums and counts look like those with the sample.

    The sample has a feature longer than the bound, so its clipped length is the bound.
    """
    normal, rows = SecretStream(bytes([seed])).normal, []
    z = torch.zeros(3, 4)
    z[:, 1] = 0.5
    extra = torch.tensor([[30.0, 0, 0, 0]])
    features = torch.cat([z, extra]) if with_sample else z
    labels = torch.tensor([0, 1, 1, 0][: len(features)])
    of_sums, of_counts = parts_of(noise, 0.2)
    for _ in range(repeats):
        sums, counts = noisy_sums_and_counts(features, labels, 3, noise, 2.0, 0.2, normal)
        # The log-likelihood ratio of both worlds, up to a constant: the best test there is.
        rows.append(sums[0, 0] / 2 / of_sums**2 + (counts[0] - 1.5) / of_counts**2)
    return torch.stack(rows)


@pytest.mark.parametrize("repeats", quick([800, 8000], 800))
def test_an_audit_stays_below_epsilon_and_finds_noise_that_is_too_small(repeats):
    """The best test gets near to ε. With a quarter of the noise, the same audit shows the fault."""
    noise, delta = 1.0, 1e-5
    epsilon = epsilon_of(noise, 1, delta)
    worlds = [outputs(inside, repeats, noise, seed) for seed, inside in enumerate((True, False))]
    found = audited_epsilon(*worlds, delta)
    assert 0.1 * epsilon < found < epsilon
    worlds = [outputs(inside, repeats, noise / 4, 7 + inside) for inside in (True, False)]
    assert audited_epsilon(*worlds, delta) > 1.5 * found


def test_an_audit_of_equal_outputs_finds_nothing():
    drawn = torch.randn(2, 2000, generator=torch.Generator().manual_seed(0))
    assert audited_epsilon(drawn[0], drawn[1], 1e-5) < 0.2


def test_noise_is_added_to_all_classes_and_long_features_are_clipped():
    z, y = torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([1, 1])
    tiny = noisy_sums_and_counts(z, y, 3, 1e-9, 1.0, 0.5, SecretStream(b"").normal)
    assert torch.allclose(tiny[0][1], torch.tensor([0.9, 1.2], dtype=torch.float64), atol=1e-6)
    assert tiny[1].round().tolist() == [0, 2, 0]
    sums, counts = noisy_sums_and_counts(z, y, 3, 1.0, 1.0, 0.5, SecretStream(b"").normal)
    assert (sums != 0).all() and (counts != counts.round()).all()


def test_the_last_bits_of_a_release_tell_nothing():
    """In plain floating point, most sums with noise show which samples are in them."""
    draw = torch.Generator().manual_seed(0)
    z, y = torch.rand(9, 5, generator=draw).double(), torch.zeros(9, dtype=torch.long)
    g = grid.width(parts_of(1.3, 0.5)[0])

    def sums(rows, key=b""):
        return noisy_sums_and_counts(z[rows], y[rows], 2, 1.3, 1.0, 0.5, SecretStream(key).normal)[
            0
        ]

    for rows in ([*range(9)], [*range(8)], [3], []):
        released = sums(rows) / g
        assert torch.equal(released, released.round()), "a multiple of g, with or without a sample"
    assert torch.equal(sums([*range(9)]), sums([*range(9)][::-1])), "in any order"
    noise = sums([])
    for rows in ([0], [1, 2, 3, 4, 5, 6, 7]):
        apart = (sums([*rows, 8]) - noise) - (sums(rows) - noise)
        assert torch.equal(apart, sums([8]) - noise), "a sample changes sums by its own share alone"
        assert float(apart[0].norm()) <= 1.0, "never longer than C, also where it is clipped"


# --- runs -----------------------------------------------------------------------------------------


Toy, ToyWithLayer = Kept, kept_group(trained_layer=True)
Tiny = toyfed.dataset(quarters())


def run(tmp_path, models=Toy, method="fedproto", **options):
    given = {
        "partition": "iid", "clients": 4, "batch_size": 6, "rounds": 4, "lr": 0.1,
        "data_dir": DATA, "device": "cpu", "backend": "local", "engine": "eager",
        "drop": ["align"], "transforms": ["dp-prototypes"], "out": tmp_path / "run",
    }  # fmt: skip
    return pf.run(method, models=models, dataset=Tiny, **(given | options))


def test_the_record_has_epsilon_and_the_budget_is_spent_in_the_last_round(tmp_path):
    settings = {"dp-prototypes.epsilon": 6.0, "dp-prototypes.least": 1.0}
    result = run(tmp_path, set=settings, record_uploads=True)
    spent = [row.extra["dp-prototypes.epsilon_if_deployed"] for row in result.record]
    assert spent == sorted(spent) and spent[-1] == pytest.approx(6.0, rel=1e-6)
    assert len(spent) == 4 and not result.record[-1].ended
    run_ = pf.load_run(tmp_path / "run")
    true, larger = run_.split().train_counts, 0
    for client, upload in run_.uploads().items():
        assert {*upload} == {"prototypes", "classes", "counts"}
        own = torch.as_tensor(true[client])[upload["classes"]]
        larger += int((upload["counts"] > own).sum())
    assert larger, "noise makes some counts larger than the client's, and the server takes them"


def test_a_run_ends_before_it_costs_more_than_the_budget_also_after_a_resume(tmp_path):
    noise = noise_for(6.0, 2, 1e-5)
    settings = {"dp-prototypes.epsilon": 6.0, "dp-prototypes.noise": noise}
    result = run(tmp_path, set=settings)
    assert len(result.record) == 2
    assert "budget is 6" in result.record[-1].ended
    assert result.summary["trials"][0]["ended"] == result.record[-1].ended
    opened = pf.load_run(tmp_path / "run")
    assert opened.state == "finished" and opened.asked == 2


def test_a_client_whose_budget_is_spent_sends_no_rows(tmp_path):
    """The dry run has two rounds, and this run one, whose release costs the whole budget."""
    settings = {"dp-prototypes.epsilon": 6.0, "dp-prototypes.least": 1.0}
    result = run(tmp_path, rounds=1, set=settings, record_uploads=True)
    assert result.record[0].extra["dp-prototypes.epsilon_if_deployed"] == pytest.approx(
        6.0, rel=1e-6
    )

    class Ignores(DPPrototypes):
        """A server that goes on."""

        Config = DPPrototypes.Config

        @pf.hookimpl
        def end_trial(self, server):
            return ""

    settings = {"ignores.epsilon": 6.0, "ignores.noise": noise_for(6.0, 1, 1e-5)}
    given = {"out": tmp_path / "on", "rounds": 2, "record_uploads": True, "transforms": [Ignores]}
    run(tmp_path, set=settings, **given)
    uploads = pf.load_run(tmp_path / "on").uploads(1)
    assert all(len(upload["prototypes"]) == 0 for upload in uploads.values())


def test_refusals_name_the_reason(tmp_path):
    budget = {"dp-prototypes.epsilon": 6.0}
    with pytest.raises(pf.UsageError, match="is trained, so features depend on all samples"):
        run(tmp_path, models=PARTS["model-group", "toy1"], set=budget)
    with pytest.raises(pf.UsageError, match="give a budget"):
        run(tmp_path)
    with pytest.raises(pf.ProtoflError, match="a layer after the frozen net is trained"):
        run(tmp_path, models=ToyWithLayer, set=budget)
    with pytest.raises(pf.ProtoflError, match="the upload has head/weight"):
        run(tmp_path, method="lg-fedavg", drop=[], set=budget)
    for method, options, words in (
        ("fedcgs", {}, "the upload has feature_sums, gram.*those of no covariance"),
        ("gh-ofl", {"head": "nb-diag"}, "the upload has feature_s.*those of no covariance"),
        ("gh-ofl", {"head": "qda"}, "the upload has feature_sums, class_grams.*no covariance"),
        ("afl", {}, "the upload has ridge, gram.*changes in a regression"),
        ("fedpft", {}, "the upload has mixture_.*changes in a fitted mixture"),
    ):
        with pytest.raises(pf.ProtoflError, match=f"(?s){words}"):
            run(tmp_path, method=method, drop=[], set=budget | options)
    with pytest.raises(pf.ProtoflError, match=r"minimum-count reads client\.class_"):
        run(tmp_path, transforms=["dp-prototypes", "minimum-count"], set=budget)
    for before in ("quantise", "gaussian-noise"):
        with pytest.raises(pf.UsageError, match=f"--with {before} --with dp-prototypes: dp-proto"):
            run(tmp_path, transforms=[before, "dp-prototypes"], set=budget)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("models", "way"),
    [
        ("mlp", "--set models.frozen=FILE"),
        ("torchvision:resnet18", "models.projection=false"),
        ("widths:cnn4@1", "--models cnn4 --set models.frozen=FILE"),
    ],
)
def test_each_reason_has_its_own_line_and_the_advice_is_for_the_group(models, way, tmp_path):
    data = {"dataset": "wine"} if models == "mlp" else {"dataset": "digits"}
    with pytest.raises(pf.UsageError) as refused:
        pf.run("fedproto", models=models, transforms=["dp-prototypes"], **data)
    first, *others = f"{refused.value.near}\n{refused.value.do}".splitlines()
    assert "is trained" in first and way in first.partition("; freeze ")[2]
    assert any("give a budget" in line for line in others)


@pytest.mark.parametrize("name", ["epsilon", "delta", "noise", "clip", "least"])
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", math.inf, math.nan])
def test_a_budget_is_finite(name, value, tmp_path):
    settings = {"dp-prototypes.epsilon": 6.0, f"dp-prototypes.{name}": value}
    with pytest.raises(pf.UsageError, match=f"{name}=.* is not possible: .* finite number"):
        run(tmp_path, set=settings)


@pytest.mark.parametrize("delta", [0.01, 0.5, 1, 0])
def test_delta_is_small(delta, tmp_path):
    """A mechanism that sends each sample as it is with probability δ keeps (0, δ)."""
    settings = {"dp-prototypes.epsilon": 6.0, "dp-prototypes.delta": delta}
    with pytest.raises(pf.UsageError, match=r"delta=.* is not possible"):
        run(tmp_path, set=settings)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"observe": ["features"]}, "--observe features sends"),
        ({"observe": ["prototypes", "images"]}, "--observe images sends"),
        ({"record_predictions": ["last"]}, "--record-predictions last sends"),
    ],
)
def test_what_single_samples_show_is_not_sent(options, words, tmp_path):
    with pytest.raises(pf.ProtoflError, match=words):
        run(tmp_path, set={"dp-prototypes.epsilon": 6.0}, **options)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
