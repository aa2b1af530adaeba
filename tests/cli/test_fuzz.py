"""Fuzz tests of the command line: errors have a message, no traceback and leave no process."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path

import pytest

ODD = [
    "",
    " ",
    "-",
    "=",
    ":",
    "npz:",
    "²",
    "٣",
    "1e999",
    "nan",
    "-inf",
    "-1",
    "0",
    "1e-400",
    "true",
]
ODD += [
    "None",
    "x" * 300,
    "../..",
    "/",
    "/dev/null",
    "a\tb",
    "💥",
    "%s",
    "{}",
    "[]",
    "[1",
    "../x:y",
]
ODD += [
    "1/0",
    "99999999999999999999",
    "@",
    "fedsa@nobody",
    "local_loss=",
    "a.b.c=d",
    ".=.",
    "cuda:9",
]
OPTIONS = {
    "--models": ["cnn4", "htfe2", "mlp", "torchvision:", "torchvision:nope", "nope"],
    "--subset": ["1/20", "3", "0.1"],
    "--partition": ["iid", "dirichlet", "shards", "nope"],
    "--clients": ["2", "3", "150", "1000000"],
    "--participation": ["0.5", "1", "2"],
    "--rounds": ["1"],
    "--local-epochs": ["1"],
    "--batch-size": ["64", "1000000"],
    "--optimizer": ["sgd", "adam", "nope"],
    "--lr": ["0.1", "1e30"],
    "--momentum": ["0.9", "1"],
    "--feature-dim": ["8", "16"],
    "--public": ["none", "10", "1000", "npz:nope"],
    "--set": [
        "lambda=1",
        "beta=1",
        "partition.beta=2",
        "dataset.side=3",
        "models.x=1",
        "alpha=true",
    ],
    "--use": ["inference=local", "server_train=fedtgp", "nope=local", "local_loss=nope"],
    "--add": ["local_loss=fedsa.mcl", "local_loss=fedproto.align", "fedsa.mcl"],
    "--drop": ["local_loss.ce", "local_loss.align", "ce"],
    "--with": ["gaussian-noise", "nope"],
    "--block": ["fedsa", "method/local", "nope", "cnn4@protofl"],
    "--seed": ["1", "18446744073709551616"],
    "--trials": ["1", "2"],
    "--device": ["cpu", "cuda", "vulkan", "meta", "mps"],
    "--precision": ["fp32", "tf32", "bf16", "fp64"],
    "--generator": ["tiny-style", "stylegan3", "nope"],
    "--engine": ["eager", "nope"],
    "--backend": ["local", "nope"],
    "--client-store": ["memory", "disk", "tape"],
    "--server-threads": ["1", "5000"],
    "--job-limit": ["0", "100"],
    "--eval-every": ["1", "2"],
    "--checkpoint-every": ["off", "1", "²"],
    "--on-bad-upload": ["stop", "skip", "cry"],
    "--out": ["runs/a", "used", "x" * 300, "file/below"],
    "--config": ["c.json", "c.toml", "deep.json", "nope.toml", "binary.toml"],
    "--data-dir": ["file"],
}
FLAGS = ["--resume", "--quiet", "--augment", "--drop-last", "--deterministic", "--same-init"]
FLAGS += ["--no-augment", "--profile", "--hold-split", "--nonsense", "--qiet"]
METHODS = ["local", "fedproto", "fedsa", "fedavg", "nope", "fedktl", ""]
OTHERS = [
    ["show", "fedsa"],
    ["show", "nope/x"],
    ["list-plugins", "--kind", "nope"],
    ["list-plugins", "--names"],
    ["partition", "show", "--out", "p.png"],
    ["partition", "show", "--clients", "0"],
    ["check", "nope"],
    ["check", "file.py:X"],
    ["generator", "train", "nope"],
    ["new-plugin", "method", "x"],
    ["nope"],
]


def command(stream):
    """Return a random command line: mostly runs, with a few right, wrong or odd options."""
    if stream.random() < 0.2:
        words = list(stream.choice(OTHERS))
        if stream.random() < 0.5:
            words.insert(stream.randrange(len(words) + 1), stream.choice(ODD))
        return words
    words = ["run", stream.choice(METHODS)]
    for name in stream.sample(list(OPTIONS), stream.randrange(6)):
        words += [name, stream.choice(ODD if stream.random() < 0.4 else OPTIONS[name])]
    return words + stream.sample(FLAGS, stream.choice([0, 0, 0, 1, 2]))


def config(stream):
    """Return the text of a --config file with some right and some wrong values."""
    values = {}
    for name in stream.sample(list(OPTIONS), 3):
        odd = [*ODD, True, False, None, [], {}, -1, 1e308, ["x"], {"x": {"y": 1}}, "\0", "\ud800"]
        values[name.removeprefix("--")] = stream.choice(odd)
    return json.dumps(values)


def children():
    """Return the ids of this process's children that still exist."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if parent == str(os.getpid()):
            found.append(stat.parent.name)
    return set(found)


