"""Tests of the attacks of ``protofl leak``: positive and negative controls, and all results."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, mannwhitneyu, norm
from slowness import SLOW, quick

import protofl as pf
from protofl_privacy import intervals, leak
from protofl_privacy.evidence import Evidence
from protofl_privacy.labels import LabelLeak, label_leaks
from protofl_privacy.membership import MembershipLeak, membership_leaks
from protofl_privacy.moments import moment_leaks
from protofl_privacy.reconstruction import ReconstructionLeak, reconstruction_leaks
from protofl_privacy.regression import Regression
from protofl_privacy.report_section import section
from protofl_privacy.sentences import about_labels, about_members, about_samples
from protofl_privacy.shadow import _inside, shadow_runs


def noise(tmp_path, samples, columns=20, classes=4):
    """A table of noise with random labels: a model learns nothing of it but the samples."""
    generator = np.random.default_rng(0)
    x = generator.random((samples, columns), dtype=np.float32)
    np.savez(tmp_path / "noise.npz", x_train=x, y_train=generator.integers(0, classes, samples))
    return f"npz:{tmp_path / 'noise.npz'}"


WIDE = {"models.only": "mlp2"}


def trained(tmp_path, method, data, **options):
    given = {
        "models": "mlp", "dataset": data, "partition": "iid", "clients": 4, "rounds": 1,
        "batch_size": 16, "lr": 0.1, "feature_dim": 32, "record_uploads": True, "keep": "last",
        "out": tmp_path / "run", "data_dir": tmp_path / "cache", "backend": "local",
        "device": "cpu", "engine": "eager", "dry_run": False, "set": {"dataset.kind": "table"},
    }  # fmt: skip
    given["set"] |= options.pop("set", {})
    return pf.load_run(pf.run(method, **(given | options)).folder)


# --- intervals ------------------------------------------------------------------------------------


def test_areas_are_those_of_the_rank_test_and_cover_the_truth():
    generator = np.random.default_rng(1)
    a, b = generator.normal(0.5, 1, 60).round(1), generator.normal(0, 1, 40).round(1)
    found = intervals.area(a, b)
    assert found.value == pytest.approx(mannwhitneyu(a, b).statistic / (60 * 40))
    truth, covered = 0.6381631950841185, 0  # Φ(0.5/√2)
    for _ in range(200):
        each = intervals.area(generator.normal(0.5, 1, 60), generator.normal(0, 1, 40))
        covered += each.low <= truth <= each.high
    assert 180 <= covered <= 199, "a 95 % interval"


@pytest.mark.parametrize(
    ("positives", "negatives"),
    quick([(2, 2), (2, 20), (2, 200), (3, 10), (5, 5), (5, 200), (20, 20)], (2, 200)),
)
@pytest.mark.parametrize(("shift", "spread"), [(0, 1), (2, 1), (2, 3)])
def test_intervals_of_few_samples_cover_the_truth(positives, negatives, shift, spread):
    """1,000 draws. DeLong's interval has the truth in 65 % of them for 2 and 200 samples."""
    draw, covered = np.random.default_rng([positives, negatives, shift, spread]), 0
    truth = norm.cdf(shift / math.sqrt(1 + spread**2))
    for _ in range(1000):
        high, low = draw.normal(shift, spread, positives), draw.normal(0, 1, negatives)
        found = intervals.area(high, low)
        covered += found.low <= truth <= found.high
    # The exception: the spread of few positives is larger, and they are compared with many.
    assert covered >= (890 if (positives, negatives, spread) == (5, 200, 3) else 935)


def test_equal_scores_and_shares_have_the_interval_of_wilson():
    equal = intervals.area(np.ones(4), np.ones(9))
    assert (equal.value, equal.units) == (0.5, 13)
    for number, hits, total in ((equal, 2, 4), (intervals.share(7, 9), 7, 9)):
        wilson = binomtest(hits, total).proportion_ci(method="wilson")
        assert (number.low, number.high) == pytest.approx((wilson.low, wilson.high))


def test_rates_at_few_false_positives_need_enough_samples():
    positives, negatives = np.arange(50, 100), np.arange(100) / 2
    found = intervals.rate_at(positives, negatives, 0.01)
    assert found.value == 1.0 and found.low > 0.9
    assert (
        intervals.rate_at(positives, negatives, 0.001).why == "needs 1000 held-out samples, has 100"
    )
    assert intervals.area(np.ones(20), np.zeros(20)).low < 1, "no certainty from 20 samples"


