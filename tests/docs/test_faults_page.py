"""Tests that the page on failures quotes the errors about invalid payloads."""

from __future__ import annotations

import re
from pathlib import Path

import hostile_uploads
import pytest
from runtime_toys import make_plan

import protofl as pf
from protofl.federation.jobs.jobs import StartTrial, Train

PAGE = (Path(__file__).parents[2] / "docs/how-to/handle-failures.md").read_text(encoding="utf-8")


def rows(marker):
    """Return {payload: (rule, message)} of the table after a marker."""
    table = PAGE.partition(f"<!-- {marker} -->")[2].lstrip().partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {what: (rule, said.replace(r"\*", "*")) for what, rule, said in cells}


def test_the_tables_are_found():
    assert all(rows(table) for table in ("uploads", "encoded", "downloads"))


@pytest.mark.slow
def test_what_is_said_of_uploads():
    quoted = rows("uploads") | rows("encoded")
    for what, (note,) in hostile_uploads.notes_of(quoted).items():
        rule, said = quoted[what]
        assert rule == hostile_uploads.ALL[what][-1], what
        assert len(note) < 500 and note.isprintable(), what
        said = re.escape(f"client 2 sent {said} in round")
        assert re.fullmatch(rf"{said} \d+ \({rule}\): it is left out", note), (what, note)


def test_what_is_said_of_downloads():
    host = pf.backends.Host(make_plan("fedproto"))
    host.handle(StartTrial(0))
    for what, (_, said) in rows("downloads").items():
        change, _ = hostile_uploads.DOWNLOADS[what]
        with pytest.raises(pf.RunFailure) as caught:
            host.handle(Train(1, 0, blob=change(hostile_uploads.DOWNLOAD)))
        assert caught.value.what == f"download, client 1, round 1: it holds {said}", what