@pytest.mark.parametrize(
    ("first", "count"), [(0, 20), pytest.param(20, 180, marks=pytest.mark.slow)]
)
def test_nonsense_ends_in_words(cli, data_dir, few, tmp_path, first, count, monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    before = children()
    for number in range(first, first + count):
        stream = random.Random(number)
        folder = tmp_path / str(number)
        (folder / "used").mkdir(parents=True)
        monkeypatch.chdir(folder)
        (folder / "used" / "x").touch()
        (folder / "file").touch()
        (folder / "c.json").write_text(config(stream))
        (folder / "c.toml").write_text('lr = 0.1\nmethod = "local"\n[set]\n"x" = 1\n')
        (folder / "deep.json").write_text("[" * 50_000)
        (folder / "binary.toml").write_bytes(bytes(range(256)))
        words = command(stream)
        if words[0] == "run":
            usual = ("--models", "cnn4", "--clients", 2, "--rounds", 1, "--feature-dim", 8)
            tiny = ("--dataset", few, "--data-dir", data_dir, "--backend", "local")
            words = ["run", *usual, *tiny, "--batch-size", 64, "--no-dry-run", *words[1:]]
        elif words[:2] == ["partition", "show"]:
            words += ["--dataset", few, "--data-dir", data_dir]
        result = cli(*words)
        said = result.output + result.stderr
        where = f"seed {number}: {words}\n{said}\n"
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            where += "".join(traceback.format_exception(result.exception))
            pytest.fail(where)
        assert result.exit_code in (0, 1, 2, 130), where
        assert "Traceback" not in said and "internal error" not in said, where
        assert result.exit_code == 0 or "error:" in said, where
    assert children() <= before


VALUES = ['"x"', "[1]", '{"a": 1}', "null", "1e999", "1" + "0" * 400, "true", "-1", "0.5", '""']
VALUES += ['"../payload.py:Evil"', '{"class": "../payload.py:Evil"}', '"../elsewhere"']
VALUES += ['"\\ud800"', '"\\u001b[31m"', "[" * 300 + "]" * 300, "[" * 100_000, '"../../x"', "\0"]
REPRODUCTION = {
    "heading": '"T"', "rows": '[{label = "a", method = "local"}]',
    "columns": '[{label = "c", set = {clients = 3}}]', "figure": '{read = "best"}',
    "options": '{models = "cnn4"}', "scales": '{smoke = {rounds = 1}}',
}  # fmt: skip
READERS = (
    "runs list runs",
    "runs show runs/a",
    "report runs --out r.html --force",
    "compare runs",
    "run --resume --out runs/a --backend local",
)


def places(value, path=()):
    """Yield the paths of the values in a JSON value."""
    yield path
    pairs = {dict: dict.items, list: lambda found: enumerate(found[:1])}
    for key, inner in pairs.get(type(value), lambda _: ())(value):
        yield from places(inner, (*path, key))


def spoilt(value, stream):
    """Return a JSON text in which one value is replaced or missing."""
    path, mark = stream.choice([*places(value)]), "@" * 9
    if not path:
        return stream.choice(VALUES)
    at = value
    for key in path[:-1]:
        at = at[key]
    if stream.random() < 0.2:
        del at[path[-1]]
        return json.dumps(value)
    at[path[-1]] = mark
    return json.dumps(value).replace(f'"{mark}"', stream.choice(VALUES))


def spoil(file, stream):
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    number = stream.randrange(len(lines))
    lines[number] = spoilt(json.loads(lines[number]), stream)
    file.write_text("\n".join(lines) + "\n", errors="surrogatepass")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, data_dir, few):
    import protofl as pf

    folder = tmp_path_factory.mktemp("recorded") / "runs"
    given = {"dataset": few, "models": "cnn4", "clients": 3, "rounds": 2, "dry_run": False}
    given |= {"data_dir": data_dir, "backend": "local", "progress": False, "feature_dim": 8}
    for name, method in (("a", "fedproto"), ("b", "local")):
        pf.run(method, out=folder / name, **given)
    return folder


