"""Tests of the built-in partitioners: common properties, and those of each one."""

from __future__ import annotations

import numpy as np
import pytest

import protofl as pf
from protofl.system.options.plugin_options import parse_config
from protofl_plugins.partitioners.dirichlet import Dirichlet, _draw_classes, move_to_small
from protofl_plugins.partitioners.iid import IID
from protofl_plugins.partitioners.pathological import Pathological
from protofl_plugins.partitioners.published import Published, _pathological, _practical
from protofl_plugins.partitioners.shards import Shards

ALL = [Pathological, Dirichlet, Shards, IID]
KEEPS_ALL = [Pathological, Dirichlet, IID]


def balanced(num_samples, num_classes):
    return np.random.default_rng(1).permutation(np.arange(num_samples) % num_classes)


def skewed(num_samples, num_classes):
    """Return labels with class sizes in the proportions of Flowers102: 40 to about 250."""
    weights = np.linspace(40, 258, num_classes)
    sizes = (weights / weights.sum() * num_samples).astype(int)
    labels = np.repeat(np.arange(num_classes), sizes)
    return np.random.default_rng(2).permutation(labels)


def split(plugin, labels, num_classes, num_clients, seed=0, least=14, notes=None, **options):
    config = parse_config(plugin.Config, options, plugin.__name__.lower())
    return plugin().partition(
        labels,
        num_classes,
        num_clients,
        least,
        np.random.default_rng(seed),
        config,
        [] if notes is None else notes,
    )


def table(parts, labels, num_classes):
    return np.stack([np.bincount(labels[rows], minlength=num_classes) for rows in parts])


def draw(sizes, num_clients, beta, generator, **options):
    config = Dirichlet.Config(beta=beta, **{"cap": False, **options})
    return _draw_classes(np.asarray(sizes), num_clients, config, generator)


def refusal(plugin, *args, **kwargs):
    with pytest.raises(pf.UsageError) as caught:
        split(plugin, *args, **kwargs)
    return str(caught.value)


# Every partitioner


@pytest.mark.parametrize("plugin", ALL)
@pytest.mark.parametrize(
    ("labels", "num_classes", "num_clients"),
    [(balanced(12_000, 10), 10, 8), (skewed(40_000, 102), 102, 20)],
    ids=["even", "skewed"],
)
def test_no_row_twice_and_everyone_has_the_minimum(plugin, labels, num_classes, num_clients):
    seed = num_clients
    parts = split(plugin, labels, num_classes, num_clients, seed)
    assert len(parts) == num_clients
    assert all(part.dtype == np.int64 and part.ndim == 1 for part in parts)
    rows = np.concatenate(parts)
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0 and rows.max() < len(labels)
    assert min(map(len, parts)) >= 14
    if plugin in KEEPS_ALL:
        assert len(rows) == len(labels)
        assert (table(parts, labels, num_classes).sum(axis=0) > 0).all()


