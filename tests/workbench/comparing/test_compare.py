"""Tests of `protofl.compare`: pairs, groups, errors, and output formats."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil

import numpy as np
import pytest
import scipy.stats

import protofl as pf
from protofl_workbench.comparing.trials import accuracies_by_architecture


def ends(*values):
    """Return trials of two rounds and two clients that end at `values` and were better before."""
    return [[[v + 0.05, v + 0.05], [v - 0.02, v + 0.02]] for v in values]


A, B = [0.5, 0.6, 0.55, 0.7, 0.65], [0.55, 0.72, 0.6, 0.69, 0.8]


@pytest.fixture
def two(write):
    return [write("a", ends(*A)), write("b", ends(*B), method="fedtgp")]


def table(found, name="final"):
    (own,) = [table for table in found.tables if table.name == name]
    return own


def row(found, label, name="final"):
    (own,) = [row for row in table(found, name).rows if row.label == label]
    return own


def test_pairs_are_compared(two):
    found = pf.compare(two)
    base, own = row(found, "fedproto"), row(found, "fedtgp")
    assert (base.mean, base.std) == pytest.approx((np.mean(A), np.std(A)))
    assert base.difference is None and table(found).baseline == "fedproto"
    d, each = own.difference, np.subtract(B, A)
    assert (d.count, d.better, d.worse) == (5, 4, 1)
    assert (d.mean, d.std) == pytest.approx((each.mean(), each.std()))
    assert (
        d.p == d.holm == pytest.approx(scipy.stats.wilcoxon(each.round(9), method="exact").pvalue)
    )
    assert d.low < d.mean < d.high
    assert row(found, "fedtgp", "best").mean == pytest.approx(np.mean(B) + 0.05)
    assert any("cannot be below 0.0625" in note for note in found.notes)


def test_pairs_are_of_one_seed_wherever_they_lie(write):
    """Trial k of seed s has the seed s + k. Seeds that only one side has are ignored."""
    one = write("one", ends(*A), seed=3)
    others = [
        write(f"b{s}", ends(v), method="fedtgp", seed=s) for s, v in ((5, 0.9), (4, 0.8), (9, 0))
    ]
    d = row(pf.compare([one, *others]), "fedtgp").difference
    assert d.count == 2
    assert d.mean == pytest.approx(((0.8 - 0.6) + (0.9 - 0.55)) / 2)


def test_less_is_better_of_some_figures(write):
    runs = [write("a", [[[0.5, 0.9]]]), write("b", [[[0.7, 0.9]]], method="fedtgp")]
    d = row(pf.compare(runs, "std"), "fedtgp", "std").difference
    assert d.mean == pytest.approx(-0.1) and (d.better, d.worse) == (1, 0)


def test_clients_that_are_worse_off_than_alone(write):
    alone = [[[0.1] * 3, [0.9, 0.5, 0.4]], [[0.1] * 3, [0.5, 0.5, 0.5]]]
    runs = [
        write("local", alone, method="local"),
        write("some", [[[1.0] * 3, [0.7, 0.4, 0.6]], [[1.0] * 3, [0.5, 0.6, 0.1]]]),
        write(
            "none", [[[0.0] * 3, [1.0, 0.5, 0.4]], [[0.0] * 3, [0.5, 0.6, 0.5]]], method="fedtgp"
        ),
    ]
    for names in ((), ("worse-off", "worse-off-chance", "worse-off-by")):
        found = pf.compare(runs, names)
        assert row(found, "fedproto", "worse-off").values == (2.0, 1.0)
        lost = row(found, "fedproto", "worse-off-by").values
        assert lost == pytest.approx(((0.2 + 0.1) / 2, 0.4))
        assert row(found, "fedtgp", "worse-off").values == (0.0, 0.0)
        assert all(map(math.isnan, row(found, "fedtgp", "worse-off-by").values))
        assert row(found, "local", "worse-off").values == (0.0, 0.0)
        # Half of the clients whose accuracy differs: three and two clients; one and one.
        assert row(found, "fedproto", "worse-off-chance").values == (1.5, 1.0)
        assert row(found, "fedtgp", "worse-off-chance").values == (0.5, 0.5)
        assert any(note.startswith("worse off by chance: half of the") for note in found.notes)
        assert not any("was finite" in note for note in found.notes)  # no client loses in fedtgp


def test_chance_is_what_equally_good_methods_give(write):
    """The accuracies of both methods have one distribution."""
    draws = np.random.default_rng(0)
    alone, other = ([draws.integers(0, 31, (1, 10)) / 30 for _ in range(200)] for _ in range(2))
    runs = [write("local", [t.tolist() for t in alone], method="local")]
    runs.append(write("other", [t.tolist() for t in other]))
    found = pf.compare(runs, ["worse-off", "worse-off-chance"])
    means = [row(found, "fedproto", name).mean for name in ("worse-off", "worse-off-chance")]
    assert means[0] == pytest.approx(means[1], abs=0.3) and 4.5 < means[1] < 5


def test_worse_off_needs_one_group_of_local(two):
    with pytest.raises(pf.UsageError, match="--figure worse-off compares with local"):
        pf.compare(two, "worse-off")


def test_what_is_compared_where_nothing_is_named(two, write):
    """The default metrics are those that all runs have. `decile` needs more than ten clients."""
    names = [table.name for table in pf.compare(two).tables]
    assert names == ["final", "best", "worst", "std", "gini", "macro-f1"]
    many = [write(m, [[[0.1] * 2 + [0.5] * 10]], method=m) for m in ("local", "fedsa")]
    found = pf.compare(many)
    assert row(found, "local", "decile").mean == pytest.approx(0.1)
    assert found.shown == ("final", "best")


def test_the_round_that_validation_chooses(write):
    folder = write("a", [[[0.9], [0.5], [0.7]]])
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for one, share in zip(rows, (0.3, 0.8, 0.8), strict=True):
        one["validation_accuracy"] = share
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    found = pf.compare(folder)
    assert row(found, "fedproto", "validation").mean == 0.5  # the first of two equal rounds
    assert row(found, "fedproto", "best").mean == 0.9
    assert (
        row(pf.compare(folder, "macro-f1@validation"), "fedproto", "macro-f1@validation").mean
        == 0.25
    )
    with pytest.raises(pf.UsageError, match="has no validation accuracy"):
        pf.compare(write("b", ends(0.5), method="local"), "validation")


def test_what_it_takes_to_reach_an_accuracy(write):
    slow = write("slow", [[[0.1], [0.5], [0.8]], [[0.1], [0.2], [0.3]]])
    fast = write("fast", [[[0.1], [0.9], [0.8]], [[0.8], [0.2], [0.3]]], method="fedtgp")
    found = pf.compare([slow, fast], "final", target=0.8)
    rounds = table(found, "rounds-to-0.8")
    assert [r.values[0] for r in rounds.rows] == [3, 2] and rounds.rows[1].values[1] == 1
    assert math.isnan(rounds.rows[0].values[1]) and rounds.rows[0].mean == 3
    assert rounds.rows[1].difference.mean == -1 and rounds.rows[1].difference.better == 1
    assert row(found, "fedproto", "mb-to-0.8").mean == pytest.approx(1 + 3 + 3)
    assert row(found, "fedtgp", "flops-to-0.8").mean == pytest.approx(1.5e9)
    assert "(1/2)" in found.text("md") and not table(found, "seconds-to-0.8").machines
    other = write("other", [[[0.8]]], method="local", device="cuda")
    marked = pf.compare([slow, other], "final", target=0.8, rounds=1)
    assert table(marked, "seconds-to-0.8").machines and "seconds to 80 % †" in marked.text("md")
    assert "never" in marked.text("md")


def test_three_methods_are_corrected(two, write):
    third = write("c", ends(*[v + 0.01 for v in A]), method="local")
    found = pf.compare([*two, third], baseline="local")
    ps = [row(found, m).difference for m in ("fedproto", "fedtgp")]
    assert min(d.holm for d in ps) == pytest.approx(2 * min(d.p for d in ps))
    other = [write(n, ends(*A), method=n, dataset="wine") for n in ("fedavg", "fedper")]
    apart = pf.compare([*two, third, *other], "final", baseline="local")
    assert (
        "wine, dirichlet β=0.1, 2 clients has no local: left out of the differences" in apart.notes
    )
    assert [table.baseline for table in apart.tables] == ["local", ""]
    with pytest.raises(pf.UsageError) as error:
        pf.compare(two, baseline="fedtpg")
    assert "fedtgp" in error.value.near


def test_groups_by_what_differs(write):
    taus = {f"t{t}": {"fedtgp": {"tau": t}} for t in (1, 10)}
    runs = [write(n, ends(0.5, 0.6), method="fedtgp", options=o) for n, o in taus.items()]
    runs.append(write("other", ends(0.4, 0.4), lr=0.1))
    labels = [row.label for row in pf.compare(runs).tables[0].rows]
    assert labels == ["fedtgp, lr=0.01, tau=1", "fedtgp, lr=0.01, tau=10", "fedproto, lr=0.1"]
    same = write(
        "again",
        ends(0.7),
        seed=2,
        lr=0.1,
        device="cuda",
        backend="process",
        layout={"x": 1},
        observe=["prototypes"],
        keep="last",
    )
    assert len(pf.compare([*runs, same]).tables[0].rows) == 3
    with pytest.raises(pf.UsageError, match="stands for several groups"):
        pf.compare(runs, baseline="fedtgp")
    by = pf.compare([runs[0], runs[2]], by="method")
    assert [row.label for row in by.tables[0].rows] == ["fedtgp", "fedproto"]
    with pytest.raises(pf.UsageError) as error:
        pf.compare(runs, by="method")
    assert "options.fedtgp.tau" in error.value.near
    with pytest.raises(pf.UsageError, match="no run has an option taus"):
        pf.compare(runs, by="taus")


def test_names_show_every_option_that_differs(write):
    """One of the options would be enough to make two names of runs with two changes differ."""
    runs = [
        write("a", ends(0.5), lr=0.1, local_epochs=1),
        write("b", ends(0.6), lr=0.2, local_epochs=5, options={"fedproto": {"lambda": 0.1}}),
        write("c", ends(0.6), method="fedtgp", lr=0.1, options={"fedtgp": {"lambda": 5, "tau": 1}}),
        write("d", ends(0.7), lr=0.1, use={"server_train": "fedtgp"}, transforms=["topk", "int8"]),
    ]
    assert [row.label for row in pf.compare(runs).tables[0].rows] == [
        "fedproto, local_epochs=1, lr=0.1, lambda=1, transforms=none",
        "fedproto, local_epochs=5, lr=0.2, lambda=0.1, transforms=none",
        "fedtgp, local_epochs=1, lr=0.1, transforms=none",
        "fedproto, local_epochs=1, lr=0.1, lambda=1, transforms=topk,int8, server_train=fedtgp",
    ]
    mixed = [
        write(f"m{n}", ends(0.5), options={"fedproto": {"lambda": n}, "fedtgp": {"lambda": 2 * n}})
        for n in (1, 2)
    ]
    assert [row.label for row in pf.compare(mixed).tables[0].rows] == [
        "fedproto, fedproto.lambda=1, fedtgp.lambda=2",
        "fedproto, fedproto.lambda=2, fedtgp.lambda=4",
    ]


@pytest.mark.parametrize(
    ("methods", "baseline"),
    [
        (["fedtgp", "fedavg", "local"], "local"),
        (["fedtgp", "fedavg"], "fedavg"),
        (["fedtgp", "fedproto"], "fedtgp"),
    ],
)
def test_local_training_is_the_baseline_by_default(write, methods, baseline):
    runs = [write(method, ends(0.5, 0.6), method=method) for method in methods]
    found = pf.compare(runs, "final")
    assert found.tables[0].baseline == baseline
    assert row(found, baseline).difference is None
    named = pf.compare(runs, "final", baseline=methods[1])
    assert named.tables[0].baseline == methods[1]


def test_labels_of_one_s_own(two):
    found = pf.compare({"ours": two[1], "theirs": [two[0]]}, baseline="theirs")
    assert row(found, "ours").difference.count == 5


def test_an_option_that_has_its_default_makes_no_group(write):
    """A record without the option is in the same group."""
    old, new = write("old", ends(0.5)), write("new", ends(0.6), seed=1, momentum=0.0, augment=False)
    assert [len(r.values) for r in pf.compare([old, new]).tables[0].rows] == [2]


def test_what_pf_run_returns_is_a_run(two):
    results = [pf.Result([], {}, {}, folder) for folder in two]
    assert row(pf.compare(results), "fedtgp").difference.count == 5
    assert len(pf.plots.curve(results).axes[0].get_lines()) == 2
    assert pf.plots.split(results[0]).axes and pf.plots.confusion(results[1], 1).axes


def test_a_folder_stands_for_the_runs_in_it(two):
    found = pf.compare(two[0].parent)
    assert [r.label for r in found.tables[0].rows] == ["fedproto", "fedtgp"]


def test_each_data_set_has_its_table(two, write):
    here = [write(f"{m}-w", ends(0.5), method=m, dataset="wine") for m in ("local", "fedtgp")]
    found = pf.compare([*two, *here], "final")
    assert [[r.label for r in t.rows] for t in found.tables] == [
        ["fedproto", "fedtgp"],
        ["local", "fedtgp"],
    ]
    assert found.tables[1].setting.startswith("wine, dirichlet β=0.1")


def test_data_that_differ_in_a_detail_have_tables_of_their_own(write):
    """Different subsets of a data set have separate tables, even with different methods."""
    whole = [write(m, ends(v), method=m) for m, v in (("local", 0.5), ("fedtgp", 0.6))]
    names = {"fedsa": 0.7, "local": 0.8, "fedtgp": 0.9}
    half = [write(f"{m}-h", ends(v), method=m, subset=0.5) for m, v in names.items()]
    found = pf.compare([*whole, *half], "final")
    title = "digits, dirichlet β=0.1, 2 clients"
    assert [t.setting for t in found.tables] == [f"{title}, subset=1", f"{title}, subset=0.5"]
    text = found.text("md")
    assert "| fedsa | 1 | 70.00 |" in text and "| **90.00** |" in text and "| **60.00** |" in text
    heading = f"{title}, subset=1: test accuracy, last round: difference to local"
    assert f"{heading} in percentage points\n" in text
    files = [write(n, ends(0.5), dataset=f"npz:/d/{n}.npz", data={"digest": n}) for n in "xy"]
    files += [
        write(f"{n}2", ends(0.5), method="local", dataset=f"npz:{n}.npz", data={"digest": n})
        for n in "xy"
    ]
    titles = [table.setting for table in pf.compare(files, "final").tables]
    assert [title.partition(",")[0] for title in titles] == ["x", "y"]


def lose(folder, trial, since, *names):
    """Record a trial's loss as not finite, from round `since` on."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for one in rows:
        if one["trial"] == trial and one["round"] >= since:
            one |= {"train_loss": None, "loss_terms": dict.fromkeys(one["loss_terms"])}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def test_a_loss_that_was_lost_is_no_figure(two):
    """If a run diverged, its last finite loss does not replace the loss of its last round."""
    lose(two[1], 3, 1)
    found = pf.compare(two, ["final", "loss", "loss_terms.ce", "loss@best"])
    for name in ("loss", "loss_terms.ce"):
        own = row(found, "fedtgp", name)
        assert math.isnan(own.values[3]) and len(own.found) == 4 and own.difference.count == 4
    assert len(row(found, "fedtgp", "loss@best").found) == 5
    assert row(found, "fedtgp").difference.count == 5
    text = found.text("md")
    assert "(4/5)" in text and "the figure was finite in 3 of 4 trials" in text
    assert f"{two[1]}, trial 3 diverged in round 2" in found.notes
    for trial in range(5):
        lose(two[1], trial, 0)
    assert not row(pf.compare(two, "loss"), "fedtgp", "loss").found
    with pytest.raises(pf.UsageError, match=r"loss of .* was never finite"):
        pf.plots.curve(two[1], "loss")


