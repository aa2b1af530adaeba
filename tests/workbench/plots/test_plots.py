"""Tests of plots: they show the recorded values."""

from __future__ import annotations

import json
import threading

import matplotlib
import numpy as np
import pytest
from slowness import quick

import protofl as pf
from protofl_workbench.plots.bar_charts import bar_chart
from protofl_workbench.plots.figure_files import svg

FLAT = [[[0.1, 0.3], [0.4, 0.6], [0.7, 0.9]], [[0.2, 0.4], [0.3, 0.5], [0.8, 1.0]]]
"""Two trials of three rounds of two clients: accuracies .2 .5 .8, and .3 .4 .9."""


def axes(figure):
    (found,) = figure.axes
    return found


def legend(figure):
    return [text.get_text() for made in figure.legends for text in made.get_texts()]


def test_a_curve_is_the_mean_and_its_band_the_deviation(write):
    figure = pf.plots.curve(write("one", FLAT))
    (line,) = axes(figure).get_lines()
    assert line.get_xdata() == pytest.approx([1, 2, 3])
    assert line.get_ydata() == pytest.approx([25, 45, 85])
    (band,) = axes(figure).collections
    corners = band.get_paths()[0].vertices
    for x, mean, std in zip([1, 2, 3], [25, 45, 85], [5, 5, 5], strict=True):
        heights = corners[corners[:, 0] == x, 1]
        assert [heights.min(), heights.max()] == pytest.approx([mean - std, mean + std])
    assert axes(figure).get_ylabel() == "test accuracy (%)" and not legend(figure)


@pytest.mark.parametrize(
    ("x", "ends"),
    [
        ("mb", [1, 4, 7]),
        ("upload-mb", [1, 2, 3]),
        ("seconds", [2, 4, 6]),
        ("flops", [1e9, 2e9, 3e9]),
    ],
)
def test_over_what_rounds_cost(write, x, ends):
    """Costs add up over all rounds so far, including rounds without evaluation."""
    folder = write("one", FLAT[:1])
    file = folder / "metrics.jsonl"
    first, second, third = file.read_text().splitlines()
    hidden = second.replace('"test_accuracy": 0.5', '"test_accuracy": null')
    assert hidden != second
    file.write_text("\n".join([first, hidden, third, ""]))
    (line,) = axes(pf.plots.curve(folder, x=x)).get_lines()
    assert line.get_xdata() == pytest.approx([ends[0], ends[2]])
    assert line.get_ydata() == pytest.approx([20, 80])


def test_a_trial_that_is_behind_is_a_thin_line_and_not_in_the_mean(write):
    figure = pf.plots.curve(write("one", [FLAT[0], FLAT[0], FLAT[1][:2]]))
    thin, mean = axes(figure).get_lines()
    assert mean.get_ydata() == pytest.approx([20, 50, 80])
    assert thin.get_ydata() == pytest.approx([30, 40])
    assert thin.get_linewidth() < mean.get_linewidth()


def test_bands_of_other_kinds(write):
    folder = write("one", [*FLAT, FLAT[0]])
    (band,) = axes(pf.plots.curve(folder, band="range")).collections
    assert np.ptp(band.get_paths()[0].vertices[:, 1]) == pytest.approx(70)
    assert len(axes(pf.plots.curve(folder, band="trials")).get_lines()) == 4
    assert not axes(pf.plots.curve(folder, band="none")).collections
    with pytest.raises(pf.UsageError, match="unknown band 'sd'"):
        pf.plots.curve(folder, band="sd")


def test_groups_have_lines_markers_and_colours_of_their_own(write):
    folders = [write(m, FLAT, method=m) for m in ("fedproto", "fedtgp", "local")]
    figure = pf.plots.curve(folders, target=0.8)
    *lines, target = axes(figure).get_lines()
    for what in ("get_color", "get_marker", "get_linestyle"):
        assert len({getattr(line, what)() for line in lines}) > 1 + (what != "get_linestyle")
    assert legend(figure) == ["fedproto", "fedtgp", "local"]
    assert list(target.get_ydata()) == pytest.approx([80, 80])


