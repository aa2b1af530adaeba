"""Tests of the side of small images: an option of a group, a default of a data set, and records."""

from __future__ import annotations

import json

import pytest
import torch

import protofl as pf
from protofl.backends import Plan
from protofl.testing import toy as toyfed


def images(channels, size):
    """Return the plugin of a data set with 48 images in four classes."""
    shape = (48, channels, size, size)
    x = torch.randint(0, 255, shape, generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return toyfed.dataset(pf.datasets.Dataset(x, torch.arange(48) % 4, 48, ["a", "b", "c", "d"]))


class Enlarging(toyfed.group(toyfed.PIXELS, K=6, side=12)):
    """A group whose side of images a data set may set."""

    class Config(pf.Config):
        """Options."""

        min_side: int = pf.Field(12, ge=4, from_data=True, description="side of small images")
        width: int = pf.Field(3, description="an option that is the user's alone")


class Fixed(toyfed.group(toyfed.PIXELS, K=6, side=12)):
    """A group whose side is the user's alone."""

    class Config(pf.Config):
        """Options."""

        min_side: int = pf.Field(12, ge=4, description="side of small images")


class Digits8(images(1, 8)):
    """Images of 8 pixels with a default for groups."""

    defaults = {
        "clients": 2,
        "partition": "iid",
        "lr": 0.3,
        "resized": {"lr": 0.2, "options": {"models": {"min_side": 9}}},
    }


EXTRA = {
    ("model-group", "enlarging"): Enlarging,
    ("model-group", "fixed"): Fixed,
    ("dataset", "digits8"): Digits8,
}
GIVEN = {"method": "local", "models": "enlarging", "dataset": "digits8", "backend": "local"}


def plan(tmp_path, **options):
    given = GIVEN | {"data_dir": tmp_path, "device": "cpu"} | options
    return Plan.make(given, EXTRA, report=lambda line: None)


def side(found):
    assert found.info.sample.shape[1] == found.info.sample.shape[2]
    return found.info.sample.shape[1]


def test_a_data_set_sets_the_side_of_groups_that_allow_it(tmp_path):
    found = plan(tmp_path)
    assert side(found) == 9
    assert found.set_by["models.min_side"] == "data set digits8"
    assert found.settings.options["models"] == {"min_side": 9, "width": 3}
    assert any("brought to 9 px" in note for note in found.notes)
    assert found.settings.lr == 0.2 and found.set_by["lr"] == "data set digits8"
    fixed = plan(tmp_path, models="fixed")
    assert side(fixed) == 12 and fixed.settings.lr == 0.3


def test_a_group_has_a_learning_rate_for_sgd(tmp_path, monkeypatch):
    monkeypatch.setattr(Enlarging, "lr", 0.5, raising=False)
    assert plan(tmp_path).settings.lr == 0.2  # the data set's goes before
    monkeypatch.setattr(Digits8, "defaults", {"clients": 2, "partition": "iid"})
    found = plan(tmp_path)
    assert found.settings.lr == 0.5 and found.set_by["lr"] == "models enlarging"
    assert plan(tmp_path, optimizer="adam").settings.lr == 0.01
    assert plan(tmp_path, lr=0.1).settings.lr == 0.1


def test_the_user_wins(tmp_path):
    found = plan(tmp_path, options={"models": {"min_side": 10}})
    assert side(found) == 10 and found.set_by.get("models.min_side") is None
    assert found.settings.lr == 0.3  # the other rate is for the other side
    assert plan(tmp_path, lr=0.1).settings.lr == 0.1
    assert side(plan(tmp_path, models="fixed", options={"models": {"min_side": 10}})) == 10


def test_images_that_are_large_enough_stay(tmp_path):
    assert side(plan(tmp_path, options={"models": {"min_side": 8}})) == 8
    assert side(plan(tmp_path, options={"models": {"min_side": 5}})) == 8


# --- the installed ones, in a run that begins, is resumed, repeated and read ----------------------

RUN = {"models": "resnet10", "clients": 2, "rounds": 2, "subset": 0.04, "local_epochs": 1}
RUN |= {"device": "cpu", "backend": "local", "dry_run": False, "progress": False}


def stop(event):
    if isinstance(event, pf.events.RoundDone):
        raise KeyboardInterrupt


def interrupted(folder, **options):
    with pytest.raises(KeyboardInterrupt):
        pf.run("local", out=folder, **{**RUN, "progress": stop, **options})
    return folder


def planned(**options):
    """Run, and return the side of the images that the models saw."""
    events = []
    pf.run(**{**options, "progress": events.append})
    return next(side(e.plan) for e in events if isinstance(e, pf.events.Planned))


@pytest.mark.slow
def test_a_run_is_resumed_and_repeated_with_its_side(tmp_path):
    whole = pf.run("local", out=tmp_path / "whole", set={"models.min_side": 32}, **RUN)
    run = interrupted(tmp_path / "run", set={"models.min_side": 32})
    assert planned(out=run, resume=True) == 32
    figures = [
        [row["test_accuracy"] for row in run.record] for run in (whole, pf.load_run(run).result)
    ]
    assert figures[0] == figures[1]
    assert side(pf.load_run(run).plan) == 32  # for its models, scores and exports
    again = {"config": run / "config.json", "rounds": 1, "backend": "local", "dry_run": False}
    assert planned(out=tmp_path / "again", **again) == 32
    assert planned(out=tmp_path / "changed", set={"models.min_side": 16}, **again) == 16


def test_a_new_run_on_the_digits_records_its_side(tmp_path):
    assert planned(method="local", out=tmp_path / "run", **RUN | {"rounds": 1}) == 16
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["options"]["models"]["min_side"] == 16
    assert config["set_by"]["models.min_side"] == "data set digits"


@pytest.mark.parametrize(
    ("models", "expected"),
    [("htfe8", 16), ("res34-htc4", 16), ("htm10", 32), ("cnn4", 28), ("fedpkd-hom", 32)],
)
def test_sides_of_the_digits(tmp_path, models, expected):
    found = Plan.make({"method": "local", "models": models, "data_dir": tmp_path})
    assert side(found) == expected


@pytest.mark.parametrize("models", ["htfe8", "resnet18", "res34-htc4"])
def test_published_sides_stay(tmp_path, models):
    """No data set that is larger has another side than before."""
    given = {"method": "local", "models": models, "data_dir": tmp_path, "clients": 2}
    for size in (28, 32, 64):
        sized = {("dataset", "sized"): images(3, size)}
        found = Plan.make(given | {"dataset": "sized", "partition": "iid"}, sized)
        assert side(found) == max(32, size)


def test_architectures_of_another_group_take_the_run_s_images(tmp_path):
    found = Plan.make({"method": "local", "models": "htfe2", "data_dir": tmp_path})
    assert [a.name for a in found.info.others("htfe3")][:3] == ["resnet10", "resnet18", "resnet34"]
    with pytest.raises(pf.UsageError, match="takes other samples"):
        found.info.others("cnn4")  # its images have 28 pixels at least


def test_a_side_that_the_nets_cannot_take_is_refused(tmp_path):
    with pytest.raises(pf.UsageError, match=r"min_side=8.*greater than or equal to 16"):
        Plan.make(
            {"method": "local", "models": "htfe8", "options": {"models": {"min_side": 8}}},
        )