# --- membership -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "lg-fedavg"])
def test_a_model_that_memorises_is_found(tmp_path, method):
    """Positive control: training and other samples are told apart, AUC > 0.9."""
    run = trained(tmp_path, method, noise(tmp_path, 320), local_epochs=400, set=WIDE)
    best = max(each.auc.value for each in membership_leaks(Evidence(run)))
    assert best > 0.9
    for each in membership_leaks(Evidence(run)):
        assert each.others.value == pytest.approx(0.5, abs=0.1), "others' samples are not memorised"


def test_a_prototype_of_one_sample_is_found_and_others_are_not(tmp_path):
    """Positive control: a class of one sample. Negative: samples that no upload has seen."""
    data = noise(tmp_path, 3000, columns=8)
    options = {"partition": "dirichlet", "clients": 8, "local_epochs": 1, "lr": 0.001}
    run = trained(tmp_path, "fedproto", data, batch_size=256, **options)
    attacks = membership_leaks(Evidence(run, samples=5000))
    plain = next(each for each in attacks if each.attacker == "insider")
    assert plain.by_size["1"].value > 0.98
    assert plain.others.value == pytest.approx(0.5, abs=0.03)
    assert plain.auc.value == pytest.approx(0.5, abs=0.1), "large classes hide their samples"


@SLOW
def test_an_upload_that_never_saw_the_samples_gives_nothing_away(tmp_path):
    """Negative control of every attack and rule: AUC 0.5 ± 0.03."""
    data = noise(tmp_path, 6000)
    run = trained(tmp_path, "lg-fedavg", data, local_epochs=20, batch_size=64)
    for each in membership_leaks(Evidence(run, samples=6000)):
        assert each.others.value == pytest.approx(0.5, abs=0.03), each


@SLOW
def test_shadow_runs_find_more_than_a_threshold(tmp_path):
    run = trained(tmp_path, "fedavg", noise(tmp_path, 320), local_epochs=60, set=WIDE)
    shadows = shadow_runs(run, 8, tmp_path / "leak", at_once=0)
    evidence = Evidence(run)
    assert len(shadows) == 8
    plans = [Evidence(each) for each in shadows]
    pool = {*evidence.members(1).tolist(), *evidence.held_out(1).tolist()}
    assert all({*each.members(1).tolist()} < pool for each in plans)
    found = {each.rule: each.auc for each in membership_leaks(evidence, plans)}
    assert found["lira"].value > found["threshold"].value
    again = shadow_runs(run, 8, tmp_path / "leak", at_once=0)
    assert [each.folder for each in again] == [each.folder for each in shadows], "runs are reused"


@SLOW
def test_uploads_without_rows_give_nothing_away(tmp_path):
    """As `minimum-count` makes them of clients whose classes are small."""
    given = {"transforms": ["minimum-count"], "set": {"minimum-count.n": 10_000}, "clients": 3}
    run = trained(tmp_path, "fedproto", noise(tmp_path, 120), **given)
    found = leak.measure(run, budget=60)
    assert all(each.auc.value is None for each in found.membership)
    by_key = {row["key"]: row for row in leak.key_table(found)}
    assert by_key["prototypes"]["membership"] == "not measured: no sample has a score"
    assert by_key["prototypes"]["reconstruction"] == "not measured: no rows were sent"
    assert {each.behind for each in found.reconstructions.leaks} == {"1", "2", "5", "10"}


def test_each_sample_is_in_some_shadow_runs_and_out_of_others():
    inside = _inside(8, 101, 75, np.random.default_rng(0))
    times = inside.sum(0)
    assert {*times.tolist()} <= {5, 6, 7} and inside.shape == (8, 101)
    assert abs(inside.sum(1).mean() - 75) < 3


# --- labels, reconstruction -----------------------------------------------------------------------


