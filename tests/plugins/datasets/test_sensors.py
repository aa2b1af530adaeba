"""Tests of HAR and PAMAP2 with small files in the layout of UCI's folders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.backends import Plan
from protofl.data import cache
from protofl_plugins.datasets.sensors import ACTIVITIES, CHANNELS, HAR, PAMAP2, SIGNALS

rng = np.random.default_rng(0)
NAMES = ["WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING"]


def decode(plugin, root, **options):
    config = plugin.Config(path=str(root), **options)
    key = plugin().cache_key(config=config, data_dir=root)
    return key, plugin().decode(config=config, data_dir=root)


def failure(plugin, root, **options):
    with pytest.raises(pf.UsageError) as error:
        decode(plugin, root, **options)
    assert error.value.do
    return error.value.what


@pytest.fixture
def har(tmp_path):
    """Write a folder of 4 persons for training and 2 for testing; return it and its windows."""
    root, kept = tmp_path / "UCI HAR Dataset", {}
    for part, people in (("train", (1, 3, 5, 6)), ("test", (2, 4))):
        folder = root / part / "Inertial Signals"
        folder.mkdir(parents=True)
        subject = np.repeat(people, 8)
        y = np.arange(len(subject)) % 6 + 1
        x = rng.normal(size=(len(y), 9, 128)).astype(np.float32)
        for channel, name in enumerate(SIGNALS):
            np.savetxt(folder / f"{name}_{part}.txt", x[:, channel], fmt=" %.7e")
        np.savetxt(root / part / f"subject_{part}.txt", subject, fmt="%d")
        np.savetxt(root / part / f"y_{part}.txt", y, fmt="%d")
        kept[part] = x, y, subject
    names = "".join(f"{i + 1} {name}\n" for i, name in enumerate(NAMES))
    (root / "activity_labels.txt").write_text(names)
    return root, kept


def test_har(har):
    root, kept = har
    for folder in (root, root.parent):  # the parent folder works too
        _, data = decode(HAR, folder)
        assert data.sample == pf.datasets.SampleSpec((9, 128), "series")
        assert data.classes == [name.lower() for name in NAMES]
        x = np.concatenate([kept["train"][0], kept["test"][0]])
        assert np.allclose(data.x.numpy(), x, atol=1e-6)
        assert data.y.tolist() == [y - 1 for part in kept.values() for y in part[1]]
        assert data.columns["subject"].tolist() == [s for part in kept.values() for s in part[2]]
        assert data.num_train == 48


def test_each_person_of_har_is_a_client(har, tmp_path):
    given = {"method": "local", "dataset": f"har:{har[0]}", "models": "cnn1d"}
    plan = Plan.make({**given, "data_dir": str(tmp_path / "data"), "batch_size": 4})
    assert plan.settings.clients == 6 and plan.settings.partition == "column:subject"
    subjects = plan.data.columns["subject"]
    for client in range(6):
        rows = torch.cat([plan.split(0).train(client), plan.split(0).test(client)])
        assert {*subjects[rows.numpy()].tolist()} == {client + 1} and len(rows) == 8


def test_activities_of_har_are_named_by_their_numbers(har):
    root, kept = har
    lines = [f"{number}  {name}" for number, name in enumerate(NAMES, 1)]
    (root / "activity_labels.txt").write_text("\n".join(reversed(lines)))
    _, data = decode(HAR, root)
    assert data.classes == [name.lower() for name in NAMES]
    assert data.y.tolist() == [y - 1 for part in kept.values() for y in part[1]]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("1 WALKING\nSITTING\n", "'SITTING' is not a number and a name"),
        ("1 WALKING\n1 SITTING\n", "'1 SITTING'"),
        ("1 WALKING\n2 WALKING\n", "'2 WALKING'"),
        ("1 WALKING\n2 SITTING\n", "activity 3, which has no name"),
    ],
)
def test_faults_in_the_names_of_har(har, lines, words):
    (har[0] / "activity_labels.txt").write_text(lines)
    assert words in failure(HAR, har[0])


def test_har_without_names_counts_its_activities(har):
    (har[0] / "activity_labels.txt").unlink()
    assert decode(HAR, har[0])[1].classes == [str(i) for i in range(6)]


def test_faults_of_har(har, tmp_path):
    root, _ = har
    assert f"no folder {tmp_path / 'none'}" in failure(HAR, tmp_path / "none")
    signal = root / "test" / "Inertial Signals" / "body_gyro_y_test.txt"
    lines = signal.read_text().splitlines()
    for text, words in (
        ("\n".join(lines[:-1]), "has 15 lines, but"),
        ("\n".join(" ".join(line.split()[:100]) for line in lines), "has 100 columns, but"),
        ("", "is empty"),
        ("a b\n", "cannot be read as numbers"),
    ):
        signal.write_text(text)
        assert f"{signal} {words}" in failure(HAR, root)
    signal.unlink()
    assert f"no file {signal}" in failure(HAR, root)


def readings(activity):
    """Return rows of 54 numbers, one sensor reading each."""
    found = rng.normal(size=(len(activity), 54))
    found[:, 1] = activity
    return found


def save(root, number, found, part="Protocol"):
    (root / part).mkdir(parents=True, exist_ok=True)
    np.savetxt(root / part / f"subject{number}.dat", found, fmt="%.6f")


@pytest.fixture
def pamap2(tmp_path):
    root = tmp_path / "PAMAP2_Dataset"
    for number in (101, 102, 105):
        save(root, number, readings(np.repeat([0, 1, 4, 0, 24, 20], 64)))
    save(root, 105, readings(np.repeat([9, 12], 64)), "Optional")
    return root


SMALL = {"window": 32, "step": 16}


def test_pamap2(pamap2):
    _, data = decode(PAMAP2, pamap2, **SMALL)
    assert data.sample == pf.datasets.SampleSpec((27, 32), "series")
    assert data.classes == [*ACTIVITIES.values()] and len(data.classes) == 12
    # 64 readings make 3 windows of 32, 16 apart; the activities 0, 9 and 20 are left out.
    of = {n: data.y[data.columns["subject"] == n].tolist() for n in (101, 102, 105)}
    one, walk, rope, stairs = (list(ACTIVITIES).index(a) for a in (1, 4, 24, 12))
    assert of[101] == of[102] == [one] * 3 + [walk] * 3 + [rope] * 3
    assert of[105] == of[101] + [stairs] * 3
    _, less = decode(PAMAP2, pamap2, optional=False, **SMALL)
    assert len(less.y) == 27
    assert decode(PAMAP2, pamap2, **SMALL)[0] != decode(PAMAP2, pamap2, window=32, step=8)[0]
    assert data.preparation is None  # each person's channels have largest values of their own


def test_a_window_of_pamap2_against_a_slow_cut(tmp_path):
    found = readings(np.repeat([0, 3], 40)).round(6)
    found[50, [5, 22]] = np.nan  # a lost reading
    save(tmp_path, 101, found)
    save(tmp_path, 102, readings(np.repeat([2], 80)))
    _, data = decode(PAMAP2, tmp_path, window=16, step=8)
    columns = [*range(4, 7), *range(10, 16), *range(21, 24), *range(27, 33)]
    assert [*columns, *range(38, 41), *range(44, 50)] == CHANNELS
    clean = np.where(np.isnan(found), 0, found)
    for window, start in enumerate(range(40, 65, 8)):
        for channel, column in enumerate(CHANNELS):
            largest = max(abs(v) for v in clean[:, column])
            expected = [clean[start + t, column] / largest for t in range(16)]
            assert np.allclose(data.x[window, channel].numpy(), expected, atol=1e-6)
    assert data.x[1, CHANNELS.index(5), 2] == 0


def test_faults_of_pamap2(pamap2, tmp_path):
    assert "subject101.dat" in failure(PAMAP2, tmp_path / "PAMAP2_Dataset" / "Optional")
    save(pamap2, 102, readings(np.repeat([1, 2], 20)))
    message = failure(PAMAP2, pamap2, window=32)
    assert "subject102.dat has no 32 readings in a row of one activity" in message
    np.savetxt(pamap2 / "Protocol" / "subject102.dat", np.ones((4, 53)))
    assert "subject102.dat has 53 numbers in a line, expected 54" in failure(
        PAMAP2, pamap2, **SMALL
    )


def test_the_cache_keeps_the_persons(pamap2, tmp_path):
    key, data = decode(PAMAP2, pamap2, **SMALL)
    kept = cache.load(key, tmp_path / "data", lambda: data, lambda line: None)
    assert kept.columns["subject"].tolist() == data.columns["subject"].tolist()
