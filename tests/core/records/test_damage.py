"""Tests of damaged run folders: resuming gives the undamaged run's result, or a clear error.

A run never finishes with another result, and a refused run changes nothing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import zlib
from pathlib import Path

import pytest
from runtime_toys import install, train, without_times
from slowness import quick
from typer.testing import CliRunner

import protofl as pf
from protofl.records.run_index import runs_in
from protofl.runs.results import configuration as config
from protofl.system.files.lock import folder_lock
from protofl_cli.app import app

pytestmark = pytest.mark.always

OPTIONS = {"rounds": 4, "participation": 0.5, "seed": 2}
METHOD = "fedproto"


class Killed(BaseException):
    """Stands for a signal that ends the process at once."""


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    install(monkeypatch)


class Folders:
    """A run after two, three and all rounds, and a run with another seed."""

    def __init__(self, place):
        self.whole = train(METHOD, place / "finished", dry_run=False, **OPTIONS)
        self.finished = self.whole.folder
        self.older, self.cut = (self._until(place / f"cut{n}", n, OPTIONS) for n in (2, 3))
        options = OPTIONS | {"seed": 5}
        self.other = train(METHOD, place / "other", dry_run=False, **options).folder

    def _until(self, out, number, options):
        def progress(event):
            if event == pf.events.RoundStarted(0, number):
                raise Killed

        with pytest.raises(Killed):
            train(METHOD, out, dry_run=False, progress=progress, **options)
        return out


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        return Folders(tmp_path_factory.mktemp("damage"))


def files_of(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def state(folder):
    """Return the content of a folder: bytes, links, folders."""
    return {
        p: os.readlink(p) if p.is_symlink() else p.read_bytes() if p.is_file() else "folder"
        for p in sorted(folder.rglob("*"))
    }


def resumed(folders, out):
    """Resume a damaged folder and return ``same``, or the message of the refusal."""
    before, notes = state(out), []
    try:
        result = train(None, out, resume=True, progress=notes.append)
    except pf.UsageError as error:
        assert state(out) == before
        assert error.do
        assert "\n" not in error.what
        return error.what
    assert without_times(result.record) == without_times(folders.whole.record)
    assert result.summary == folders.whole.summary
    on_disk = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert on_disk == result.record
    assert json.loads((out / "summary.json").read_text()) == result.summary
    told = [str(note) for note in notes if "is lost" in str(note)]
    if told:  # only weights of the best round (the second) are lost
        assert all("best-t0" in note for note in told)
        lost = {*files_of(folders.finished)} - {*files_of(out)}
        assert {*files_of(out)} <= {*files_of(folders.finished)}
        assert all("best-t0" in name or "-t0-r1." in name for name in lost)
    elif not any(p.name == "summary.json" for p in before):  # a finished run needs fewer files
        assert files_of(out) == files_of(folders.finished)
    return "same"


# --- kinds of damage ------------------------------------------------------------------------------


def flipped(where):
    def damage(file, folders):
        data = bytearray(file.read_bytes())
        data[int(where * (len(data) - 1))] ^= 1
        file.write_bytes(data)

    return damage


def cut_to(share):
    def damage(file, folders):
        data = file.read_bytes()
        file.write_bytes(data[: int(share * len(data))])

    return damage


def doubled(file, folders):
    file.write_bytes(file.read_bytes() * 2)


def without_its_first_line(file, folders):
    file.write_bytes(file.read_bytes().partition(b"\n")[2])


def without_its_last_line(file, folders):
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def edited(file, folders):
    """Change digits, so that JSON stays valid."""
    data = file.read_bytes()
    file.write_bytes(data.translate(bytes.maketrans(b"1357", b"2468")))


def of_another_run(file, folders):
    root = next(p for p in file.parents if (p / "partition.json").exists())
    other = folders.other / file.relative_to(root)
    kind = file.name.split("-")[0]
    like = sorted(other.parent.glob(f"{kind}*")) or [folders.other / "config.json"]
    found = other if other.exists() else like[0]  # a finished run has no session.json
    shutil.copyfile(found, file)


def of_an_older_commit(file, folders):
    root = next(p for p in file.parents if (p / "partition.json").exists())
    older = folders.older / file.relative_to(root)
    kind = "-".join(file.name.split("-")[:2])
    found = older if older.exists() else next(iter(sorted(older.parent.glob(f"{kind}*"))), None)
    if found is None:
        pytest.skip("the older commit has no such file")
    shutil.copyfile(found, file)


def a_link(file, folders):
    target = file.parents[1] / f"target-{file.name}"
    shutil.move(file, target)
    file.symlink_to(target)


def a_link_to_nothing(file, folders):
    file.unlink()
    file.symlink_to("/nowhere/at/all")


def a_folder(file, folders):
    file.unlink()
    file.mkdir()


DAMAGES = {
    "deleted": lambda file, folders: file.unlink(),
    "emptied": cut_to(0),
    "cut in the middle": cut_to(0.5),
    "cut at the end": lambda file, folders: file.write_bytes(file.read_bytes()[:-1]),
    "doubled": doubled,
    "a bit at the front": flipped(0),
    "a bit in the middle": flipped(0.5),
    "a bit at the end": flipped(1),
    "zeros": lambda file, folders: file.write_bytes(bytes(file.stat().st_size)),
    "no first line": without_its_first_line,
    "no last line": without_its_last_line,
    "edited": edited,
    "null": lambda file, folders: file.write_text("null\n"),
    "an empty table": lambda file, folders: file.write_text("{}\n"),
    "another table": lambda file, folders: file.write_text('{"a": [1]}\n'),
    "of another run": of_another_run,
    "of an older commit": of_an_older_commit,
    "a link": a_link,
    "a link to nothing": a_link_to_nothing,
    "a folder": a_folder,
}

PARTS = (
    "config.json",
    "metrics.jsonl",
    "partition.json",
    "checkpoint/manifest.json",
    "checkpoint/before.json",
    "checkpoint/config.json",
    "checkpoint/clients-*.jsonl",
    "checkpoint/kept-*.json",
    "checkpoint/server-t0-r2.safetensors",
    "checkpoint/server-t0-r1.safetensors",
    "checkpoint/client-*-r2.safetensors",
    "checkpoint/client-*-r1.safetensors",
)
"""A file of each kind in the folder after three rounds."""

FAST = [("checkpoint/manifest.json", "emptied"), ("checkpoint/clients-*.jsonl", "a bit at the end")]
FAST += [("checkpoint/kept-*.json", "a bit at the end")]
FAST += [("checkpoint/client-*-r2.safetensors", "a bit in the middle"), ("config.json", "edited")]
FAST += [("metrics.jsonl", d) for d in ("deleted", "doubled", "no last line", "edited")]
FAST += [("checkpoint/server-t0-r2.safetensors", d) for d in ("a link", "of an older commit")]
FAST += [("checkpoint/before.json", "null"), ("metrics.jsonl", "a link")]
FAST += [("config.json", "a bit in the middle")]  # hits the name of an option that was not given


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        pytest.param(part, kind, marks=() if (part, kind) in FAST else pytest.mark.slow)
        for part in PARTS
        for kind in DAMAGES
    ],
)
def test_damage(tmp_path, folders, part, kind):
    out = tmp_path / "run"
    shutil.copytree(folders.cut, out)
    file = min(out.glob(part))
    DAMAGES[kind](file, folders)
    found = resumed(folders, out)
    if "link" in kind or kind == "a folder":
        assert found.startswith("--resume: ")
        assert file.name in found
        return
    assert found == "same" or file.name in found, found
    if part == "config.json" and found == "same":  # other whitespace is not damage
        assert json.loads(file.read_text()) == json.loads((folders.cut / part).read_text())


def test_a_damaged_configuration_is_told_with_its_line(tmp_path, folders):
    """Resuming and `load_run` name the line; on resume, the error names the original copy."""
    out = tmp_path / "run"
    shutil.copytree(folders.cut, out)
    file = out / "config.json"
    lines = file.read_text().splitlines()
    lines[6] = lines[6].replace(":", "", 1)
    file.write_text("\n".join(lines))
    words = r"config\.json is damaged: invalid JSON in line 7"
    with pytest.raises(pf.UsageError, match=words) as caught:
        train(None, out, resume=True)
    assert str(out / "checkpoint" / "config.json") in caught.value.do
    with pytest.raises(pf.UsageError, match=words):
        pf.load_run(out)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["config.json", "metrics.jsonl", "summary.json", "partition.json"])
@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_of_a_finished_run(tmp_path, folders, part, kind):
    out = tmp_path / "run"
    shutil.copytree(folders.finished, out)
    DAMAGES[kind](out / part, folders)
    resumed(folders, out)


@pytest.mark.parametrize("part", ["client-*-r3.*", "client-*-r1.*", "server-t0-r3.*", "kept-*"])
def test_a_flipped_bit_in_the_weights_of_a_finished_run(tmp_path, folders, part):
    """The last round is trained again, or the kept round is lost."""
    out, told = tmp_path / "run", []
    shutil.copytree(folders.finished, out)
    file = min((out / "checkpoint").glob(part))
    flipped(0.5)(file, folders)
    result = train(None, out, resume=True, progress=told.append)
    assert without_times(result.record) == without_times(folders.whole.record)
    notes = [event.text for event in told if isinstance(event, pf.events.Note)]
    (note,) = [text for text in notes if f"{file.name} is " in text]
    again = part.endswith("r3.*")
    assert ("continues from round 3" in note) == again
    assert ("best-t0 is lost" in note) != again
    assert (pf.events.RoundStarted(0, 3) in told) == again
    if again:
        assert files_of(out) == files_of(folders.finished)


@pytest.mark.slow
@pytest.mark.always
def test_a_run_that_ended_without_a_word_says_so(tmp_path, folders, monkeypatch):
    """An example is a run in which a hook calls ``os._exit(0)``."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folders.cut, "runs/a")
    words, told = "ended without a summary in round 5", []
    for command in ("runs list", "runs show runs/a", "plot curve runs/a"):
        result = CliRunner().invoke(app, command.split())
        assert words in " ".join(result.output.split()), command
    assert words in pf.report("runs/a")
    train(None, "runs/a", resume=True, progress=told.append)
    assert pf.events.Note(f"the run {words}") in told