@pytest.mark.parametrize("plugin", ALL)
def test_same_generator_same_parts_and_other_seed_other_parts(plugin):
    labels = balanced(12_000, 10)
    first, again, other = (split(plugin, labels, 10, 8, seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("plugin", ALL)
def test_too_few_samples_names_the_numbers(plugin):
    message = refusal(plugin, balanced(100, 10), 10, 20, least=14)
    assert "100 samples are too few for 20 clients with at least 14 each" in message
    assert "at most 7 clients" in message


@pytest.mark.parametrize(
    ("plugin", "options"),
    [
        (Pathological, {}),
        (Dirichlet, {}),
        (Dirichlet, {"over": "clients"}),
        (IID, {}),
        (Shards, {"shard_size": 2, "shards_per_client": 2, "classes_per_client": 2}),
    ],
)
def test_ten_thousand_clients(plugin, options):
    labels = balanced(60_000, 10)
    parts = split(plugin, labels, 10, 10_000, least=3, **options)
    assert len(parts) == 10_000 and min(map(len, parts)) >= 3


@pytest.mark.parametrize("plugin", [Dirichlet, IID])
def test_one_client_gets_everything(plugin):
    assert sorted(split(plugin, balanced(50, 10), 10, 1)[0]) == list(range(50))


@pytest.mark.parametrize("plugin", ALL)
def test_docstring_and_options_are_described(plugin):
    assert plugin.__doc__.splitlines()[0].strip()
    assert all(field.description for field in plugin.Config.model_fields.values())


# iid


@pytest.mark.parametrize("num_clients", [1, 7, 8, 33])
def test_iid_sizes_differ_by_at_most_one(num_clients):
    sizes = [len(part) for part in split(IID, balanced(1000, 10), 10, num_clients)]
    assert max(sizes) - min(sizes) <= 1


def test_iid_clients_have_the_whole_distribution():
    labels = balanced(60_000, 10)
    assert np.abs(table(split(IID, labels, 10, 20), labels, 10) - 300).max() < 75


# pathological


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("labels", "num_classes", "num_clients", "default"),
    [
        (balanced(60_000, 10), 10, 20, 2),
        (balanced(60_000, 100), 100, 20, 10),
        (skewed(8_189, 102), 102, 20, 10),
        (balanced(110_000, 200), 200, 20, 20),
    ],
)
def test_pathological_papers_settings(labels, num_classes, num_clients, default, seed):
    counts = table(split(Pathological, labels, num_classes, num_clients, seed), labels, num_classes)
    assert ((counts > 0).sum(axis=1) == default).all()
    owners = (counts > 0).sum(axis=0)
    assert owners.min() >= 1 and owners.max() - owners.min() <= 1
    assert counts.sum() == len(labels)


@pytest.mark.parametrize("num_clients", [3, 10, 17])
@pytest.mark.parametrize("k", [4, 7, 10])
def test_pathological_exact_number_of_distinct_classes(num_clients, k):
    labels = balanced(5000, 10)
    counts = table(split(Pathological, labels, 10, num_clients, classes_per_client=k), labels, 10)
    assert ((counts > 0).sum(axis=1) == k).all()


def test_pathological_neighbours_do_not_share_their_classes():
    labels = balanced(60_000, 10)
    owned = table(split(Pathological, labels, 10, 20), labels, 10) > 0
    assert len({tuple(row) for row in owned[:4]}) > 1  # all the same in the common implementation
    assert len({tuple(row) for row in owned}) > 10
    firsts = {tuple(table(split(Pathological, labels, 10, 20, s), labels, 10)[0] > 0)
              for s in range(8)}  # fmt: skip
    assert len(firsts) > 4


def test_pathological_shares_are_unbalanced():
    labels = balanced(60_000, 10)
    counts = table(split(Pathological, labels, 10, 20), labels, 10)
    shares = counts[counts > 0]
    assert shares.max() > 2 * shares.min()
    assert len(np.unique(counts.sum(axis=1))) > 15


def test_pathological_classes_without_samples_are_left_out():
    labels = balanced(4000, 8)  # classes 8 and 9 of 10 have no samples
    counts = table(split(Pathological, labels, 10, 8), labels, 10)
    assert counts.sum() == 4000
    assert ((counts > 0).sum(axis=1) == 2).all()


def test_pathological_drops_no_class():
    notes, labels = [], skewed(8189, 102)
    raised = table(split(Pathological, labels, 102, 8, notes=notes), labels, 102)
    (note,) = notes
    assert "8 clients have 13 classes each, as 10 would leave 22 of the 102 classes unused" in note
    asked = table(split(Pathological, labels, 102, 8, classes_per_client=13), labels, 102)
    assert (raised == asked).all() and (asked.sum(axis=0) > 0).all()


def test_pathological_more_classes_than_there_are():
    message = refusal(Pathological, balanced(1000, 10), 10, 8, classes_per_client=11)
    assert "more classes per client than there are" in message
    assert "10 classes" in message


def test_pathological_names_the_class_with_too_few_samples():
    labels = np.concatenate([np.full(3, 4), balanced(2000, 4)])
    message = refusal(Pathological, labels, 5, 20, classes_per_client=2)
    assert "class 4 has 3 samples for its 8 clients" in message


def test_pathological_says_when_classes_are_too_small_for_the_minimum():
    labels = np.repeat([0, 1, 2, 3], [500, 500, 4, 4])
    notes = []
    parts = split(Pathological, labels, 4, 4, least=14, notes=notes, classes_per_client=1)
    assert min(map(len, parts)) == 4
    assert len(notes) == 1 and "2 clients have fewer than 14" in notes[0]


# dirichlet


@pytest.mark.parametrize("seed", range(3))
def test_dirichlet_large_beta_is_iid(seed):
    labels = balanced(60_000, 10)
    counts = table(split(Dirichlet, labels, 10, 20, seed, beta=1000), labels, 10)
    assert np.abs(counts / 300 - 1).max() < 0.2


@pytest.mark.parametrize("seed", range(3))
def test_dirichlet_small_beta_gives_a_class_to_one_client(seed):
    labels = balanced(60_000, 10)
    counts = table(split(Dirichlet, labels, 10, 20, seed, beta=0.001, cap=False), labels, 10)
    assert (counts.max(axis=0) > 0.9 * 6000).sum() >= 8


@pytest.mark.parametrize("beta", [5e-324, 1e-308, 1e-12, 1e-4, 0.1, 1.0, 1e9])
def test_dirichlet_is_safe_at_the_ends(beta):
    counts = draw(np.full(50, 600), 20, beta, np.random.default_rng(0))
    assert (counts.sum(axis=1) == 600).all() and (counts >= 0).all()
    if beta < 1e-6:
        assert (counts.max(axis=1) == 600).all()
        assert len(np.unique(counts.argmax(axis=1))) > 10


@pytest.mark.parametrize("beta", [0.05, 0.1, 0.5, 3.0])
def test_dirichlet_shares_have_the_distributions_moments(beta):
    # q_i of Dir(β) over M clients: mean 1/M, variance (M-1) / (M²(Mβ+1)).
    clients = 10
    counts = draw(np.full(5_000, 1000), clients, beta, np.random.default_rng(0))
    shares = counts / 1000
    variance = (clients - 1) / (clients**2 * (clients * beta + 1))
    assert np.allclose(shares.mean(axis=0), 1 / clients, atol=6 * np.sqrt(variance / 5_000))
    assert np.allclose(shares.var(axis=0), variance, rtol=0.15)


def test_dirichlet_favours_no_client_where_samples_are_few():
    counts = draw(np.full(4000, 6), 10, 1e6, np.random.default_rng(0))
    assert np.abs(counts.mean(axis=0) - 0.6).max() < 0.05


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_moves_samples_and_says_so(seed):
    labels = balanced(1000, 10)
    notes = []
    parts = split(Dirichlet, labels, 10, 50, seed, notes=notes, beta=0.001, redraws=2, cap=False)
    assert sorted(np.concatenate(parts)) == list(range(1000))
    sizes = np.array([len(part) for part in parts])
    assert sizes.min() == 14
    assert len(notes) == 1 and "moved" in notes[0] and "in each of 3 draws" in notes[0]


def test_dirichlet_cuts_the_largest_to_one_level():
    owner = np.repeat(np.arange(5), [50, 47, 20, 3, 0])
    received = move_to_small(owner, 5, 14, np.random.default_rng(0))
    assert received == 2
    assert np.bincount(owner).tolist() == [36, 36, 20, 14, 14]


def test_dirichlet_moves_as_few_as_needed_from_the_largest():
    labels = np.repeat([0, 1, 2], [1000, 400, 10])
    notes = []
    parts = split(Dirichlet, labels, 3, 3, 1, notes=notes, beta=1e-9, redraws=0, cap=False)
    sizes = sorted(len(part) for part in parts)
    drawn = draw(np.array([1000, 400, 10]), 3, 1e-9, np.random.default_rng(1)).sum(axis=0)
    lacking = np.maximum(14 - drawn, 0).sum()
    assert f"moved {lacking} samples" in notes[0]
    assert sizes[0] == 14 and sizes[-1] == drawn.max() - lacking


def test_dirichlet_redraws_before_it_moves():
    labels = balanced(1797, 10)
    without, redrawn = [], []
    for seed in range(20):
        split(Dirichlet, labels, 10, 8, seed, notes=without, redraws=0, cap=False)
        split(Dirichlet, labels, 10, 8, seed, notes=redrawn, redraws=20, cap=False)
    assert len(without) > 2
    assert not redrawn


def test_dirichlet_exactly_as_many_samples_as_needed():
    parts = split(Dirichlet, balanced(140, 10), 10, 10)
    assert [len(part) for part in parts] == [14] * 10


def test_dirichlet_own_minimum_overrides():
    labels = balanced(2000, 10)
    parts = split(Dirichlet, labels, 10, 20, min_samples=60)
    assert min(map(len, parts)) >= 60
    message = refusal(Dirichlet, labels, 10, 20, min_samples=101)
    assert "at least 101 each" in message and "a lower partition.min_samples" in message


@pytest.mark.parametrize("beta", [0, -1, "nan", "inf"])
def test_dirichlet_range_of_beta(beta):
    assert "beta" in refusal(Dirichlet, balanced(1000, 10), 10, 8, beta=beta)


def published_dirichlet(num_samples, num_classes, num_clients, beta, generator, cap, least=40):
    """Return counts [C, M] of balanced classes by a slow version of the published construction."""
    while True:
        counts = np.zeros((num_classes, num_clients), dtype=int)
        size = num_samples // num_classes
        for c in range(num_classes):
            shares = generator.dirichlet(np.full(num_clients, beta))
            if cap:
                for i in range(num_clients):
                    if counts[:, i].sum() >= num_samples / num_clients:
                        shares[i] = 0.0
                shares = shares / shares.sum()
            ends = [int(end) for end in size * np.cumsum(shares)[:-1]]
            counts[c] = np.diff([0, *ends, size])
        if counts.sum(axis=0).min() >= least:
            return counts


def majority_guess(counts):
    return counts.max(axis=1).sum() / counts.sum()


@pytest.mark.parametrize(("cap", "low", "high"), [(True, 0.68, 0.76), (False, 0.57, 0.63)])
def test_dirichlet_cap_changes_the_task_on_cifar10(cap, low, high):
    labels = balanced(60_000, 10)
    guesses, sizes = [], []
    for seed in range(8):
        counts = table(split(Dirichlet, labels, 10, 20, seed, cap=cap), labels, 10)
        guesses.append(majority_guess(counts))
        sizes.append(counts.sum(axis=1).max())
    assert low < np.mean(guesses) < high
    # A client can exceed N/M by at most one class.
    assert bool(max(sizes) < 3000 + 6000) is cap


@pytest.mark.parametrize(("cap", "classes"), [(True, 43.5), (False, 47.4)])
def test_dirichlet_cap_changes_the_number_of_classes_on_cifar100(cap, classes):
    labels = balanced(60_000, 100)
    owned = [
        (table(split(Dirichlet, labels, 100, 20, seed, cap=cap), labels, 100) > 0).sum(axis=1)
        for seed in range(8)
    ]
    assert abs(np.mean(owned) - classes) < 0.7


@pytest.mark.parametrize("cap", [True, False])
def test_dirichlet_follows_the_published_construction(cap):
    # Means over draws; the bounds are four standard errors.
    labels, ours, slow = balanced(2000, 10), [], []
    for seed in range(150):
        options = {"cap": cap, "rounding": "down", "min_samples": 40, "redraws": 10_000}
        ours.append(table(split(Dirichlet, labels, 10, 10, seed, beta=0.3, **options), labels, 10))
        generator = np.random.default_rng(1000 + seed)
        slow.append(published_dirichlet(2000, 10, 10, 0.3, generator, cap).T)
    for measure in (
        majority_guess,
        lambda counts: (counts > 0).sum(axis=1).mean(),
        lambda counts: (counts[-1] > 0).sum(),
        lambda counts: counts.sum(axis=1).std(),
    ):
        a, b = (np.array([measure(counts) for counts in found]) for found in (ours, slow))
        assert abs(a.mean() - b.mean()) <= 4 * np.sqrt((a.var() + b.var()) / 150)


def test_dirichlet_published_rounding_gives_the_traffic_of_the_tables():
    labels = balanced(60_000, 100)
    owned = [
        (table(split(Dirichlet, labels, 100, 20, s, rounding="down"), labels, 100) > 0).sum(axis=1)
        for s in range(8)
    ]
    assert round(np.mean(owned) * 20 * 512 / 1e6, 2) == 0.46  # FedKTL, Table 5
    assert np.mean(owned, axis=0)[-1] > 75  # an artefact: the last client gets nearly every class


def test_dirichlet_capped_clients_get_nothing_of_later_classes():
    counts = draw(np.full(30, 100), 6, 0.3, np.random.default_rng(0), cap=True)
    before = np.cumsum(counts, axis=0) - counts
    assert (counts[before >= 500] == 0).all()
    assert (before >= 500).any()
    assert (counts.sum(axis=1) == 100).all()


@pytest.mark.parametrize(
    ("options", "num_samples", "least"),
    [
        ({}, 4000, 40),  # min(40, N/M/2)
        ({}, 1200, 30),
        ({"cap": False}, 4000, 14),
        ({"min_samples": 2}, 4000, 2),  # FedSA's 1: a client needs one to train and one to test
    ],
)
def test_dirichlet_minimum(options, num_samples, least):
    labels = balanced(num_samples, 10)
    smallest = min(
        len(part)
        for seed in range(12)
        for part in split(Dirichlet, labels, 10, 20, seed, beta=0.01, redraws=0, **options)
    )
    assert smallest == least


# dirichlet, over clients


@pytest.mark.parametrize("num_clients", [7, 20])
def test_dirichlet_over_clients_has_equal_sizes_and_loses_nothing(num_clients):
    labels = skewed(5000, 12)
    parts = split(Dirichlet, labels, 12, num_clients, over="clients")
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))