@SLOW
def test_labels_are_read_from_counts_classes_and_heads(tmp_path):
    data = noise(tmp_path, 600)
    given = {"partition": "pathological", "clients": 6, "local_epochs": 3}
    given["set"] = {"partition.classes_per_client": 2}
    run = trained(tmp_path, "fedproto", data, add=["upload_payload=lg-fedavg"], **given)
    found = {each.key: each for each in label_leaks(Evidence(run))}
    assert found["counts"].exact and found["counts"].distance.value == 0
    assert found["prototypes"].presence.value == 1 and not found["prototypes"].exact
    assert 0 < found["prototypes"].distance.value < found["prototypes"].guess.value
    assert found["head/*"].presence.value > 0.9


def test_a_regression_learns_and_does_not_invent():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 5))
    fitted = Regression(x[:200], np.tanh(x[:200, :2]), seed=0)
    assert np.abs(fitted(x[200:]) - np.tanh(x[200:, :2])).mean() < 0.1
    empty = Regression(x[:200], generator.normal(size=(200, 2)), seed=0)
    assert np.abs(empty(x[200:])).mean() < 0.4


@pytest.mark.slow
def test_one_sample_is_reconstructed_and_a_mean_of_many_is_not(tmp_path):
    run = trained(tmp_path, "fedproto", noise(tmp_path, 400), local_epochs=5)
    found = {
        (e.attacker, e.behind): e for e in reconstruction_leaks(Evidence(run, clients=1)).leaks
    }
    assert found["insider", "1"].gain.low > 3, "dB over the class mean"
    assert found["insider", "1"].gain.value > 3 * found["insider", "10"].gain.value
    assert found["colluder", "1"].gain.value < 1, "another extractor does not help"
    assert found["insider", "1"].ssim.why == "the samples are not images"


# --- the whole ------------------------------------------------------------------------------------


@SLOW
def test_a_number_of_samples_that_is_hidden_is_not_called_exact(tmp_path):
    pytest.importorskip("dp_accounting")
    given = {"local_epochs": 1, "clients": 3, "rounds": 1}
    for folder, settings in (("plain", {}), ("hidden", {"dp-sgd.noise": 1.0})):
        (tmp_path / folder).mkdir()
        options = {"transforms": ["dp-sgd"], "set": settings} if settings else {}
        data = noise(tmp_path / folder, 200)
        run = trained(tmp_path / folder, "lg-fedavg", data, **given, **options)
        found = {row["key"]: row for row in leak.key_table(leak.measure(run, clients=1, budget=60))}
        says = found["samples"]["labels"]
        assert says.startswith("not the number" if settings else "the number of samples, exact")


@SLOW
def test_a_result_has_every_key_and_a_section_on_the_page(tmp_path):
    run = trained(tmp_path, "fedproto", noise(tmp_path, 200), local_epochs=1, clients=3)
    assert section(run) is None
    found = leak.measure(run, clients=1, budget=60)
    leak.write(found, (20,))
    values = json.loads((run.folder / "leak" / "leak.json").read_text(encoding="utf-8"))
    by_key = {row["key"]: row for row in values["keys"]}
    assert by_key.keys() == {"prototypes", "counts", "classes"}
    assert by_key["counts"]["labels"] == "counts of all classes, exact"
    assert by_key["classes"]["labels"] == "the client's classes, exact"
    assert by_key["counts"]["membership"].startswith("not measured")
    page = pf.report(run)
    assert (
        "What the uploads reveal" in page and "An attack that finds nothing proves nothing" in page
    )


HIGH, WEAK = intervals.Number(0.95, 0.9, 0.97), intervals.Number(0.54, 0.51, 0.57)
NONE = intervals.Number(None)


def labels(key="head/*", exact=False, presence=WEAK, distance=HIGH, guess=WEAK):
    return LabelLeak(key, "", exact, presence, distance, guess)


def members(auc=WEAK, **by_size):
    sizes = {"1": WEAK, "2": WEAK, "3–5": WEAK, "6–10": WEAK} | by_size
    return MembershipLeak("prototypes", "insider", "threshold", auc, {}, 1, 1, WEAK, sizes)


def decoded(behind, gain):
    numbers = [NONE] * 2 + [gain] + [NONE] * 3
    return ReconstructionLeak("prototypes", "insider", behind, 9, *numbers)


