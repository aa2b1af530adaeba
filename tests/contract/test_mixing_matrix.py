"""Every hook and loss term in every other method runs or is refused, as stored."""

from __future__ import annotations

import pytest
import slowness
from mixing import FILE, FOUND, HOOK_PLACES, TERM, mixer, read, text

import protofl as pf
from protofl.hooks.discovery.registry import Registry
from protofl.testing.donors import methods_to_run

STORED = read()
METHODS = methods_to_run(Registry(), "protofl")
KINDS = {"key", "shape", "name", "module", "phase", "requirement"}


def method_of(donor):
    """Return the method of a donor, which is METHOD or METHOD.TERM."""
    return donor.partition(".")[0]


def kind(outcome):
    """Return an outcome without the name of what is missing."""
    return outcome if outcome in FOUND else outcome.split()[1]


def check(main, donors):
    with mixer() as made:
        assert made.outcome(main) in FOUND
        found = made.row(main, donors)
    assert len([cell for cell in found if cell[0] != TERM]) == len(HOOK_PLACES) * len(donors)
    stored = {c: o for c, o in STORED.items() if c[1] == main and method_of(c[2]) in donors}
    assert found == stored, f"store the new outcomes: python tests/update.py {main}"


def place_and_kind(cell):
    """Return the option and the kind of outcome of a combination."""
    return cell[0], kind(STORED[cell]).split()[0]


def samples(mains):
    """Return {main: donors}: a pair of each, and few that cover every outcome in every place."""
    found = {main: [(METHODS * 2)[METHODS.index(main) + 5]] for main in mains}
    cells = {}
    for cell in STORED:
        cells.setdefault((cell[1], method_of(cell[2])), set()).add(place_and_kind(cell))
    missing = set().union(*cells.values())
    for main, donors in found.items():
        missing -= set().union(*(cells[main, donor] for donor in donors))
    while missing:
        main, donor = max(cells, key=lambda pair: len(cells[pair] & missing))
        found.setdefault(main, []).append(donor)
        missing -= cells[main, donor]
    return found


SAMPLES = samples([*slowness.KINDS, "feddistill", "flora"])
HALF = samples(METHODS[::2])


@pytest.mark.parametrize("main", slowness.quick(SAMPLES, "fedavg", "fedgen", "fedproto"))
def test_a_sample_runs_or_is_refused_as_stored(main):
    """One method of each kind, and every outcome in every place."""
    check(main, SAMPLES[main])


@pytest.mark.slow
@pytest.mark.parametrize("main", HALF)
def test_a_pair_of_each_second_method_runs_or_is_refused_as_stored(main):
    check(main, HALF[main])


@pytest.mark.slow
@pytest.mark.parametrize("main", METHODS)
def test_a_ninth_of_all_runs_or_is_refused_as_stored(main):
    """All combinations take half an hour on one core: ``python tests/update.py --all``."""
    own = METHODS.index(main)
    check(main, [donor for n, donor in enumerate(METHODS) if n != own and (n + own) % 9 == 0])


def test_every_combination_is_stored():
    assert {main for _, main, _ in STORED} == {*METHODS}
    assert {kind(outcome) for outcome in STORED.values()} <= {*FOUND, *KINDS}
    pairs = len(METHODS) * (len(METHODS) - 1)
    assert len([cell for cell in STORED if cell[0] != TERM]) == len(HOOK_PLACES) * pairs
    assert FILE.read_text(encoding="utf-8") == text(STORED)


def test_another_error_than_a_refusal_is_seen():
    class Careless:
        """Reads a payload without checking its shape."""

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
        unclear = made.outcome("fedproto", "--use server_train", "careless")
        assert "RuntimeError" in unclear and "upload_payload of fedproto" in unclear
        refused = made.outcome("local", "--use server_train", "careless")
        assert refused == "refused: key prototypes"
        refused = made.outcome("local", "--use inference", "wanting")
        assert refused == "refused: requirement wanting: it needs the moon"