@pytest.mark.parametrize("beta", [0.05, 0.5, 3.0])
def test_dirichlet_over_clients_has_the_distributions_moments(beta):
    # The first clients find many more samples of every class than they take.
    classes, first = 8, []
    for seed in range(300):
        labels = balanced(8 * 400, classes)
        counts = table(
            split(Dirichlet, labels, classes, 8, seed, beta=beta, over="clients"), labels, classes
        )
        first.append(counts / 400)
    shares = np.array(first)
    assert np.allclose(shares.mean(axis=(0, 1)), 1 / classes)  # all samples are dealt
    # Compare a client's largest share with plain draws of Dir(β), which ignore what is left.
    plain = np.random.default_rng(1).dirichlet(np.full(classes, beta), 20_000).max(axis=1).mean()
    assert abs(shares.max(axis=2).mean() - plain) < 0.12
    assert shares.max(axis=2).mean() < plain + 0.02  # used-up classes only make shares more even


def test_dirichlet_over_clients_follows_the_sizes_of_unequal_classes():
    labels = np.repeat([0, 1, 2], [3000, 900, 100])
    counts = table(split(Dirichlet, labels, 3, 10, beta=1e4, over="clients"), labels, 3)
    assert np.abs(counts.mean(axis=0) - [300, 90, 10]).max() < 1e-9
    assert np.abs(counts - [300, 90, 10]).max() < 45