@pytest.mark.slow
def test_edited_accuracies_are_not_believed(tmp_path, folders, monkeypatch):
    """A record that `--resume` refuses is refused or shown with a warning everywhere."""
    monkeypatch.setattr("protofl_workbench.plots.figure_files.svg", lambda *_, **__: "<svg></svg>")
    out, words = tmp_path / "runs" / "a", "metrics.jsonl is damaged: its content was changed"
    shutil.copytree(folders.finished, out)
    shutil.copytree(folders.other, tmp_path / "runs" / "b")
    file = out / "metrics.jsonl"
    row = json.loads(file.read_text().splitlines()[0])
    right = str(row["test_accuracy"])
    file.write_text(file.read_text().replace(right, "0.9" + "9" * (len(right) - 3)))
    for ask in (pf.compare, pf.plots.curve, lambda run: train(None, run, resume=True)):
        with pytest.raises(pf.UsageError, match=words):
            ask(out)
    assert pf.load_run(out).state == "damaged"
    assert f"{words}: do not trust" in pf.report(out)
    assert f"skipping a run: {file.parent}/{words}." in pf.report(tmp_path / "runs")
    assert any(words in note for note in pf.compare(tmp_path / "runs").notes)
    (entry,) = [e for path, e in runs_in(tmp_path / "runs").items() if path == out]
    assert words in entry.problem