def test_a_run_without_rounds_is_left_out_and_told(two, write):
    """If one run of a folder failed, the others are still compared."""
    failed = write("failed", [[[0.5, 0.5]]], method="fedsa", rounds=2)
    (failed / "metrics.jsonl").write_text("")
    elsewhere = write("other", [[[0.5, 0.5]]], method="fedsa", dataset="wine", rounds=9)
    found = pf.compare([*two, failed, elsewhere], "final")
    assert [r.label for r in found.tables[0].rows] == ["fedproto", "fedtgp"]
    assert "skipping fedsa: it has no finished round" in found.notes
    assert any(
        note.startswith("wine, dirichlet β=0.1, 2 clients: fedsa has") for note in found.notes
    )
    with pytest.raises(pf.UsageError, match="fedsa has no trial with all rounds"):
        pf.compare([two[0], failed])


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"dataset": "wine"}, "dataset"),
        ({"data": {"digest": "e" * 64}}, "data.digest"),
        ({"options": {"partition": {"beta": 0.5}}}, "options.partition.beta"),
        ({"eval_clients": "participants"}, "eval_clients"),
    ],
)
def test_runs_that_cannot_be_compared(write, other, words):
    runs = [write("a", ends(0.5)), write("b", ends(0.6), method="fedtgp", **other)]
    with pytest.raises(pf.UsageError) as error:
        pf.compare(runs)
    assert all(str(folder / "config.json") in error.value.what for folder in runs)
    assert words in error.value.what and error.value.do == "compare runs on the same data"