@pytest.mark.parametrize(
    ("part", "leaks", "true", "said"),
    [
        (0, [labels("counts", exact=True)], (), "The server knows each client's class counts ex"),
        (0, [], ("classes", "samples"), "The server knows exactly which classes each client has."),
        (0, [labels(presence=HIGH)], (), "The server finds which classes a client has (AUC 0.950"),
        (0, [labels(presence=NONE, distance=WEAK, guess=HIGH)], (), "estimates a client's class"),
        (0, [labels(presence=WEAK)], ("samples",), "No attack here finds which classes a client"),
        (1, [members(HIGH)], (), "An insider tells training samples from others (AUC 0.950"),
        (
            1,
            [members(), members(**{"1": HIGH, "2": HIGH})],
            (),
            "finds members of classes of size 1 or 2.",
        ),
        (1, [members()], (), "No attack here tells training samples from others (AUC 0.540"),
        (1, [members(NONE)], (), "Membership was not measured"),
        (2, [decoded("sent", intervals.Number(3.0, 2.5, 3.5))], (), "from the uploads, 3.0 [2.5"),
        (2, [decoded("sent", intervals.Number(0.2, -0.1, 0.5))], (), "No attack here decodes samp"),
        (2, [decoded("1", HIGH)], (), "No attack here decodes samples from the uploads better"),
        (2, [], (), "Reconstruction was not measured"),
    ],
)
def test_sentences_say_what_is_found_and_no_more(part, leaks, true, said):
    sentence = (about_labels, about_members, about_samples)[part]
    assert said in sentence(leaks, *([true], [], [{}])[part])


def moments_found(tmp_path, method, **options):
    """Return the evidence of a run, what its moments give away, and what they should."""
    given = {"partition": "dirichlet", "clients": 8, "out": tmp_path / method}
    run = trained(tmp_path, method, noise(tmp_path, 400, classes=6), set=options, **given)
    counts = torch.as_tensor(run.split().train_counts)
    ones, rows = int((counts == 1).sum()), int((counts > 0).sum())
    few = int(((counts > 0) & (counts < 32)).sum())
    small = int((counts.sum(1) < 32).sum())
    assert 0 < ones < rows and 0 < small < 8
    evidence = Evidence(run)
    return evidence, moment_leaks(evidence), {
        "feature_sums": (ones, f"classes whose only feature it is, exactly: {ones} of {rows}"),
        "feature_squares": (
            ones, f"classes whose only feature it is, up to signs: {ones} of {rows}"
        ),
        "gram": (small, f"clients whose features it spans, exactly: {small} of 8"),
        "class_grams": (few, f"classes whose features it spans, exactly: {few} of {rows}"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("head", "key"), [("nb-diag", "feature_squares"), ("lda", "gram"), ("qda", "class_grams")]
)
def test_moments_of_few_samples_give_their_features_away(head, key, tmp_path):
    """The numbers are those of the split, and noise hides what moments give away."""
    evidence, found, wanted = moments_found(tmp_path, "gh-ofl", head=head)
    assert found == {name: wanted[name] for name in ("feature_sums", key)}
    for client in evidence.clients:
        for name in found:
            sent = evidence.uploads[client][name]
            noise_of = torch.Generator().manual_seed(client)
            evidence.uploads[client][name] = sent + 0.1 * torch.randn(
                sent.shape, generator=noise_of
            )
    assert all(count == 0 for count, _ in moment_leaks(evidence).values())
    assert "No sum or second moment" in about_samples([], moment_leaks(evidence))


def test_the_report_has_what_moments_give_away(tmp_path):
    evidence, found, _ = moments_found(tmp_path, "fedcgs")
    measured = leak.measure(evidence.run, budget=50)
    cells = {row["key"]: row["reconstruction"] for row in leak.key_table(measured)}
    assert {*found} == {"feature_sums", "gram"}
    assert all(cells[key] == words for key, (_, words) in found.items())
    words = f"give features of samples away: feature_sums ({found['feature_sums'][1]}), gram ("
    assert words in measured.to_values()["summary"][2]


def test_runs_without_what_is_needed_are_refused(tmp_path):
    data = noise(tmp_path, 200)
    run = trained(tmp_path, "fedproto", data, record_uploads=False, clients=3)
    with pytest.raises(pf.UsageError, match="has not recorded uploads"):
        leak.measure(run)
    local = trained(tmp_path, "local", data, out=tmp_path / "local", clients=3)
    with pytest.raises(pf.UsageError, match="local sends nothing"):
        leak.measure(local)