@pytest.mark.parametrize("beta", [5e-324, 1e-12, 1e9])
def test_dirichlet_over_clients_is_safe_at_the_ends(beta):
    labels = balanced(600, 5)  # class 5 of 6 has no samples
    counts = table(split(Dirichlet, labels, 6, 5, beta=beta, over="clients"), labels, 6)
    assert (counts.sum(axis=1) == 120).all()
    if beta < 1:
        assert (counts.max(axis=1) >= 60).all()


# shards


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("num_classes", "k", "distinct"), [(10, None, 3), (10, 5, 5), (100, None, 30), (100, 50, 40)]
)
def test_shards_papers_settings(num_classes, k, distinct, seed):
    labels, notes = balanced(45_000, num_classes), []
    parts = split(Shards, labels, num_classes, 20, seed, notes=notes, classes_per_client=k)
    counts = table(parts, labels, num_classes)
    assert (counts.sum(axis=1) == 800).all()
    assert (counts % 20 == 0).all()
    assert ((counts > 0).sum(axis=1) == distinct).all()
    owners = (counts > 0).sum(axis=0)
    assert owners.max() - owners.min() <= 1
    per_class = counts[counts > 0] // 20
    assert per_class.max() - per_class.min() <= 1
    assert "29000 of 45000 samples are left out (20 clients × 40 shards × 20" in notes[0]
    assert len(notes) == (2 if k == 50 else 1)