def test_a_data_set_is_its_data_wherever_the_file_lies(write):
    runs = [
        write("a", ends(0.5), dataset="npz:here/x.npz"),
        write("b", ends(0.5), method="local", dataset="npz:there/x.npz"),
    ]
    assert row(pf.compare(runs), "fedproto").difference.count == 1


def test_other_splits_of_a_seed(write):
    runs = [write("a", ends(0.5)), write("b", ends(0.6), method="fedtgp", split="other")]
    with pytest.raises(pf.UsageError) as error:
        pf.compare(runs)
    assert all(str(folder / "partition.json") in error.value.what for folder in runs)


def test_no_seed_in_common(write):
    runs = [write("a", ends(0.5)), write("b", ends(0.6, 0.7), method="fedtgp", seed=4)]
    with pytest.raises(pf.UsageError) as error:
        pf.compare(runs)
    assert "no seed in common" in error.value.what and "4, 5" in error.value.near


def test_trials_that_are_not_finished_are_left_out(write):
    short = write("a", [*ends(0.5, 0.6), ends(0.9)[0][:1]])
    other = write("b", ends(0.5, 0.6, 0.7), method="local")
    found = pf.compare([short, other], "final")
    assert row(found, "fedproto").mean == pytest.approx(0.55)
    assert row(found, "fedproto").difference.count == 2
    assert any("trial 2: it has 1 of 2 rounds" in note for note in found.notes)
    first = pf.compare([short, other], "final", rounds=1)
    assert row(first, "fedproto").mean == pytest.approx((0.55 + 0.65 + 0.95) / 3)
    never = write("c", ends(0.5), method="fedsa", rounds=100)
    with pytest.raises(pf.UsageError) as error:
        pf.compare([short, never])
    assert error.value.do.startswith("--rounds 2 ")


