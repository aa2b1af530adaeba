"""Tests of the reader of run folders: finished, running, cut at any byte, damaged."""

from __future__ import annotations

import json
import shutil
import threading

import pytest
from runtime_toys import train
from written_records import CONFIG

import protofl as pf
from protofl.records.reading import Reading
from protofl.records.record_files import read_rows
from protofl.records.run_index import entry_of, runs_below
from protofl.system.files.lock import LOCK, folder_lock, is_held


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made.folder, tmp_path / "copy")


def test_a_finished_run_is_read_as_it_was_written(made):
    found = Reading.of(made.folder)
    assert found.rows == made.record
    assert found.summary == made.summary
    assert found.config["method"] == "fedproto"
    assert len(found.partition["train_counts"]) == found.config["clients"]
    assert found.state == "finished"


def test_a_record_cut_at_any_byte_has_its_whole_lines(made, tmp_path):
    """Compare with an independent count of line ends before the cut."""
    whole = (made.folder / "metrics.jsonl").read_bytes()
    ends = {n for n, byte in enumerate(whole) if byte == ord("\n")}
    file = tmp_path / "metrics.jsonl"
    for length in [*range(0, len(whole), 37), *ends, *(end + 1 for end in ends)]:
        file.write_bytes(whole[:length])
        # A line is complete after its last brace: no shorter part of it is JSON.
        assert len(read_rows(file)) == sum(end <= length for end in ends), length


def changed(values, key, value):
    """Return a JSON value with the dotted key set to `value`, or without the key for ``...``."""
    first, _, rest = key.partition(".")
    if rest:
        return {**values, first: changed(values[first], rest, value)}
    left = {k: v for k, v in values.items() if k != first}
    return left if value is ... else {**left, first: value}


LINES = {
    "trial": ["0", -1, True, ...],
    "round": [[0], 0.5, ...],
    "test_accuracy": ["x", float("inf"), 10**400, [1], True],
    "client_accuracies": [[0.5], {"a": 0.5}, {"0": None}],
    "loss_terms.ce": ["x", {}],
    "extra": [None, ...],
    "metrics": [{"f1": 0.5}, {"f1": {"all": [[float("inf")]]}}],
    "measures": [{"flops": 10**400}],
    "seconds": [{}, None, "1"],
    "seconds.train": ["1", -1],
    "participants": [None, 1.5, ...],
    "answered": [[True], "x"],
    "absent": [{"2": 7}, ["left"]],
    "virtual": [7],
    "time": [7, "\ud800"],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in LINES.items() for value in values]
)
def test_a_line_of_another_form_is_named(copy, key, value):
    line = json.loads((copy / "metrics.jsonl").read_text().splitlines()[1])
    text = json.dumps(changed(line, key, value)).replace("Infinity", "1e999")
    test_a_damaged_line_is_named(copy, text.encode(), f"({key}|half a character)")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"\x00\x00\x00", "not JSON"),
        (b"[" * 100_000, "too deep to read"),
        (b"[1]", "it is .1."),
    ],
)
def test_a_damaged_line_is_named(copy, line, said):
    file = copy / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], line + b"\n", *lines[2:]]))
    with pytest.raises(pf.UsageError, match=rf"metrics\.jsonl, line 2, is damaged: .*{said}"):
        read_rows(file)
    with pytest.raises(pf.UsageError, match="line 2"):
        repr(pf.load_run(copy))


@pytest.mark.parametrize("name", ["config.json", "partition.json", "summary.json"])
@pytest.mark.parametrize("text", ["{", "[1]", "null"])
def test_a_damaged_table_is_named(copy, name, text):
    (copy / name).write_text(text)
    with pytest.raises(pf.UsageError, match=rf"{name} is damaged"):
        getattr(Reading.of(copy), name.removesuffix(".json"))


def test_a_configuration_of_no_run_is_refused(copy):
    for key, value in (("rounds", "many"), ("rounds", 0), ("options", None), ("plugins", [7])):
        (copy / "config.json").write_text(json.dumps(CONFIG | {key: value}))
        with pytest.raises(pf.UsageError, match=rf"config\.json is damaged: {key}.* is "):
            pf.load_run(copy)


def test_what_is_no_run_is_said_with_the_runs_that_are_near(made, tmp_path):
    with pytest.raises(pf.UsageError, match="not a run folder") as caught:
        pf.load_run(made.folder.parent)
    assert caught.value.near == "runs in it: run"
    with pytest.raises(pf.UsageError, match="no such folder"):
        pf.load_run(tmp_path / "nowhere")
    with pytest.raises(pf.UsageError, match="it is a file"):
        pf.load_run(made.folder / "config.json")


