"""Compare every engine with the reference: the same rounds give the same weights and losses."""

from __future__ import annotations

import pytest
from engine_toys import METHODS, make_plan
from slowness import quick
from width_toys import nets_of

from protofl.testing import toy as toyfed
from protofl.testing.equality import RESIDUAL, Run, assert_equal_runs, double_precision, worst

ENGINES = {
    "vmapped": {"engine": "vmapped"},
    "cuda-graphs": {"engine": "cuda-graphs", "parts": {"engine": {"streams": 2}}},
}


@pytest.fixture(params=quick(ENGINES, "vmapped", "cuda-graphs"))
def engine(request):
    return ENGINES[request.param]


@pytest.fixture
def double():
    with double_precision():
        yield


def pair(engine, method, folder, members, *, set=None, **options):
    """Return a plan for eager, and the same plan for another engine."""
    plain = make_plan(method, folder, members, set=set or {}, **options)
    return plain, make_plan(method, folder, members, set=set or {}, **options | engine)


def members_of(method):
    # No bias before BatchNorm: its gradient is only rounding error, which Adam amplifies.
    return nets_of(method, [toyfed.CNN, RESIDUAL], [RESIDUAL])


PAIRS = [(engine, method) for engine in ENGINES for method in METHODS]
SOME = (("vmapped", "fedproto"), ("vmapped", "fedgen"), ("cuda-graphs", "fedsa"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "method"), quick(PAIRS, *SOME))
def test_all_methods_in_float64(name, method, double, tmp_path):
    made = pair(ENGINES[name], method, tmp_path, members_of(method), lr=0.005)
    wanted, found = (Run(plan, start=1) for plan in made)
    assert found.notes == wanted.notes
    assert_equal_runs(found, wanted, 1e-9)


OPTIMISERS = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "adam": {"optimizer": "adam", "lr": 0.003},
    "decay": {"momentum": 0.5, "weight_decay": 0.1, "clip": 0.5},
    "adam-decay": {"optimizer": "adam", "lr": 0.003, "weight_decay": 0.1},
    "epochs": {"local_epochs": 2.5, "momentum": 0.5},
    "drop-last": {"drop_last": True, "local_epochs": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "kind"),
    quick(
        [(engine, kind) for engine in ENGINES for kind in OPTIMISERS],
        *(("vmapped", "adam"), ("vmapped", "drop-last"), ("cuda-graphs", "decay")),
    ),
    indirect=["engine"],
)
def test_optimisers_epochs_and_last_batches(engine, kind, double, tmp_path):
    made = pair(engine, "fedsa", tmp_path, [RESIDUAL], **OPTIMISERS[kind])
    wanted, found = (Run(plan, rounds=1) for plan in made)
    assert found.notes == wanted.notes
    assert_equal_runs(found, wanted, 1e-9)


@pytest.mark.parametrize("kind", quick(["sgd", "adam"], "adam"))
def test_rates_that_fall(engine, kind, double, tmp_path):
    """Steps that an engine recorded in one round use another learning rate in the next."""
    options = OPTIMISERS[kind] | {"lr_schedule": "exponential"}
    falling = pair(engine, "fedproto", tmp_path, [RESIDUAL], **options)
    wanted, found, constant = (
        Run(plan, rounds=3)
        for plan in (*falling, make_plan("fedproto", tmp_path, [RESIDUAL], **OPTIMISERS[kind]))
    )
    assert not found.notes
    assert_equal_runs(found, wanted, 1e-7)
    with pytest.raises(AssertionError):
        assert_equal_runs(found, constant, 1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", quick(["adamw", "rmsprop"], "adamw"))
def test_torch_s_own_optimisers(engine, optimizer, double, tmp_path):
    given = {"lr": 0.002, "clip": 0.5, "optimizer": optimizer}
    made = pair(engine, "fedkd", tmp_path, [RESIDUAL], **given)
    wanted, found = (Run(plan, rounds=1) for plan in made)
    (note,) = found.notes
    assert f"trained by eager: optimizer {optimizer} is torch's own" in note
    assert_equal_runs(found, wanted, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "method"),
    quick(
        [(engine, method) for engine in ENGINES for method in ("fedproto", "fedkd", "fedpkd")],
        ("vmapped", "fedproto"),
    ),
    indirect=["engine"],
)
def test_rounds_under_one_engine(engine, method, double, tmp_path):
    """State that an engine keeps from round to round stays valid.

    The test uses SGD: Adam divides a gradient that is only rounding error by its own size, so
    1e-12 after one round is 1e-7 after two.
    """
    members, sgd = [toyfed.CNN, RESIDUAL], {"optimizer": "sgd", "lr": 0.01}
    wanted, found = (Run(plan, rounds=4) for plan in pair(engine, method, tmp_path, members, **sgd))
    assert found.notes == wanted.notes
    assert_equal_runs(found, wanted, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(["fedproto", "fedktl"], "fedproto"))
def test_the_first_step_in_float32(engine, method, tmp_path):
    made = pair(engine, method, tmp_path, members_of(method), batch_size=20)
    wanted, found = (Run(plan, rounds=2, start=1) for plan in made)
    assert_equal_runs(found, wanted, 2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", quick(["fedproto", "feddistill", "fedsa", "fedtgp"], "fedsa"))
def test_official_variants(engine, method, double, tmp_path):
    """Covers values collected during or before training, and FedSA's head and anchors with bias."""
    set_ = {"variant": "official"}
    made = pair(engine, method, tmp_path, [RESIDUAL], set=set_)
    wanted, found = (Run(plan, start=1) for plan in made)
    assert_equal_runs(found, wanted, 1e-9)
    ours, theirs = found.federation.server.global_state, wanted.federation.server.global_state
    assert worst(dict(theirs), dict(ours)) <= 1e-9


@pytest.mark.slow
def test_a_participant_in_two(engine, double, tmp_path):
    made = pair(engine, "fedproto", tmp_path, [toyfed.CNN], participation=0.5)
    wanted, found = (Run(plan, rounds=3) for plan in made)
    assert_equal_runs(found, wanted, 1e-9)