def test_rounds_that_differ_are_told(write):
    runs = [write("a", ends(0.5)), write("b", [[[0.5, 0.5]] * 5], method="local")]
    assert any("--rounds 2 reads" in note for note in pf.compare(runs).notes)


def test_a_run_that_is_there_twice(two, tmp_path):
    shutil.copytree(two[0], tmp_path / "copy")
    found = pf.compare([*two, tmp_path / "copy"])
    assert len(row(found, "fedproto").values) == 5
    assert sum("skipping" in note for note in found.notes) == 5


@pytest.mark.parametrize(
    ("old", "new", "draw"),
    [
        ('"upload_bytes": 1000000', '"upload_bytes": "many"', pf.plots.traffic),
        (
            '"client_accuracies": {"0": 0.',
            '"client_accuracies": {"0": {}, "x": 0.',
            pf.plots.clients,
        ),
        ('"client_accuracies": {', '"client_accuracies": 7, "x": {', pf.compare),
    ],
)
def test_a_line_that_no_run_writes(two, old, new, draw):
    file = two[0] / "metrics.jsonl"
    lines = file.read_text().splitlines()
    assert old in lines[3]
    lines[3] = lines[3].replace(old, new)
    file.write_text("\n".join([*lines, ""]))
    with pytest.raises(pf.UsageError) as error:
        draw(two[0] if draw is pf.compare else two)
    assert f"{file}, line 4," in error.value.what
    (note,) = [note for note in pf.compare(two).notes if "line 4," in note]
    assert note.startswith(f"skipping a run: {file}")