def test_runs_that_differ_in_seeds_are_one_curve(write):
    folders = [write(f"s{s}", FLAT[s : s + 1], seed=s) for s in (0, 1)]
    (line,) = axes(pf.plots.curve(folders)).get_lines()
    assert line.get_ydata() == pytest.approx([25, 45, 85])
    assert legend(pf.plots.curve(folders, by="run")) == ["s0", "s1"]


def test_runs_on_other_data_say_on_which(write):
    """Labels name the data even if the methods differ, and for any grouping."""
    runs = [write("a", FLAT), write("b", FLAT, method="local", dataset="wine")]
    assert legend(pf.plots.curve(runs)) == ["fedproto, digits", "local, wine"]
    half = {"options": {"partition": {"beta": 0.5}}}
    runs = [write("c", FLAT), write("d", FLAT, method="local", **half)]
    assert legend(pf.plots.curve(runs)) == ["fedproto, beta=0.1", "local, beta=0.5"]
    runs.append(write("e", FLAT, **half))
    figure = pf.plots.curve(runs, by="method")
    assert legend(figure) == ["fedproto, beta=0.1", "local, beta=0.5", "fedproto, beta=0.5"]
    assert legend(pf.plots.curve(runs, by="run"))[0] == "c, beta=0.1"


def test_a_copy_of_a_run_is_no_further_trial(write):
    """A run with the same first rounds as another is no further trial either."""
    runs = [write("short", [FLAT[0][:1]]), write("a", FLAT), write("copy", FLAT)]
    (line,) = axes(pf.plots.curve(runs)).get_lines()
    assert line.get_ydata() == pytest.approx([25, 45, 85])
    runs = [
        write("once", [FLAT[0][:1]]),
        write("long", FLAT[:1]),
        write("local", FLAT, method="local"),
    ]
    row = pf.compare(runs, "final").tables[0].rows[0]
    assert row.values == pytest.approx([0.8])


def test_a_loss_that_was_never_finite_is_left_out(write):
    runs = [write("a", FLAT), write("b", FLAT, method="local")]
    file = runs[1] / "metrics.jsonl"
    rows = [{**json.loads(line), "train_loss": None} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(own) + "\n" for own in rows))
    assert len(axes(pf.plots.curve(runs, "loss")).get_lines()) == 1
    assert len(axes(pf.plots.curve(runs)).get_lines()) == 2
    bars = axes(pf.plots.bars(runs, "loss"))
    assert len(bars.patches) == 1 and len(bars.get_yticklabels()) == 2


def test_traffic_of_nothing_has_an_axis_that_can_be_read(write):
    folder = write("a", FLAT)
    text = (folder / "metrics.jsonl").read_text()
    for number in (1000000, 2000000):
        text = text.replace(f'load_bytes": {number}', 'load_bytes": 0')
    (folder / "metrics.jsonl").write_text(text)
    assert axes(pf.plots.traffic(folder)).get_xlim()[1] >= 1


def test_any_figure_of_the_record(write):
    folder = write("one", FLAT[:1])
    read = {
        "loss": [1, 1 / 2, 1 / 3],
        "loss_terms.align": [0.25] * 3,
        "macro-f1": [0.1, 0.25, 0.4],
        "worst": [10, 40, 70],
        "client_accuracies.1": [0.3, 0.6, 0.9],
        "metrics.confusion.all.0.1": [2, 2, 2],
    }
    for name, values in read.items():
        (line,) = axes(pf.plots.curve(folder, y=name)).get_lines()
        assert line.get_ydata() == pytest.approx(values), name
    with pytest.raises(pf.UsageError) as error:
        pf.plots.curve(folder, y="loss_term.align")
    assert str(folder) in error.value.what and "loss_terms.align" in error.value.near
    with pytest.raises(pf.UsageError) as error:
        pf.plots.curve(folder, y="ece")
    assert "--metrics" in error.value.do
    with pytest.raises(pf.UsageError) as error:
        pf.plots.curve(folder, x="virtual")
    assert "--devices" in error.value.do