def test_a_run_that_lost_its_configuration_is_none(copy):
    (copy / "config.json").unlink()
    with pytest.raises(pf.UsageError, match="not a run folder") as caught:
        pf.load_run(copy)
    assert "config.json is lost" in caught.value.near
    with pytest.raises(pf.UsageError, match="it is the checkpoint of one"):
        pf.load_run(copy / "checkpoint")


def test_a_finished_run_whose_record_is_short_is_damaged(copy):
    assert Reading.of(copy).state == "finished"
    lines = (copy / "metrics.jsonl").read_bytes().splitlines(True)
    (copy / "metrics.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:20])
    found = Reading.of(copy)
    assert found.state == "damaged"
    assert found.lost.startswith(f"{copy}/metrics.jsonl, line 6, is missing")
    (copy / "summary.json").unlink()
    told = entry_of(copy)
    assert (told.done, told.problem) == (5, found.lost)


def test_a_copy_without_checkpoints_is_finished_where_it_has_a_summary(copy):
    shutil.rmtree(copy / "checkpoint")
    assert Reading.of(copy).finished
    (copy / "summary.json").write_text("")  # as on a full disk
    assert not Reading.of(copy).finished
    assert Reading.of(copy).summary is None


@pytest.mark.slow
def test_a_folder_is_readable_while_a_run_writes_it(tmp_path, toys):
    """A second thread reads continuously, from before the folder exists to the end of the run."""
    folder, over = tmp_path / "run", threading.Event()
    seen, failed, read = [], [], threading.Event()

    def meet(event):
        """After each round, wait for two reads, so that the second one is complete."""
        for _ in range(2 * isinstance(event, pf.events.RoundDone)):
            read.clear()
            assert read.wait(60)

    def follow():
        while not over.is_set():
            try:
                found = Reading.of(folder)
                seen.append((found.state, len(found.rows), found.partition is None))
                read.set()
            except pf.UsageError as error:
                if "is not a run folder" not in error.what:
                    failed.append(error)
                    raise

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        train("fedproto", folder, rounds=5, dry_run=False, progress=meet)
    finally:
        over.set()
        reader.join()
    assert not failed
    states = [state for state, _, _ in seen]
    counts = [count for _, count, _ in seen]
    assert states[0] == "going on" and counts == sorted(counts)
    assert len({*counts}) > 3 and "unfinished" not in states[:-1]
    assert Reading.of(folder).state == "finished"


def test_an_interrupted_run_is_unfinished(tmp_path, toys):
    class Killed(BaseException):
        pass

    def kill(event):
        if isinstance(event, pf.events.RoundStarted) and event.round == 2:
            raise Killed

    with pytest.raises(Killed):
        train("fedproto", tmp_path / "run", rounds=4, progress=kill)
    run = pf.load_run(tmp_path / "run")
    assert run.state == "unfinished" and run.summary is None and len(run.rows) == 2


def test_who_has_a_folder_is_seen_and_not_disturbed(tmp_path):
    assert not is_held(tmp_path / LOCK)
    looking, over = threading.Event(), threading.Event()

    def look():
        while not over.is_set():
            is_held(tmp_path / LOCK)
            looking.set()

    others = threading.Thread(target=look)
    others.start()
    looking.wait()
    try:
        for _ in range(100):  # the check never causes a refusal
            with folder_lock(tmp_path, "--out"):
                assert is_held(tmp_path / LOCK)
        with folder_lock(tmp_path, "--out"), pytest.raises(pf.UsageError, match="another process"):
            folder_lock(tmp_path, "--out").__enter__()
    finally:
        over.set()
        others.join()


def test_runs_below_a_folder(made, tmp_path):
    for place in ("b", "a/2", "a/1", ".hidden/3"):
        (tmp_path / place).mkdir(parents=True)
        shutil.copy(made.folder / "config.json", tmp_path / place)
    (tmp_path / "lost").mkdir()  # a checkpoint without a run's configuration is not a run
    shutil.copytree(made.folder / "checkpoint", tmp_path / "lost/checkpoint")
    (tmp_path / "a/1/checkpoint").mkdir()
    shutil.copy(made.folder / "config.json", tmp_path / "a/1/checkpoint")
    (tmp_path / "empty").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path)
    (tmp_path / "linked").symlink_to(made.folder)
    found = [path.relative_to(tmp_path).as_posix() for path in runs_below(tmp_path)]
    assert found == ["a/1", "a/2", "b", "linked"]