@pytest.mark.parametrize("at", ["cut", "finished"])
@pytest.mark.parametrize("text", ["", "{}", "{"])
def test_a_summary_finishes_no_run(tmp_path, folders, at, text):
    out = tmp_path / "run"
    shutil.copytree(getattr(folders, at), out)
    (out / "summary.json").write_text(text)
    assert resumed(folders, out) == "same"


def test_the_commit_before_counts_where_the_last_is_damaged(tmp_path, folders):
    out, told, rounds = tmp_path / "run", [], []
    shutil.copytree(folders.cut, out)
    (file,) = (out / "checkpoint").glob("server-*-r2.*")
    file.write_bytes(file.read_bytes()[:-3])

    def progress(event):
        if isinstance(event, pf.events.Note):
            told.append(event.text)
        elif isinstance(event, pf.events.RoundStarted):
            rounds.append(event.round)

    result = train(None, out, resume=True, progress=progress)
    assert without_times(result.record) == without_times(folders.whole.record)
    assert rounds == [2, 3]
    (line,) = [line for line in told if "server-t0-r2" in line]
    assert "is cut" in line and "continues from round 2" in line


# --- paths out of the folder ----------------------------------------------------------------------


def forged(file, change):
    """Change a manifest and update its checksum."""
    values = json.loads(file.read_text())
    del values["crc32"]
    change(values)
    values["crc32"] = zlib.crc32(json.dumps(values, sort_keys=True).encode())
    file.write_text(json.dumps(values))