def test_a_partition_that_no_run_writes(two):
    file = two[1] / "partition.json"
    for content in ('{"trial": 0}', '{"trial": []}', file.read_text().replace('"nought", ', "")):
        file.write_text(content)
        with pytest.raises(pf.UsageError) as error:
            pf.compare(two[1])
        assert str(file) in error.value.what


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"target": 80}, "--target 80"),
        ({"confidence": 1.0}, "--confidence 1"),
        ({"rounds": 0}, "--rounds 0"),
        ({"figures": "finale"}, "no figure 'finale'"),
        ({"figures": "worst@last"}, "unknown round 'last'"),
    ],
)
def test_nonsense(two, given, words):
    with pytest.raises(pf.UsageError, match=words):
        pf.compare(two, **given)


# --- output formats -------------------------------------------------------------------------------


def test_lines_for_programs(two):
    found = pf.compare(two, ["final", "worst"])
    lines = list(csv.DictReader(io.StringIO(found.text("csv"))))
    assert [(line["figure"], line["method"]) for line in lines] == [
        ("final", "fedproto"), ("final", "fedtgp"), ("worst", "fedproto"), ("worst", "fedtgp"),
    ]  # fmt: skip
    d = row(found, "fedtgp").difference
    assert float(lines[1]["difference"]) == d.mean and float(lines[1]["p_holm"]) == d.holm
    assert lines[0]["difference"] == "" and lines[1]["baseline"] == "fedproto"
    whole = json.loads(found.text("json"))
    assert whole["figures"][1]["values"] == pytest.approx(B)
    assert whole["figures"][1]["seeds"] == [0, 1, 2, 3, 4]
    pytest.importorskip("pandas")
    assert found.frame()["mean"][0] == pytest.approx(np.mean(A))


