"""Tests of ``--add HOOK=METHOD``: methods share payloads and the server's global state."""

from __future__ import annotations

import json

import pytest
import torch
from recording_methods import CALLS, called, compose, run_of
from runtime_toys import install, lines_of, make_plan, open_federation, train, without_times

import protofl as pf
from protofl.errors import SentTwice
from protofl.hooks.plugin.merging import merge_payloads
from protofl.runs.dry_run.short_rounds import dry_run
from protofl_cli.screens.tables import providers

WHOLE = ["upload_payload=fedproto", "server_aggregate=fedproto", "download_payload=fedproto"]


def rows(*classes):
    """Return prototypes whose values equal their classes."""
    known = torch.tensor(classes)
    return {"prototypes": known.float().unsqueeze(1).repeat(1, 2), "classes": known}


def logits(*classes):
    known = torch.tensor(classes)
    return {"class_logits": known.float().unsqueeze(1), "classes": known}


# --- merging payloads -----------------------------------------------------------------------------


def test_keys_of_both_in_the_order_of_the_methods():
    found = merge_payloads({"a": {"x": torch.ones(1)}, "b": {"y": torch.ones(2)}, "c": {}})
    assert list(found) == ["x", "y"] and len(found["y"]) == 2


def test_the_same_classes_are_sent_once():
    found = merge_payloads({"a": rows(0, 2), "b": logits(0, 2)})
    assert set(found) == {"prototypes", "class_logits", "classes"}


def test_rows_of_other_classes_keep_theirs():
    found = merge_payloads(
        {"a": rows(0, 2), "b": logits(1, 2, 3), "c": {"public_logits": torch.ones(3)}}
    )
    assert set(found) == {
        "prototypes",
        "classes",
        "class_logits",
        "class_logits.classes",
        "public_logits",
    }
    for name, classes in (("prototypes", [0, 2]), ("class_logits", [1, 2, 3])):
        sent, whose = found.rows(name)
        assert whose.tolist() == classes and sent[:, 0].tolist() == classes


def test_rows_of_a_plugins_own_name_keep_their_classes_too():
    own = {"spread": torch.ones(2, 5), "scalar": torch.tensor(1.0), "classes": torch.tensor([4, 5])}
    found = merge_payloads({"a": rows(0, 2), "b": own})
    assert found.classes_of("spread").tolist() == [4, 5]
    assert "scalar.classes" not in found


def test_what_both_say_of_the_client_is_sent_once():
    counts = {"counts": torch.tensor([3, 4]), "samples": torch.tensor(7)}
    found = merge_payloads({"a": rows(0, 2) | counts, "b": logits(0, 2) | counts})
    assert found["samples"] == 7 and found["counts"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("one", "other", "key"),
    [
        (rows(0, 2), rows(0, 2), "prototypes"),
        (rows(0, 2), rows(1), "prototypes"),
        ({"samples": torch.tensor(1)}, {"samples": torch.tensor(2)}, "samples"),
        ({"samples": torch.tensor(1)}, {"samples": torch.tensor(1.0)}, "samples"),
        ({"head/weight": torch.ones(1)}, {"head/weight": torch.ones(1)}, "head/weight"),
    ],
)
def test_a_key_that_both_send_is_refused_by_name(one, other, key):
    with pytest.raises(SentTwice, match=f"left and right both send '{key}'"):
        merge_payloads({"left": one, "right": other})


def test_nothing_is_written_into_what_hooks_return():
    one, other = rows(0, 2), logits(1)
    merge_payloads({"a": one, "b": other})
    assert set(one) == {"prototypes", "classes"} and set(other) == {"class_logits", "classes"}


# --- in a run -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_auxiliary_model_and_prototypes_travel_together():
    plan = make_plan("fml", add=[*WHOLE, "fedproto.align"])
    dry_run(plan)
    lines = lines_of(plan)
    assert set(lines[1]["loss_terms"]) == {"ce", "kl", "aux_ce", "aux_kl", "fedproto.align"}
    alone = {name: lines_of(make_plan(name))[1] for name in ("fml", "fedproto")}
    for direction in ("upload_floats", "download_floats"):
        both = alone["fml"][direction] + alone["fedproto"][direction]
        assert lines[1][direction] == both, direction


def test_the_first_methods_numbers_stay_what_they_were():
    """No loss of fml reads fedproto's payloads, so they do not change fml's results."""
    plain, more = lines_of(make_plan("fml")), lines_of(make_plan("fml", add=WHOLE))
    for one, other in zip(plain, more, strict=True):
        assert one["loss_terms"] == other["loss_terms"]
        assert one["test_accuracy"] == other["test_accuracy"]


def test_both_hooks_of_the_server_see_the_same_global_state():
    """A hook does not see the changes of other methods in the same hook: order is irrelevant."""
    seen = []

    def counting(key):
        class Counting:
            @pf.hookimpl
            def upload_payload(self, client):
                return pf.Payload({f"of_{key}": torch.ones(1)})

            @pf.hookimpl
            def server_aggregate(self, server, uploads):
                seen.append(sorted(server.global_state))
                return {key: torch.ones(1)}

            @pf.hookimpl
            def server_train(self, server, uploads):
                seen.append(sorted(server.global_state))
                return {f"{key}_trained": torch.ones(1)}

        return Counting

    hooks = ("upload_payload", "server_aggregate", "server_train")
    plan = make_plan(counting("a"), {"b": counting("b")}, add=[f"{hook}=b" for hook in hooks])
    federation = open_federation(plan)
    federation.round(0)
    assert seen == [[], [], ["a", "b"], ["a", "b"]]
    assert sorted(federation.server.global_state) == ["a", "a_trained", "b", "b_trained"]