@pytest.mark.parametrize("name", ["../../victim/1.safetensors", "absolute", "..", "a/b", ""])
@pytest.mark.parametrize("where", ["files", "clients", "kept"])
def test_names_that_lead_out_of_the_folder(tmp_path, folders, name, where):
    out, victim = tmp_path / "run", tmp_path / "victim/1.safetensors"
    shutil.copytree(folders.cut, out)
    victim.parent.mkdir()
    victim.write_bytes(b"dear")
    name = str(victim) if name == "absolute" else name
    for file in ("manifest.json", "before.json"):
        check = [4, zlib.crc32(b"dear")]
        line = json.dumps({"0": [name, *check]}).encode() + b"\n"
        line_check = [len(line), zlib.crc32(line)]
        (out / "checkpoint/forged.jsonl").write_bytes(line)
        changes = {
            "files": {"server": name, "checks": {name: check}},
            "clients": {"clients": "forged.jsonl", "checks": {"forged.jsonl": line_check}},
            "kept": {"kept": {"best-t0": name}, "checks": {name: check}},
        }

        def change(values, changes=changes[where]):
            for key, value in changes.items():
                values[key] = {**values[key], **value} if isinstance(value, dict) else value

        forged(out / "checkpoint" / file, change)
    assert "leads out of the folder" in resumed(folders, out)
    assert victim.read_bytes() == b"dear"


@pytest.mark.parametrize("place", ["checkpoint", "parked", "profile", "observed", "uploads"])
def test_folders_that_are_links(tmp_path, folders, place):
    out, victim = tmp_path / "run", tmp_path / "victim"
    shutil.copytree(folders.cut, out)
    if place == "checkpoint":
        shutil.move(out / place, victim)
    else:
        victim.mkdir()
    (victim / "mine.txt").write_text("dear")
    (out / place).symlink_to(victim)
    assert f"{place} is a link" in resumed(folders, out)
    assert (victim / "mine.txt").read_text() == "dear"


def test_what_a_killed_writer_left_may_be_a_link(tmp_path, folders):
    out, victim = tmp_path / "run", tmp_path / "mine.txt"
    shutil.copytree(folders.cut, out)
    victim.write_text("dear")
    for name in ("partition.json", "metrics.jsonl", "summary.json"):
        (out / f"{name}.part").symlink_to(victim)
    assert resumed(folders, out) == "same"
    assert victim.read_text() == "dear"


