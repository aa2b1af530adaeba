"""``--part N/PARTS``: run one part of the chosen tests, so that several runs cover all of them.

``--touched PATH,PATH``: run the first `MOST` tests below these paths too, if the part lacks them.

``--kills N`` says how often tests/core/records/test_kills.py kills the runs of a method.
"""

from __future__ import annotations

import re
import zlib

import pytest

MOST = 30
"""Tests that ``--touched`` adds to a part; CI has 25 minutes for a part."""


def pytest_addoption(parser):
    parser.addoption(
        "--part", metavar="N/PARTS", help="run part N of the tests, and all that are marked always"
    )
    parser.addoption(
        "--touched", metavar="PATHS", default="", help="with --part: add tests below these paths"
    )
    parser.addoption(
        "--kills", metavar="N", type=int, default=2, help="kills of each method's runs (test_kills)"
    )


def pytest_collection_modifyitems(config, items):
    given = config.getoption("--part")
    if given is None:
        return
    number, parts = parsed(given)
    kept = [
        item
        for item in items
        if item.get_closest_marker("always") or part_of(item.nodeid, parts) == number
    ]
    chosen = {*kept, *touched(items, {*kept}, config.getoption("--touched").split(","))}
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def touched(items, kept, paths):
    """Return the first `MOST` tests below the paths, in their order, without those kept already."""
    found = [
        item
        for path in filter(None, paths)
        for item in items
        if item not in kept and re.match(rf"{re.escape(path)}(/|::)", item.nodeid)
    ]
    return [*dict.fromkeys(found)][:MOST]


def parsed(text):
    """Return the numbers of ``N/PARTS``."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--part {text!r}: expected N/PARTS, as in 1/4")
    return int(found[1]), int(found[2])


def part_of(nodeid, parts):
    """Return the part (from 1) of a test.

    Tests of a file that have the same parameters share their fixtures and therefore a part. Tests
    with other parameters are spread: each part has some of every family, so that a fault of a whole
    family shows in every part. New tests don't move the others.
    """
    file, _, test = nodeid.partition("::")
    name, _, parameters = test.partition("[")
    return zlib.crc32(f"{file}::{parameters or name}".encode()) % parts + 1
