"""Any hook and loss term in any other method: it runs or is refused with a name, as docs say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from protofl.discovery.registry import Registry
from protofl.hookspecs.method import MERGED_HOOKS, ROUND_HOOKS
from protofl.testing.donors import methods_to_run
from protofl.testing.mixing import ADD, REFUSED, RUNS, mixer
from protofl_cli.mixing_page import page, read
from slowness import quick

TEXT = (Path(__file__).parents[2] / "docs/mixing.md").read_text(encoding="utf-8")
PAGE = read(TEXT)
METHODS = methods_to_run(Registry(), "protofl")
HOOKS = len(ROUND_HOOKS) + len(MERGED_HOOKS)
MAINS = METHODS[::2]
"""Those that take in the sample; the others give."""
STEP = 5
RARE = {"feddf": ("fedet",), "fedgh": ("fedktl",)}
"""Donors with an outcome that is in no other cell of the sample."""
LACKS = {"key", "shape", "name", "module", "phase", "requirement"}


def as_written(cell):
    """A cell as the page tells of it."""
    return replace(cell, message="", alike=cell.alike and cell.outcome == RUNS)


def method_of(donor):
    """The method of a donor, which is METHOD or METHOD.TERM."""
    return donor.partition(".")[0]


def in_order(cells):
    return sorted(cells, key=lambda cell: (cell.place, cell.donor))


def check(main, donors):
    """The methods' hooks and terms in ``main`` do what the page says of them."""
    with mixer() as made:
        assert made.alone(main).outcome == RUNS
        cells = made.row(main, donors)
    assert len([cell for cell in cells if cell.place != ADD]) == HOOKS * len(donors)
    for cell in cells:
        assert cell.outcome in (RUNS, REFUSED), cell
        if cell.outcome == REFUSED:
            assert cell.lacks in LACKS, cell
            assert f"'{cell.name.removesuffix('…')}" in cell.message, cell
    written = [cell for cell in PAGE if cell.main == main and method_of(cell.donor) in donors]
    assert in_order(map(as_written, cells)) == in_order(written), (
        "write the page anew: protofl matrix --out docs/mixing.md"
    )


def sample(main):
    """A donor for a method, so that each method gives or takes, and the rare ones."""
    place = METHODS.index(main)
    return [METHODS[(place + STEP) % len(METHODS)], *RARE.get(main, ())]


@pytest.mark.parametrize("main", quick(METHODS, *MAINS))
def test_a_sample_runs_or_is_refused_as_the_page_says(main):
    check(main, sample(main))


def test_the_sample_holds_every_outcome_in_every_place():
    """One that it misses? Add it to `RARE`."""
    quick_ones = [cell for cell in PAGE if cell.main in MAINS]
    chosen = [cell for cell in quick_ones if method_of(cell.donor) in sample(cell.main)]
    assert {cell.main for cell in chosen} | {method_of(c.donor) for c in chosen} == {*METHODS}
    outcomes, all_outcomes = (
        {(cell.place, cell.outcome, cell.lacks) for cell in cells} for cells in (chosen, PAGE)
    )
    assert outcomes == all_outcomes


@pytest.mark.slow
@pytest.mark.parametrize("main", METHODS)
def test_every_combination_runs_or_is_refused_as_the_page_says(main):
    check(main, [donor for donor in METHODS if donor not in (main, *sample(main))])


def test_the_page_is_the_command_s():
    assert page(PAGE) == TEXT
    assert {cell.main for cell in PAGE} == set(METHODS)
    pairs = len(METHODS) * (len(METHODS) - 1)
    assert len([cell for cell in PAGE if cell.place != ADD]) == HOOKS * pairs


def test_an_unclear_outcome_is_seen():
    import protofl as pf

    class Careless:
        """Reads a payload without looking whether it fits."""

        @pf.hookimpl
        def server_train(self, server, uploads):
            first, second = (upload["prototypes"] for upload in uploads.values())
            return {"product": first @ second}

    class Wanting:
        """Refuses every run."""

        @pf.hookimpl
        def requires(self, run):
            return ["it needs the moon"]

    extra = {("method", "careless"): Careless, ("method", "wanting"): Wanting}
    with mixer(Registry(extra=extra)) as made:
        unclear = made.use("fedproto", "server_train", "careless")
        assert unclear.outcome == "unclear"
        assert "RuntimeError" in unclear.message and "upload_payload of fedproto" in unclear.message
        refused = made.use("local", "server_train", "careless")
        assert (refused.outcome, refused.lacks, refused.name) == (REFUSED, "key", "prototypes")
        refused = made.use("local", "inference", "wanting")
        assert (refused.lacks, refused.name) == ("requirement", "wanting: it needs the moon")
        text = page([unclear, refused])
        assert [as_written(unclear), as_written(refused)] == [
            replace(cell, message=cell.message)
            if cell.outcome == REFUSED
            else replace(cell, message=as_written(unclear).message)
            for cell in read(text)
        ]