def test_a_copy_by_links_of_a_folder_stays_what_it_is(tmp_path, folders):
    out, copy = tmp_path / "run", tmp_path / "copy"
    shutil.copytree(folders.cut, out)
    shutil.copytree(out, copy, copy_function=os.link)
    before = state(copy)
    assert resumed(folders, out) == "same"
    assert state(copy) == before


# --- changed options and versions -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "value", "named"),
    [
        (["lr"], 0.2, "lr is 0.2, it was 0.1"),
        (["seed"], 9, "seed is 9, it was 2"),
        (["participation"], 1.0, "participation is 1.0, it was 0.5"),
        (["options", METHOD, "lambda"], 3.5, f"options.{METHOD}.lambda is 3.5"),
        (["data", "digest"], "x", "data.digest is x"),
    ],
)
@pytest.mark.parametrize("at", [-1, "cut"])
def test_an_edited_configuration_is_refused_by_name(tmp_path, folders, keys, value, named, at):
    out = tmp_path / "run"
    if at == -1:
        folders._until(out, 0, OPTIONS)  # no round is committed
    else:
        shutil.copytree(folders.cut, out)
    config = json.loads((out / "config.json").read_text())
    inner = config
    for key in keys[:-1]:
        inner = inner[key]
    assert keys[-1] in inner
    inner[keys[-1]] = value
    (out / "config.json").write_text(json.dumps(config))
    assert named in resumed(folders, out)


def notes_of_resuming(folders, out):
    told = []
    shutil.copytree(folders.cut, out)
    assert len(train(None, out, resume=True, progress=told.append).record) == OPTIONS["rounds"]
    return [event.text for event in told if isinstance(event, pf.events.Note)]


def test_a_change_of_versions_is_told(tmp_path, folders, monkeypatch):
    now = config.versions()
    monkeypatch.setattr(config, "versions", lambda: now | {"python": "2.7"})
    line, _ = notes_of_resuming(folders, tmp_path / "run")
    assert line.startswith(f"python was {now['python']} when the run began and is 2.7 now: ")


def test_a_change_of_the_last_bits_is_told_in_one_line(tmp_path, folders, monkeypatch):
    versions, machine = config.versions(), config.machine_facts()
    monkeypatch.setattr(config, "versions", lambda: versions | {"torch": "9.9"})
    monkeypatch.setattr(config, "machine_facts", lambda: machine | {"instruction_set": "OTHER"})
    line, _ = notes_of_resuming(folders, tmp_path / "run")
    what, meaning = line.split(": ")
    torch, instructions = versions["torch"], machine["instruction_set"]
    assert what == f"torch was {torch} and is 9.9, instruction set was {instructions} and is OTHER"
    assert meaning.endswith("will not match those of an uninterrupted run to the last bit")


# --- concurrent runs and full disks ---------------------------------------------------------------


def test_a_folder_has_one_run_at_a_time(tmp_path, folders):
    out = tmp_path / "run"
    shutil.copytree(folders.cut, out)
    before = state(out)
    tried = []

    def progress(event):
        if isinstance(event, pf.events.RoundStarted):
            with pytest.raises(pf.UsageError, match="another process") as caught:
                train(None, out, resume=True)
            tried.append(caught.value.exit_code)

    train(None, out, resume=True, progress=progress)
    assert tried == [2]
    assert not (out / ".lock").exists()
    shutil.rmtree(out)
    shutil.copytree(folders.cut, out)
    with folder_lock(out, "--out"), pytest.raises(pf.UsageError, match="another process"):
        train(None, out, resume=True)
    assert state(out) == before
    assert resumed(folders, out) == "same"


def test_a_new_run_has_its_folder_too(tmp_path):
    tried = []

    def progress(event):
        if isinstance(event, pf.events.RoundStarted):
            with pytest.raises(pf.UsageError, match="another process"):
                train(None, tmp_path / "run", resume=True)
            tried.append(event)

    train(METHOD, tmp_path / "run", rounds=1, dry_run=False, progress=progress)
    assert tried


