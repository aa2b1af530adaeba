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

TEXT = (Path(__file__).parent / "mixing.md").read_text(encoding="utf-8")
PAGE = read(TEXT)
METHODS = methods_to_run(Registry(), "protofl")
HOOKS = len(ROUND_HOOKS) + len(MERGED_HOOKS)
LACKS = {"key", "shape", "name", "module", "phase", "requirement"}


def as_written(cell):
    """A cell as the page tells of it."""
    return replace(cell, message="", alike=cell.alike and cell.outcome == RUNS)


def method_of(donor):
    """The method of a donor, which is METHOD or METHOD.TERM."""
    return donor.partition(".")[0]


def in_order(cells):
    return sorted(cells, key=lambda cell: (cell.place, cell.donor))


def check(cells, written):
    """Combinations do what the page says of them."""
    for cell in cells:
        assert cell.outcome in (RUNS, REFUSED), cell
        if cell.outcome == REFUSED:
            assert cell.lacks in LACKS, cell
            assert f"'{cell.name.removesuffix('…')}" in cell.message, cell
    assert in_order(map(as_written, cells)) == in_order(written), (
        "write the page anew: protofl matrix --force --out tests/contract/mixing.md"
    )


def sample():
    """A cell of each outcome in each place, of other methods each time."""
    kinds = {}
    for cell in PAGE:
        kinds.setdefault((cell.place, cell.outcome, cell.lacks), []).append(cell)
    return [cells[7 * n % len(cells)] for n, (_, cells) in enumerate(sorted(kinds.items()))]


def test_a_sample_runs_or_is_refused_as_the_page_says():
    chosen = sample()
    assert len({cell.main for cell in chosen} | {method_of(c.donor) for c in chosen}) > 15
    with mixer() as made:
        found = []
        for cell in chosen:
            if cell.place == ADD:
                found.append(made.add(cell.main, cell.donor))
            else:
                found += made.row(cell.main, [cell.donor], [cell.place])
    check(found, chosen)


@pytest.mark.slow
@pytest.mark.parametrize("main", METHODS)
def test_every_combination_runs_or_is_refused_as_the_page_says(main):
    with mixer() as made:
        assert made.alone(main).outcome == RUNS
        check(made.row(main, METHODS), [cell for cell in PAGE if cell.main == main])


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
