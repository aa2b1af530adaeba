"""The page on faults quotes what is said of hostile payloads."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import protofl as pf
import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")


def rows(marker):
    """{what: (rule, what is said)} of the table behind a marker."""
    table = PAGE.partition(f"<!-- {marker} -->")[2].lstrip().partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {what: (rule, said.replace(r"\*", "*")) for what, rule, said in cells}


@pytest.fixture(autouse=True)
def hostile(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "core"))
    import hostile_uploads
    import test_gate

    yield hostile_uploads, test_gate
    for name in ("hostile_uploads", "test_gate", "runtime_toys"):
        sys.modules.pop(name, None)


def test_the_tables_have_all_that_is_tried(hostile):
    payloads, gate = hostile
    assert [*rows("uploads")] == [*payloads.TABLE, *payloads.MORE]
    assert [*rows("encoded")] == [*payloads.ENCODED]
    assert [*rows("downloads")] == [*gate.DOWNLOADS]


def test_what_is_said_of_uploads(hostile):
    payloads, _ = hostile
    quoted = rows("uploads") | rows("encoded")
    for what, (note,) in payloads.notes_of(quoted).items():
        rule, said = quoted[what]
        assert rule == payloads.ALL[what][-1], what
        said = re.escape(f"client 2 sent {said} in round")
        assert re.fullmatch(rf"{said} \d+ \({rule}\): it is left out", note), (what, note)


@pytest.mark.parametrize("what", rows("downloads"))
def test_what_is_said_of_a_download(hostile, what):
    payloads, gate = hostile
    honest = pf.Payload(prototypes=torch.ones(4, 6), classes=torch.arange(4))
    host = pf.Host(payloads.make_plan("fedproto"))
    host.handle(gate.StartTrial(0))
    with pytest.raises(pf.RunFailure) as caught:
        host.handle(gate.Train(1, 0, blob=gate.DOWNLOADS[what][0](honest)))
    assert (
        caught.value.what == f"download, client 1, round 0: it holds {rows('downloads')[what][1]}"
    )