def test_killed_while_config_json_is_written(tmp_path, folders):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".lock").touch()
    (out / "config.json.part").write_text('{"method": "fed')
    with pytest.raises(pf.UsageError, match="not a run folder"):
        train(None, out, resume=True)
    result = train(METHOD, out, dry_run=False, **OPTIONS)
    assert without_times(result.record) == without_times(folders.whole.record)


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "server-", "client-", "manifest.json", "summary"]
)
def test_a_full_disk_names_the_file(tmp_path, folders, monkeypatch, name):
    out, original = tmp_path / "run", os.fsync
    real_open = open

    class Full:
        """A file on a full disk."""

        def __init__(self, file):
            self._file = file

        def __getattr__(self, key):
            return getattr(self._file, key)

        def __enter__(self):
            return self

        def __exit__(self, *rest):
            self._file.close()

        def write(self, data):
            raise OSError(28, "No space left on device")

    def full(file, mode="r", *rest, **options):
        found = real_open(file, mode, *rest, **options)
        begun = (out / "metrics.jsonl").exists() and (out / "metrics.jsonl").stat().st_size
        writes = isinstance(file, (str, Path)) and mode[0] in "wa" and str(out) in str(file)
        return Full(found) if writes and begun and name in Path(file).name else found

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", full)
        with pytest.raises(pf.RunFailure, match="No space left") as caught:
            train(METHOD, out, dry_run=False, **OPTIONS)
    assert name in caught.value.what
    assert "make room" in caught.value.do
    assert os.fsync is original
    assert not list(out.rglob("*.part"))
    assert resumed(folders, out) == "same"


@pytest.mark.slow
def test_random_damage(tmp_path, folders):
    """One to three files are damaged at random."""
    chance = random.Random(5)
    for number in range(60):
        out = tmp_path / str(number)
        shutil.copytree(chance.choice([folders.cut, folders.finished]), out)
        for name in chance.sample(files_of(out), chance.choice([1, 1, 2, 3])):
            DAMAGES[chance.choice([*DAMAGES])](out / name, folders)
        resumed(folders, out)
        shutil.rmtree(out)


# --- whole folders --------------------------------------------------------------------------------

METHODS = ["fedproto", "fedkd", "fedgen", "fedavg", "fml", "fedtgp", "fedsa"]


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("method", quick(METHODS, "fedkd"))
def test_the_files_of_a_resumed_run_are_those_of_the_whole_one(tmp_path, method):
    """Files are byte-identical except for times, because names are in order of creation."""
    options = {"rounds": 3, "dry_run": False, "models": "toy1", "batch_size": 12}

    def progress(event):
        if event == pf.events.RoundStarted(0, 2):
            raise Killed

    whole = train(method, tmp_path / "whole", **options).folder
    with pytest.raises(Killed):
        train(method, tmp_path / "cut", progress=progress, **options)
    cut = train(None, tmp_path / "cut", resume=True).folder
    assert files_of(cut) == files_of(whole)
    timed = ("metrics.jsonl", "manifest.json", "before.json")
    for name in files_of(whole):
        if not name.endswith(timed):
            assert (cut / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize("change", [{"round": 1}, {"round": 3}, {"trial": 1}, {"holders": [0]}])
def test_a_manifest_that_was_edited_does_not_count(tmp_path, folders, change):
    """A manifest has its own checksum: the edit is found, and the previous commit is used."""
    out = tmp_path / "run"
    shutil.copytree(folders.cut, out)
    file = out / "checkpoint" / "manifest.json"
    values = json.loads(file.read_text())
    assert values | change != values
    file.write_text(json.dumps(values | change))
    notes = []
    told = lambda event: notes.append(getattr(event, "text", ""))  # noqa: E731
    result = train(None, out, resume=True, progress=told)
    assert "manifest.json is damaged" in " ".join(notes)
    assert without_times(result.record) == without_times(folders.whole.record)