def test_shards_nothing_left_out_nothing_said():
    notes = []
    parts = split(Shards, balanced(8000, 10), 10, 10, notes=notes, classes_per_client=5)
    assert sorted(np.concatenate(parts)) == list(range(8000))
    assert not notes


@pytest.mark.parametrize("num_clients", [8, 10, 20, 33, 87])
@pytest.mark.parametrize("labels", [balanced(1797, 10), skewed(2000, 10)], ids=["even", "skewed"])
def test_shards_names_the_largest_number_that_works(labels, num_clients):
    seed = num_clients
    shards = int((np.bincount(labels) // 20).sum())
    message = refusal(Shards, labels, 10, num_clients, seed, least=2)
    assert f"the data make {shards} shards" in message
    value = int(message.split("the largest value that works is shards_per_client=")[1].split()[0])
    assert value >= 0.8 * (shards // num_clients)
    parts = split(Shards, labels, 10, num_clients, seed, least=2, shards_per_client=value)
    assert [len(part) for part in parts] == [20 * value] * num_clients
    refusal(Shards, labels, 10, num_clients, seed, least=2, shards_per_client=value + 1)


def test_shards_more_clients_than_shards():
    message = refusal(Shards, balanced(400, 10), 10, 30, least=2)
    assert "no shards_per_client works" in message and "smaller shard_size" in message


def test_shards_more_classes_than_there_are():
    message = refusal(Shards, balanced(1000, 10), 10, 2, classes_per_client=11)
    assert "more classes per client than there are" in message


def test_shards_clients_below_a_batch_are_told():
    notes = []
    split(Shards, balanced(1000, 10), 10, 5, notes=notes, shards_per_client=2, shard_size=5)
    assert "clients have 10 samples, fewer than 14" in notes[-1]


# published


MNIST = (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)


def published(sizes, num_clients, setting, notes=None, **options):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    config = Published.Config(setting=setting, **options)
    stream = np.random.default_rng(0)
    told = [] if notes is None else notes
    parts = Published().partition(labels, len(sizes), num_clients, 14, stream, config, told)
    return table([np.concatenate(part) for part in parts], labels, len(sizes))


def slow_practical(sizes, num_clients, least, seed):
    """Assign sample by sample; return the counts and the number of draws."""
    stream, tries = np.random.RandomState(seed), 0
    while True:
        tries += 1
        owners = [[] for _ in range(num_clients)]
        for c, size in enumerate(sizes):
            stream.shuffle(list(range(size)))
            q = stream.dirichlet([0.1] * num_clients)
            q = [
                0 if len(o) >= sum(sizes) / num_clients else p
                for p, o in zip(q, owners, strict=True)
            ]
            edges = [int(share * size) for share in np.cumsum(np.array(q) / sum(q))[:-1]]
            for row in range(size):
                owners[sum(row >= edge for edge in edges)].append(c)
        if min(map(len, owners)) >= least:
            classes = range(len(sizes))
            return np.array([[o.count(c) for c in classes] for o in owners]), tries


def test_published_practical_is_the_split_that_was_published():
    # PFLlib's README shows its MNIST split of 20 clients, β = 0.1: these are clients 0 and 1.
    counts = published(MNIST, 20, "practical")
    assert counts[0].tolist() == [140, 890, 0, 0, 1, 319, 0, 29, 1067, 184]
    assert counts[1].tolist() == [5, 0, 27, 0, 0, 19, 335, 0, 6, 107]
    assert counts.sum(axis=0).tolist() == list(MNIST)
    assert counts.sum(axis=1).min() >= 40


def test_published_practical_draws_until_all_have_enough():
    sizes = [300, 200, 250, 220, 260]
    expected, tries = slow_practical(sizes, 8, 40, seed=3)
    assert tries > 1
    assert (published(sizes, 8, "practical", seed=3) == expected).all()


@pytest.mark.parametrize("setting", ["practical", "pathological"])
def test_the_published_cut_is_scikit_learns_on_the_same_stream(setting):
    from sklearn.model_selection import train_test_split

    labels = np.repeat(np.arange(10), 700)
    rows = [np.flatnonzero(labels == c) for c in range(10)]
    stream = np.random.RandomState(1)
    if setting == "practical":
        whole = _practical(rows, 20, 0.1, 40, stream)
    else:
        whole = _pathological(rows, 20, 2, 40, stream)
    slow = [train_test_split(part, train_size=0.75, random_state=stream) for part in whole]
    config = Published.Config(setting=setting)
    parts = Published().partition(labels, 10, 20, 14, np.random.default_rng(5), config, [])
    for (train, test), (train_slow, test_slow) in zip(parts, slow, strict=True):
        assert train.tolist() == train_slow.tolist() and test.tolist() == test_slow.tolist()


def test_published_practical_of_fedsa_takes_the_first_draw():
    sizes = [300, 200, 250, 220, 260]
    first, tries = slow_practical(sizes, 8, 1, seed=3)
    assert tries == 1 and (published(sizes, 8, "practical", seed=3, least=1) == first).all()
    assert (published(sizes, 8, "practical", seed=3) != first).any()


@pytest.mark.slow
def test_published_practical_gives_up_with_words():
    labels = balanced(2000, 10)
    message = refusal(Published, labels, 10, 50, setting="practical", beta=0.01)
    assert "in 1000 draws the smallest client had at most" in message
    assert "a larger beta than 0.01" in message


def test_published_pathological_deals_classes_to_neighbours():
    counts = published([7000] * 10, 20, "pathological")
    for client, owned in enumerate(counts > 0):
        first = client // 4 * 2
        assert np.flatnonzero(owned).tolist() == [first, first + 1]
    # The stream's first draws: three sizes in [175, 1750) for class 0, the rest for client 3.
    drawn = np.random.RandomState(1).randint(175, 1750, 3)
    assert counts[:4, 0].tolist() == [*drawn, 7000 - drawn.sum()]
    assert (counts[3::4].max(axis=1) > 2 * counts[:3].max()).all()


def test_published_pathological_drops_classes_as_published_and_says_so():
    notes: list[str] = []
    sizes = np.bincount(skewed(8_189, 102))
    counts = published(sizes, 20, "pathological", notes)
    assert np.flatnonzero(counts.sum(axis=0) == 0).tolist() == [100, 101]
    assert f"no client has the {sizes[100:].sum()} samples of the last classes" in notes[0]


def test_published_splits_do_not_follow_the_seed_of_the_run():
    labels = balanced(12_000, 10)
    for setting in ("practical", "pathological"):
        first, other = (split(Published, labels, 10, 8, s, setting=setting) for s in (3, 4))
        for parts in zip(first, other, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(*parts, strict=True))
        one, two = (published([1200] * 10, 8, setting, seed=seed) for seed in (1, 2))
        assert (one != two).any()


def test_published_pathological_leaves_no_client_without_samples():
    labels = np.repeat([0, 1], 20)
    message = refusal(Published, labels, 4, 2, setting="pathological")
    assert "1 of 2 clients get no sample" in message


def test_published_pathological_names_a_class_that_is_too_small():
    labels = np.concatenate([np.full(3, 4), balanced(2000, 4)])
    message = refusal(Published, labels, 5, 20, setting="pathological")
    assert "class 4 has 3 samples for 4 clients" in message