def test_each_method_is_called_with_its_own_view():
    CALLS.clear()
    run_of(add=["upload_payload=b", "server_train=local"])
    assert "upload_payload" in called("b") and "upload_payload" in called("a")
    assert all(weight == {"a": 1, "b": 2}[name] for name, _, weight, _ in CALLS)
    assert "setup_client" in called("b") and "setup_server" not in called("b")


def test_transforms_are_around_what_is_merged():
    seen = []

    class Looking:
        @pf.hookimpl(wrapper=True)
        def upload_payload(self, client):
            payload = yield
            seen.append(set(payload))
            return payload

    lines_of(make_plan("fml", transforms={"looking": Looking}, add=WHOLE), rounds=1)
    assert all({"prototypes", "counts", "classes"} < keys for keys in seen)
    assert all(any(key.startswith("auxiliary/") for key in keys) for keys in seen)


def test_one_that_returns_nothing_is_named():
    class Nothing:
        @pf.hookimpl
        def upload_payload(self, client):
            return None

    plan = make_plan("fedproto", {"nothing": Nothing}, add=["upload_payload=nothing"])
    with pytest.raises(pf.RunFailure, match=r"nothing\.upload_payload returned nothing"):
        lines_of(plan)


# --- refusals and advice --------------------------------------------------------------------------


def refused(method, **options):
    with pytest.raises(pf.UsageError) as caught:
        dry_run(make_plan(method, **options))
    return caught.value


def test_a_clash_is_found_before_training():
    error = refused("fedproto", add=["upload_payload=fedtgp"])
    assert "fedproto and fedtgp both send 'prototypes'" in error.what
    assert (error.lacks, error.name) == ("name", "prototypes")
    assert "--use" in error.do


def test_the_advice_leads_to_a_run():
    """Following the errors' advice for a single loss term leads to a composition that runs."""
    error = refused("fml", add=["fedproto.align"])
    advice = error.do.rpartition("all that fedproto needs: ")[2]
    added = [word for word in advice.split() if word != "--add"]
    assert sorted(added) == sorted(WHOLE)
    dry_run(make_plan("fml", add=["fedproto.align", *added]))


def test_the_advice_names_what_is_still_lacking():
    error = refused("fml", add=["fedproto.align", "download_payload=fedproto"])
    assert "fedproto, " not in error.do.partition(";")[0]  # no prototypes are known yet
    for hook in ("upload_payload", "server_aggregate"):
        assert f"--add {hook}=fedproto" in error.do
    assert "--add download_payload=fedproto" not in error.do


def test_what_would_clash_is_to_be_used_in_place():
    error = refused("fedtgp", use={"server_aggregate": "fedproto"})
    assert "fedgen" in error.do.partition(" (--add upload_payload=METHOD)")[0]
    in_place = error.do.partition("or of: ")[2].partition(" (--use upload_payload=METHOD)")[0]
    assert {"fedproto", "fedsa", "fedsaf"} <= {*in_place.split(", ")}


def test_the_one_that_fails_is_named():
    error = refused("fedproto", add=["server_aggregate=feddistill"])
    assert "server_aggregate of feddistill" in error.near
    error = refused("feddistill", add=["server_aggregate=fedproto"])
    assert "server_aggregate of fedproto reads it" in error.near


@pytest.mark.parametrize(
    ("add", "what", "more"),
    [
        (["inference=fedproto"], "can be added to: 'inference'", "--use inference=fedproto"),
        (["upload_paylod=b"], "can be added to: 'upload_paylod'", "'upload_payload'"),
        (["upload_payload=a"], "a provides it already", ""),
        (["upload_payload=b", "upload_payload=b"], "b provides it already", ""),
        (["upload_payload=fedprot"], "unknown method 'fedprot'", "'fedproto'"),
    ],
)
def test_what_can_not_be_added(add, what, more):
    with pytest.raises(pf.UsageError) as caught:
        compose(add=add)
    assert what in caught.value.what
    assert more in str(caught.value)


def test_one_in_place_and_the_main_method_beside_it():
    composition = compose(use={"upload_payload": "b"}, add=["upload_payload=a"])
    assert composition.makers("upload_payload") == ["b", "a"]
    assert providers(composition)["upload_payload"] == "b + a"


# --- payload validation
# -------------------------------------------------------------------------------------


def test_the_declarations_of_both_count():
    """Keys that either method declares are accepted; undeclared keys are still refused."""

    class Sloppy:
        downloads = {"x": "one"}

        @pf.hookimpl
        def download_payload(self, server, client_id):
            return pf.Payload(x=torch.ones(1), z=torch.ones(1))

    lines_of(make_plan("fml", add=WHOLE))
    with pytest.raises(pf.RunFailure, match="'z' which no downloads of its sender declare"):
        lines_of(make_plan("fml", {"sloppy": Sloppy}, add=["download_payload=sloppy"]))


@pytest.mark.slow
def test_in_a_folder_and_a_file(tmp_path, monkeypatch):
    install(monkeypatch)
    add = ["local_loss=fedproto.align", *WHOLE]
    first = train("fml", tmp_path / "one", add=add)
    assert json.loads((tmp_path / "one/config.json").read_text())["add"] == [
        "fedproto.align",
        *WHOLE,
    ]
    again = pf.run(config=tmp_path / "one/config.json", out=tmp_path / "two", backend="local")
    (file := tmp_path / "both.json").write_text(json.dumps({"method": "fml", "add": add}))
    by_file = train(None, tmp_path / "three", config=file)
    for run in (again, by_file):
        assert without_times(run.record) == without_times(first.record)