def test_tables_for_readers(two):
    found = pf.compare({"a_b|c": two[0], "50%": two[1]}, "final")
    text = found.text("md")
    assert "| a\\_b\\|c | 5 | **60.00 ± 7.07** |" in text, "a tie"
    assert "**67.20 ± 8.84**" in text and str(found) == text
    assert found._repr_markdown_() == text  # as a notebook shows it
    tex = found.text("tex")
    assert r"a\_b|c & 5 & \textbf{60.00 $\pm$ 7.07} \\" in tex
    assert r"\textbf{67.20 $\pm$ 8.84}" in tex and r"\label{tab:compared-2}" in tex
    assert r"$\pm$ is the population standard deviation over trials. Bold: the best" in tex
    assert "p that of the exact two-sided Wilcoxon" in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\bottomrule") == 2
    assert r"50\% & 5 & +7.20" in tex
    with pytest.raises(pf.UsageError, match="unknown format 'html'"):
        found.text("html")


def test_what_differs_from_the_best_is_not_bold(write):
    best = write("a", ends(*A))
    worse = write("b", ends(*(value - 0.1 - 0.01 * n for n, value in enumerate(A))), method="local")
    assert pf.compare([best, worse], "final").text("md").count("**") == 2
    few = [write(n, ends(*v), method=n) for n, v in (("x", A[:2]), ("y", A[1:3]))]
    assert pf.compare(few, "final").text("md").count("**") == 2, "nothing is known of two pairs"


def test_the_majority_guess_stands_beside_the_groups(write):
    balanced = {"metrics": {"balanced-accuracy": {"all": 0.4}}}
    runs = [
        write(n, ends(*v), method=n) for n, v in (("fedavg", (0.6, 0.7)), ("local", (0.9, 0.8)))
    ]
    for run in runs:
        file = run / "metrics.jsonl"
        rows = [json.loads(line) | balanced for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = pf.compare(runs)
    # A client has 10 samples of the first of two classes, and 3 of the other.
    guess = f"{100 * 10 / 13:.2f}"
    assert f"| majority guess |  | {guess} ± 0.00 | {guess} ± 0.00 | 50.00 ± 0.00 |" in str(found)
    assert f"majority guess &  & {guess}" in found.text("tex")
    lines = {(line["figure"], line["method"]): line["guess"] for line in found.lines()}
    assert lines["final", "local"] == pytest.approx(10 / 13) and lines["worst", "local"] is None
    assert lines["balanced-accuracy", "local"] == 0.5
    assert "test accuracy, last round: not better than the majority guess: fedavg" in found.notes
    assert "balanced accuracy, last round: difference to local" in str(found)


@pytest.mark.slow
def test_runs_that_were_trained(real):
    """Runs write the same format that the tests above write by hand."""
    found = pf.compare(real, target=0.01)
    d = row(found, "fedproto").difference
    runs = [pf.load_run(real / m).summary["trials"] for m in ("local", "fedproto")]
    means = [np.mean([t["final_test_accuracy"] for t in trials]) for trials in runs]
    assert d.count == 2 and d.mean == pytest.approx(means[1] - means[0])
    assert {t.name for t in found.tables} >= {"final", "best", "worst", "mb-to-0.01"}


def test_accuracy_by_architecture(write):
    layout = {"a": {}, "b": {}}
    run = pf.load_run(write("x", [[[0.5, 0.2, 0.7]], [[0.4, 0.3, 0.8]]], layout=layout))
    assert accuracies_by_architecture(run) == {
        "a": pytest.approx([0.6, 0.6]), "b": pytest.approx([0.2, 0.3]),
    }  # fmt: skip
    one = pf.load_run(write("y", [[[0.5, 0.2]]], layout={"a": {}}))
    assert accuracies_by_architecture(one) == {}
