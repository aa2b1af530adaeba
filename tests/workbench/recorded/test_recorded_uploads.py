"""Tests of `Run.uploads`: recorded uploads as payloads."""

from __future__ import annotations

import pytest
from runtime_toys import train

import protofl as pf

pytestmark = pytest.mark.usefixtures("toys")


def test_uploads_of_a_round_are_payloads_by_client(tmp_path):
    train("fedproto", tmp_path / "run", rounds=3, record_uploads=True)
    run = pf.load_run(tmp_path / "run")
    assert run.upload_rounds() == [0, 1, 2] and run.upload_rounds(1) == []
    last, first = run.uploads(), run.uploads(0)
    assert [*last] == [0, 1, 2, 3] and {*last[0]} == {"prototypes", "classes", "counts"}
    assert last[0].rows("counts")[0].sum() == len(run.plan.split(0).train(0))
    assert not (last[0]["prototypes"] == first[0]["prototypes"]).all()
    assert (run.uploads(-3)[1]["prototypes"] == first[1]["prototypes"]).all()
    with pytest.raises(pf.UsageError, match="no uploads of round 4") as raised:
        run.uploads(3)
    assert "rounds 1 to 3" in raised.value.near
    with pytest.raises(pf.UsageError, match="no uploads of any round of trial 1"):
        run.uploads(trial=1)