def test_bars_are_means_with_deviations(write):
    folders = [write("a", FLAT), write("b", FLAT[:1], method="local")]
    drawn = axes(pf.plots.bars(folders, "best"))
    assert [bar.get_width() for bar in drawn.patches] == pytest.approx([85, 80])
    assert drawn.get_xlim()[0] == 0
    (error,) = drawn.collections
    assert [np.ptp(segment[:, 0]) for segment in error.get_segments()] == pytest.approx([10, 0])
    assert [t.get_text() for t in drawn.get_yticklabels()] == ["fedproto", "local"]
    macro = axes(pf.plots.bars(folders, "macro-f1@final"))
    assert [bar.get_width() for bar in macro.patches] == pytest.approx([0.425, 0.4])


def test_bars_of_numbers_that_are_known():
    ours = {"FedTGP": (90.0, 2.0), "FedProto": (80.0, 1.0)}
    printed = {"FedTGP": (91.0, 1.0), "LG": (70.0, float("nan"))}
    drawn = axes(bar_chart({"ours": ours, "printed": printed}, "accuracy (%)"))
    widths = sorted(bar.get_width() for bar in drawn.patches)
    assert widths == pytest.approx([70, 80, 90, 91])
    places = sorted(bar.get_y() + bar.get_height() / 2 for bar in drawn.patches)
    assert len({round(place) for place in places}) == 3  # one category each, no bar covers another
    assert len({*places}) == 4


def test_differences_are_those_of_the_comparison(write):
    three = [*FLAT, FLAT[0]]
    two = [write("a", three), write("b", [FLAT[1], FLAT[1], FLAT[0]], method="fedtgp")]
    for given in (two, pf.compare(two)):
        drawn = axes(pf.plots.differences(given))
        points, bar, mean, zero = drawn.get_lines()
        assert sorted(points.get_xdata()) == pytest.approx([0, 0, 10])
        own = pf.compare(two).tables[0].rows[1].difference
        assert bar.get_xdata() == pytest.approx([own.low * 100, own.high * 100])
        assert mean.get_xdata() == pytest.approx([10 / 3]) and list(zero.get_xdata()) == [0, 0]
        assert [t.get_text() for t in drawn.texts] == ["p = 1.000"]
        assert [t.get_text() for t in drawn.get_yticklabels()] == ["fedtgp"]
    with pytest.raises(pf.UsageError, match="no difference in final to draw"):
        pf.plots.differences(two[0])
    with pytest.raises(pf.UsageError, match="no difference in worst to draw"):
        pf.plots.differences(pf.compare(two, "final"), "worst")


def test_a_long_baseline_is_not_cut(write):
    runs = {"a" * 70: write("a", FLAT), "b": write("b", FLAT, method="local")}
    figure = pf.plots.differences(runs)
    figure.draw_without_rendering()
    box = axes(figure).xaxis.label.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0
    assert axes(figure).get_window_extent().height > 0.2 * figure.dpi


def test_clients_are_sorted(write):
    folder = write("a", [[[0.9, 0.1, 0.5]], [[0.3, 0.3, 0.6]]])
    (line,) = axes(pf.plots.clients(folder)).get_lines()
    assert line.get_ydata() == pytest.approx([20, 40, 75])


def test_traffic(write):
    folder = write("a", FLAT)
    sent, received = axes(pf.plots.traffic(folder)).patches
    assert sent.get_width() == pytest.approx(1)
    assert (received.get_x(), received.get_width()) == pytest.approx((1, 4 / 3))


