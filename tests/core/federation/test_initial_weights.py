"""Tests of ``--init``: initial weights from a finished run or a safetensors file."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from runtime_toys import GIVEN, train, without_times

import protofl as pf
from protofl.backends import Plan
from protofl.runs.results.configuration import config_of

pytestmark = pytest.mark.usefixtures("toys")
QUICK = {"rounds": 1, "progress": False}


@pytest.fixture(scope="module")
def donor(tmp_path_factory):
    """Return the folder of a finished run of two trials, seeds 0 and 1."""
    from runtime_toys import install

    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        return train("local", tmp_path_factory.mktemp("donor") / "run", trials=2, **QUICK).folder


def make_plan(method, **options):
    return Plan.make(GIVEN | {"method": method} | options, report=lambda line: None)


def weights(plan, client, trial=0):
    return plan.initial_model(client, trial).state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def saved(path, tensors, **about):
    safetensors.torch.save_file(tensors, path, about or None)
    return path


def refused(path, **options):
    with pytest.raises(pf.UsageError) as problem:
        make_plan("local", init=path, **options).check_initial_weights()
    return str(problem.value)


@pytest.mark.parametrize("trial", [0, 1])
def test_clients_start_from_their_own_models(donor, trial):
    plan, run = make_plan("fedavg", init=donor, trials=2, models="toy1"), pf.load_run(donor)
    assert not same(weights(plan, 2, trial), weights(make_plan("fedavg", models="toy1"), 2, trial))
    plan = make_plan("fedproto", init=donor, trials=2)
    for client in range(4):
        assert same(weights(plan, client, trial), run.model(client, trial=trial).state_dict())


def test_a_client_that_the_run_lacks_starts_from_one_of_its_architecture(donor):
    plan = make_plan("local", init=donor, clients=6)
    assert same(weights(plan, 5), pf.load_run(donor).model(1).state_dict())
    assert "it lacks" in plan.check_initial_weights()


def test_files(donor, tmp_path):
    run = pf.load_run(donor)
    first, second = (run.model(client).state_dict() for client in (0, 1))
    named = {f"dense8/{k}": t for k, t in first.items()}
    named |= {f"client-3/{k}": t for k, t in second.items()}
    plan = make_plan("local", init=saved(tmp_path / "both.safetensors", named))
    seeds = make_plan("local")
    assert same(weights(plan, 2), first) and same(weights(plan, 3), second)
    assert same(weights(plan, 1), weights(seeds, 1))
    plain = saved(tmp_path / "plain.safetensors", first)
    assert same(weights(make_plan("local", models="toy1", init=plain), 3), first)
    marked = saved(tmp_path / "marked.safetensors", second, architecture="dense5")
    assert same(weights(make_plan("local", init=marked), 1), second)
    exported = run.export(0, tmp_path / "exported.safetensors")
    assert same(weights(make_plan("local", init=exported), 2), first)


def test_what_does_not_fit_is_refused(donor, tmp_path):
    first = pf.load_run(donor).model(0).state_dict()

    def file(tensors, **about):
        return saved(tmp_path / "file.safetensors", tensors, **about)

    assert "did you mean 'dense8'" in refused(file({f"dense9/{k}": t for k, t in first.items()}))
    assert "no client 4" in refused(file({f"client-4/{k}": t for k, t in first.items()}))
    assert "ARCHITECTURE/TENSOR" in refused(file(first))
    wrong = {f"client-1/{k}": t for k, t in first.items()}
    assert "has the shape" in refused(file(wrong))
    renamed = {k.replace("head", "heads"): t for k, t in first.items()}
    assert "did you mean 'head" in refused(file(renamed, architecture="dense8"))
    for start in ("module.", "_orig_mod."):  # of DataParallel and torch.compile
        wrapped = {start + k: t for k, t in first.items()}
        assert f"removeprefix({start!r})" in refused(file(wrapped), models="toy1")
    lacking = {k: t for k, t in first.items() if k != "head.weight"}
    assert "head.weight is missing" in refused(file(lacking), models="toy1")
    whole = {k: t.long() for k, t in first.items()}
    assert "torch.int64" in refused(file(whole), models="toy1")
    torch.save(first, pickle := tmp_path / "weights.pt")
    assert "is a pickle" in refused(pickle)
    (tmp_path / "text").write_text("text of some length")
    assert "not a safetensors file" in refused(tmp_path / "text")
    assert "cannot be read" in refused(tmp_path / "missing")
    assert "not a run folder" in refused(tmp_path)


def test_a_run_that_does_not_fit_is_refused(donor, tmp_path):
    assert "no trial with seed 2" in refused(donor, seed=2)
    assert "no trial with seed 2" in refused(donor, trials=3)
    other = train("local", tmp_path / "other", models="toy1", **QUICK).folder
    assert "dense5" in refused(other)
    (other / "checkpoint" / "manifest.json").unlink()
    (other / "summary.json").unlink()
    assert "not finished" in refused(other, models="toy1")


def test_the_digest_is_part_of_the_identity(donor, tmp_path):
    one, moved = (saved(tmp_path / n, {"client-0/x": torch.ones(1)}) for n in ("a", "b"))
    identity = config_of(make_plan("local", init=one))["identity"]
    assert config_of(make_plan("local", init=moved))["identity"] == identity
    assert config_of(make_plan("local"))["identity"] != identity
    saved(one, {"client-0/x": torch.zeros(1)})
    assert config_of(make_plan("local", init=one))["identity"] != identity
    assert config_of(make_plan("local", init=donor))["files"]["init"]


def test_a_resumed_run_needs_the_same_weights(donor, tmp_path):
    first = pf.load_run(donor).model(0).state_dict()
    path = saved(tmp_path / "file", {f"client-0/{k}": t for k, t in first.items()})
    options = {"init": path, "rounds": 1, "progress": False, "participation": 0.5}
    once = train("fedproto", tmp_path / "once", **options | {"rounds": 2})
    train("fedproto", tmp_path / "twice", **options)
    again = {"resume": True, "rounds": 2, "init": path, "progress": False}
    twice = train(None, tmp_path / "twice", **again)
    assert without_times(twice.record) == without_times(once.record)
    path.unlink()
    with pytest.raises(pf.UsageError, match="cannot be read"):
        train(None, tmp_path / "twice", resume=True, rounds=3)
    saved(path, {f"client-0/{k}": t + 1 for k, t in first.items()})
    with pytest.raises(pf.UsageError, match="not the file with which the run began"):
        train(None, tmp_path / "twice", resume=True, rounds=3)


def test_worker_processes_start_from_the_same_weights(donor):
    plan = make_plan("local", init=donor)
    there = Plan.from_json(plan.to_json())
    assert same(weights(there, 1), pf.load_run(donor).model(1).state_dict())