LIMIT = 30
"""Seconds after which a command counts as hanging; each takes less than one second."""


@contextmanager
def limited(words):
    """Fail if the block does not end; systems without the alarm signal have no limit."""

    def hangs(*_):
        pytest.fail(f"no end after {LIMIT} s: {words}")

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
WATCHED = {"folders": None, "found": []}
"""Folders where the process may write (None: not watched), and other paths that it wrote."""


def _audited(event, given):
    if WATCHED["folders"] is None:
        return
    if event in ("os.mkdir", "os.remove", "os.rmdir"):
        paths = given[:1]
    elif event in ("os.rename", "os.link", "os.symlink"):
        paths = given[:2]
    elif event == "open" and isinstance(given[2], int) and given[2] & WRITES:
        paths = given[:1]
    else:
        return
    for path in paths:
        if isinstance(path, str | bytes | os.PathLike):
            whole = os.path.realpath(os.fsdecode(path))
            if f"{os.sep}__pycache__" in whole:  # Python keeps modules that it has compiled
                continue
            if whole != os.devnull and not whole.startswith(WATCHED["folders"]):
                WATCHED["found"].append(f"{event} {whole}")


@pytest.fixture
def writes(tmp_path, data_dir):
    """Provide a list of the paths outside the test's folders that were written."""
    from matplotlib import font_manager, get_configdir  # they create user folders

    assert font_manager.fontManager.ttflist and get_configdir()
    if "hooked" not in WATCHED:
        sys.addaudithook(_audited)
        WATCHED["hooked"] = True
    WATCHED["found"] = []
    WATCHED["folders"] = tuple(os.path.realpath(f) + os.sep for f in (tmp_path, data_dir))
    yield WATCHED["found"]
    WATCHED["folders"] = None


@pytest.mark.parametrize(
    ("first", "count"), [(0, 10), pytest.param(10, 110, marks=pytest.mark.slow)]
)
def test_spoilt_files_end_in_words(
    cli, recorded, tiny, tmp_path, monkeypatch, first, count, writes
):
    """Damaged records, reproductions, configurations and traces cause no hang and no traceback.

    Nothing is written elsewhere, and no code that a file names is imported.
    """
    (tmp_path / "payload.py").write_text("open(__file__ + '.imported', 'w')\nclass Evil: pass\n")
    monkeypatch.setattr("protofl_workbench.plots.figure_files.svg", lambda *_, **__: "<svg></svg>")
    small, before = " ".join(tiny), {*tmp_path.iterdir()}
    for number in range(first, first + count):
        stream, folder = random.Random(f"file {number}"), tmp_path / str(number)
        shutil.copytree(recorded, folder / "runs")
        monkeypatch.chdir(folder)
        part = stream.choice(["config.json", "metrics.jsonl", "summary.json", "partition.json"])
        spoil(folder / "runs/a" / part, stream)
        reproduction = REPRODUCTION | {stream.choice([*REPRODUCTION]): stream.choice(VALUES)}
        text = "".join(f"{key} = {value}\n" for key, value in reproduction.items())
        (folder / "s.toml").write_text(text, errors="surrogatepass")
        (folder / "c.json").write_text(spoilt({"lr": 0.1, "set": {"x": 1}, "use": {}}, stream))
        figures = spoilt([1.0, 6.0, 2.0, 50.0], stream).strip("[]")
        head = "gflops,download,upload,latency"
        (folder / "w.csv").write_text(f"{head}\n{figures}\n", errors="surrogatepass")
        other = stream.choice(
            (
                "reproduce s.toml --plan",
                f"run local --config c.json {small} --quiet",
                f"run local --devices trace:w.csv {small} --quiet",
                f"run local --participants-from runs/a {small}",
            )
        )
        for command in (stream.choice(READERS), stream.choice(READERS), other):
            with limited(f"{number}: {command}"):
                result = cli(*command.split())
            said = result.output + result.stderr
            where = f"{number}: {part}, {command}\n{said[:2000]}"
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                where += "".join(traceback.format_exception(result.exception))
                pytest.fail(where)
            assert "Traceback" not in said and "internal error" not in said, where
            assert "\x1b" not in said and result.exit_code in (0, 1, 2), where
        shutil.rmtree(folder)
        assert not {*tmp_path.iterdir()} - before  # everything was written into the folder
        assert not writes, number