def test_the_confusion_matrix_is_by_rows_in_per_cent(write):
    drawn = axes(pf.plots.confusion(write("a", FLAT)))
    shares = drawn.get_images()[0].get_array()
    assert shares.tolist() == [[80, 20, 0], [0, 50, 50], [None] * 3]  # no samples: grey
    assert sorted(text.get_text() for text in drawn.texts) == ["20", "50", "50", "80"]
    assert [t.get_text() for t in drawn.get_yticklabels()] == ["nought", "one", "two"]


@pytest.mark.slow
def test_a_run_that_was_trained(real):
    """Runs write the same format that the tests above write by hand."""
    figure = pf.plots.curve([real / "fedproto", real / "local"])
    assert legend(figure) == ["fedproto", "local"]
    run = pf.load_run(real / "fedproto")
    both = run.columns["test_accuracy"].reshape(2, 2)
    assert axes(figure).get_lines()[0].get_ydata() == pytest.approx(both.mean(0) * 100)
    counts = np.array(run.rows_of(1)[-1]["metrics"]["confusion"]["all"])
    assert counts.sum() == run.split(1).test_counts.sum()
    own = axes(pf.plots.confusion(run, 1)).get_images()[0].get_array()
    there = counts.sum(1) > 0
    expected = 100 * counts[there] / counts[there].sum(1, keepdims=True)
    assert np.asarray(own)[there] == pytest.approx(expected)
    bubbles = pf.plots.split(run, 1).axes[0].collections[0].get_offsets()
    both = run.split(1).train_counts + run.split(1).test_counts
    assert len(bubbles) == (both > 0).sum()
    for draw in (pf.plots.traffic, pf.plots.clients):
        assert draw([real / "fedproto", real / "local"]).axes


@pytest.mark.parametrize("kind", quick(["pdf", "png", "svg"], "svg"))
def test_files_are_the_same_each_time_and_from_any_thread(write, tmp_path, kind):
    folder = write("a", FLAT)
    before = dict(matplotlib.rcParams)

    def draw(name):
        pf.plots.save(pf.plots.curve(folder), tmp_path / f"{name}.{kind}")

    draw("alone")
    threads = [threading.Thread(target=draw, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = {path.read_bytes() for path in tmp_path.glob(f"*.{kind}")}
    assert len(written) == 1
    start = {"pdf": b"%PDF", "png": b"\x89PNG", "svg": b"<?xml"}[kind]
    assert written.pop().startswith(start)
    assert dict(matplotlib.rcParams) == before


def test_widths_are_those_of_papers(write):
    folder = write("a", FLAT)
    assert pf.plots.curve(folder).get_figwidth() == 3.3
    assert pf.plots.curve(folder, width="page").get_figwidth() == 6.9
    assert pf.plots.curve(folder, width=5).get_figwidth() == 5
    with pytest.raises(pf.UsageError, match="unknown width 'wide'"):
        pf.plots.curve(folder, width="wide")
    with pytest.raises(pf.UsageError, match="unknown font"):
        pf.plots.curve(folder, font="comic")


def test_hostile_names_are_drawn_as_they_are(write):
    name = "_$x^$ <b>&\u03b2"
    figure = pf.plots.curve({name: write("a", FLAT), "b" * 200: write("b", FLAT)})
    drawn = svg(figure, outlines=False)
    assert "_$x^$ &lt;b&gt;&amp;\u03b2" in drawn
    svg(pf.plots.bars({name: write("c", FLAT)}))


def test_errors(write, tmp_path):
    folder = write("a", FLAT)
    with pytest.raises(pf.UsageError, match="is not a run folder"):
        pf.plots.curve(tmp_path / "none")
    with pytest.raises(pf.UsageError, match="no runs were given"):
        pf.plots.curve([])
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(pf.UsageError, match="no finished round"):
        pf.plots.curve(folder)
    with pytest.raises(pf.UsageError, match=r"cannot be written as \.gif"):
        pf.plots.save(bar_chart({"": {"a": (1, 0)}}, "x"), tmp_path / "x.gif")
