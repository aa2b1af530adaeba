"""Tests of `protofl run --events FILE`: lines for other programs, on the events of a run."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import protofl as pf
from protofl import UsageError, events
from protofl_cli.app import app
from protofl_cli.json.event_lines import EventLines

RUN = "fedproto --models mlp --dataset wine --clients 3 --rounds 2 --backend local --no-dry-run"


SCRIPTS = Path(__file__).parents[3] / "docs" / "how-to" / "use-in-scripts.md"
KEYS = {
    name: (re.findall(r"`(\w+)`", cell), "…" in cell)
    for name, cell in re.findall(
        r"^\| `(\w+)` \| [^|]* \| ?([^|]*?) ?\|$",
        SCRIPTS.read_text(encoding="utf-8").partition("| event |")[2],
        re.MULTILINE,
    )
}
"""{event: (keys in the table of the page, True if it has further ones)}."""


def run(*words):
    return CliRunner().invoke(app, ["run", *words])


def lines(text):
    """Return the events of a text after comparing their keys with the table of the page."""
    found = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    for each in found:
        keys, more = KEYS[each["event"]]
        assert {*keys, "event", "time"} <= {*each}
        assert more or {*keys, "event", "time"} == {*each}
    return found


def names(found):
    return [each["event"] for each in found]


ROUND = ["round_started", "stage", "stage", "stage", "stage", "evaluation", "round", "checkpoint"]


def test_a_file_has_every_round(tmp_path):
    done = run(*RUN.split(), "--out", "a", "--events", "a.jsonl")
    assert done.exit_code == 0, done.output
    found = lines((tmp_path / "a.jsonl").read_text(encoding="utf-8"))
    told = [name for name in names(found) if name != "note"]
    assert told == ["planned", "started", *ROUND, *ROUND, "finished"]
    record = pf.load_run("a")
    rounds = [each for each in found if each["event"] == "round"]
    assert [each["row"] for each in rounds] == [row.line for row in record.rows]
    assert found[-1]["summary"] == record.summary
    planned = next(each for each in found if each["event"] == "planned")
    assert planned["folder"] == found[-1]["folder"] == str(tmp_path / "a")
    refused = run(*RUN.split(), "--out", "b", "--events", "a.jsonl")
    assert refused.exit_code == 2 and "a.jsonl exists already" in refused.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_standard_output_has_the_lines_alone():
    done = run(*RUN.split(), "--out", "a", "--events", "-")
    assert done.exit_code == 0
    assert names(lines(done.stdout))[-1] == "finished"
    assert "round 2/2" in done.stderr and "best on test samples" in done.stderr
    both = run(*RUN.split(), "--events", "-", "--json")
    assert both.exit_code == 2 and "exclude each other" in both.stderr


@pytest.mark.always
@pytest.mark.slow
def test_a_resumed_run_appends(tmp_path):
    run(*RUN.split(), "--out", "a", "--events", "a.jsonl")
    before = (tmp_path / "a.jsonl").read_text(encoding="utf-8")
    done = run("--resume", "--out", "a", "--rounds", "3", "--events", "a.jsonl")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "a.jsonl").read_text(encoding="utf-8")
    assert text.startswith(before)
    later = [each for each in lines(text[len(before) :]) if each["event"] != "note"]
    assert names(later) == ["planned", "started", *ROUND, "finished"]
    assert [each["rounds_done"] for each in later[:2]] == [2, 2]
    assert later[-2]["round"] == 2


@pytest.mark.slow
def test_refused_uploads_are_told(tmp_path):
    (tmp_path / "bad.py").write_text(
        "import protofl as pf\n"
        "from protofl_plugins.methods.fedproto import FedProto\n\n"
        "class Bad(FedProto):\n"
        "    @pf.hookimpl\n"
        "    def upload_payload(self, client):\n"
        "        payload = super().upload_payload(client)\n"
        "        if client.id == 1 and client.round == 1:\n"
        "            payload['prototypes'] = payload['prototypes'] * float('nan')\n"
        "        return payload\n",
        encoding="utf-8",
    )
    words = ["bad.py:Bad", *RUN.split()[1:], "--on-bad-upload", "skip", "--events", "-"]
    done = run(*words, "--out", "a")
    assert done.exit_code == 0, done.output
    refused = [each for each in lines(done.stdout) if each["event"] == "refused_upload"]
    assert [(each["round"], each["client"]) for each in refused] == [(1, 1)]


def test_the_end_of_a_run_that_does_not_finish_is_told(tmp_path):
    done = run("fedproto", "--models", "nosuch", "--events", "a.jsonl")
    assert done.exit_code == 2
    last = lines((tmp_path / "a.jsonl").read_text(encoding="utf-8"))[-1]
    assert (last["event"], last["exit_code"]) == ("failed", 2) and "nosuch" in last["what"]

    class Stopped(KeyboardInterrupt):
        exit_code = 143

    for error, told in (
        (KeyboardInterrupt(), {"event": "interrupted", "exit_code": 130}),
        (Stopped(), {"event": "interrupted", "exit_code": 143}),
        (pf.RunFailure("lost", do="resume"), {"event": "failed", "what": "lost", "exit_code": 1}),
        (ValueError("odd"), {"event": "failed", "exit_code": 1}),
    ):
        stream = io.StringIO()
        with pytest.raises(type(error)), EventLines(stream, events.ignore):
            raise error
        [found] = lines(stream.getvalue())
        assert told.items() <= found.items()


@pytest.mark.slow
def test_an_interrupted_run_says_so(monkeypatch):
    """The command itself passes on the interruption, and its exit code is that of the line."""
    from protofl.runs.results import round_commits

    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(round_commits.RoundCommits, "_report", interrupt)
    done = run(*RUN.split(), "--out", "a", "--events", "-")
    last = lines(done.stdout)[-1]
    assert (last["event"], last["exit_code"], done.exit_code) == ("interrupted", 130, 130)
    assert "resume with: protofl run --resume --out a" in done.stderr


def test_a_closed_pipe_ends_the_lines_and_not_the_run():
    reading, writing = os.pipe()
    told = []
    with os.fdopen(writing, "w") as stream:
        follow = EventLines(stream, told.append)
        follow(events.Note("first"))
        os.close(reading)
        follow(events.Note("second"))
        follow(events.Note("third"))
    texts = [event.text for event in told]
    assert texts[0] == "first" and "the run goes on without these lines" in texts[1]
    assert texts[2:] == ["second", "third"]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_ends_the_lines_and_not_the_run():
    done = run(*RUN.split(), "--out", "a", "--events", "/dev/full")
    assert done.exit_code == 0 and "No space left" in done.output
    assert pf.load_run("a").finished


@pytest.mark.always
@pytest.mark.slow
def test_a_reader_that_leaves_costs_no_round(tmp_path):
    """As for ``head -1`` behind the run: all rounds are trained, and the exit code is 0."""
    import subprocess

    program = "from protofl_cli.start import main; main()"
    words = [sys.executable, "-c", program, "run", *RUN.split(), "--out", "a", "--events", "-"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and json.loads(process.stdout.readline())
        process.stdout.close()
        error = process.stderr.read().decode()
        assert process.wait(120) == 0, error
    assert "Traceback" not in error
    assert pf.load_run(tmp_path / "a").finished


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        EventLines(tmp_path / "nowhere" / "a.jsonl", events.ignore)
