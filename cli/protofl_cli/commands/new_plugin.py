"""``protofl new-plugin``: write the folder of a distribution with one plugin in it."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from protofl_cli import render
from protofl_cli.options import Debug

if TYPE_CHECKING:
    from protofl.hooks.discovery.registry import Registry


@dataclass(frozen=True)
class _Kind:
    """What is particular to the plugins of one kind."""

    contract: str
    description: str
    run: str


KINDS = {
    "method": _Kind(
        "MethodContract",
        "Clients share prototypes, and features are drawn to their mean.",
        "protofl run {name} --models cnn4 --rounds 3",
    ),
    "model-group": _Kind(
        "ModelGroupContract",
        "Three small convolutional nets of growing width.",
        "protofl run fedproto --models {name} --rounds 3",
    ),
    "partitioner": _Kind(
        "PartitionerContract",
        "Clients of unlike size, each with the whole distribution of classes.",
        "protofl run fedproto --models cnn4 --partition {name} --rounds 3",
    ),
    "dataset": _Kind(
        "DatasetContract",
        "Images of smooth patterns under noise.",
        "protofl run fedproto --models cnn4 --dataset {name} --rounds 3",
    ),
    "generator": _Kind(
        "GeneratorContract",
        "Images of a frozen random net.",
        "protofl run fedktl --models cnn4 --generator {name} --rounds 2",
    ),
    "wrapper": _Kind(
        "WrapperContract",
        "Uploads that are clipped, and cross with one byte a number.",
        "protofl run fedproto --models cnn4 --with {name} --rounds 3",
    ),
    "metric": _Kind(
        "MetricContract",
        "How often the right class is among the two likeliest.",
        "protofl run fedproto --models cnn4 --metrics {name} --rounds 3",
    ),
    "selection": _Kind(
        "SelectionContract",
        "Clients take turns, a block of them after the other.",
        "protofl run fedproto --models cnn4 --selection {name} --participation 0.5 --rounds 3",
    ),
    "world": _Kind(
        "WorldContract",
        "Devices of one kind that are there by night.",
        "protofl run fedproto --models cnn4 --world {name} --rounds 3",
    ),
    "tracker": _Kind(
        "TrackerContract",
        "A line of text a round, in a file of the run's folder.",
        "protofl run fedproto --models cnn4 --track {name} --rounds 3",
    ),
    "engine": _Kind(
        "EngineContract",
        "Local training with torch.optim's own optimisers.",
        "protofl run fedproto --models cnn4 --engine {name} --rounds 3",
    ),
    "backend": _Kind(
        "BackendContract",
        "Hosts in interpreters of their own, one line of JSON a job.",
        "protofl run fedproto --models cnn4 --backend {name} --workers 2 --rounds 3",
    ),
}

SAMPLES = {
    ("model-group", "series"): _Kind(
        "ModelGroupContract",
        "Three small 1-D convolutional nets of growing width, for series.",
        "protofl run fedproto --models {name} --dataset digits-series --rounds 3",
    ),
    ("model-group", "tokens"): _Kind(
        "ModelGroupContract",
        "Three bags of embeddings of growing width, for token sequences.",
        "protofl run fedproto --models {name} --dataset python-docs --rounds 3",
    ),
    ("model-group", "table"): _Kind(
        "ModelGroupContract",
        "Three perceptrons of growing width, for tables.",
        "protofl run fedproto --models {name} --dataset wine --rounds 3",
    ),
    ("dataset", "series"): _Kind(
        "DatasetContract",
        "Waves of several frequencies under noise.",
        "protofl run fedproto --models cnn1d --dataset {name} --rounds 3",
    ),
    ("dataset", "tokens"): _Kind(
        "DatasetContract",
        "Sequences of made-up words.",
        "protofl run fedproto --models text --dataset {name} --rounds 3",
    ),
    ("dataset", "table"): _Kind(
        "DatasetContract",
        "Rows of numbers around the centres of their classes.",
        "protofl run fedproto --models mlp --dataset {name} --rounds 3",
    ),
}
"""Kinds of which there is a template for other samples than images, and which."""


def new_plugin(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The plugin's name: lower-case letters, digits, '-' and '_'. The distribution is "
            "called protofl-NAME.",
        ),
    ],
    kind: Annotated[
        str,
        typer.Option("--kind", metavar="KIND", help=f"The plugin's kind: {', '.join(KINDS)}."),
    ] = "method",
    samples: Annotated[
        str,
        typer.Option(
            "--samples",
            metavar="KIND",
            help="What a data set holds or a model group takes: image, series, tokens or table.",
        ),
    ] = "image",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The folder to write, empty or new; protofl-NAME here unless given.",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a new plugin: a whole distribution that installs, runs and passes its tests.

    Next: pip install -e '.[dev]' in the new folder, protofl check NAME, and the README there.
    """
    from protofl.errors import UsageError, unknown
    from protofl.hooks.discovery.registry import Registry

    if kind not in KINDS:
        raise unknown("kind", kind, KINDS, "write --kind KIND")
    _check_samples(kind, samples)
    _check_name(Registry(), kind, name)
    folder = (out or Path(f"protofl-{name}")).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{folder} exists already",
            "a new plugin is written into a folder that is new or empty",
            "give another with --out DIR, or remove it",
        )
    files = render_files(kind, name, samples)
    try:
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{folder} can't be written: {error.strerror or error}", do="give --out DIR"
        ) from None
    render.line(f"{kind}/{name} is in {folder}:")
    for path in files:
        render.line(f"  {path}", "dim")
    render.text()
    render.line("Next:")
    steps = [f"cd {folder}", "pip install -e '.[dev]'", f"protofl check {kind}/{name}", "pytest"]
    for step in (*steps, _about(kind, samples).run.format(name=name)):
        render.line(f"  {step}")


def _about(kind: str, samples: str) -> _Kind:
    return KINDS[kind] if samples == "image" else SAMPLES[kind, samples]


def _check_samples(kind: str, samples: str) -> None:
    """Whether there is a template of the kind for such samples.

    Raises:
        UsageError: There is none.
    """
    from protofl.errors import UsageError, unknown

    if samples == "image" or (kind, samples) in SAMPLES:
        return
    able = sorted({kind for kind, _ in SAMPLES})
    if kind not in able:
        raise UsageError(
            f"--samples {samples}: a {kind} is not about one kind of sample",
            f"kinds of plugin that are: {', '.join(able)}",
            "leave it out",
        )
    raise unknown("kind of sample", samples, ["image", *(s for k, s in SAMPLES if k == kind)])


def _check_name(registry: Registry, kind: str, name: str) -> None:
    """Whether a plugin, its distribution and its package can have the name.

    Raises:
        UsageError: They can't.
    """
    from protofl.errors import UsageError
    from protofl.hooks.discovery.kinds import NAME

    if not NAME.fullmatch(name) or name[-1] in "-_":
        plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_0123456789")
        raise UsageError(
            f"{name!r} is no name for a plugin",
            "names are lower-case letters, digits, '-' and '_', and begin with a letter",
            f"try: protofl new-plugin {plain or 'my-method'}",
        )
    if name.startswith("protofl"):
        short = name.removeprefix("protofl").strip("-_")
        raise UsageError(
            f"{name!r} would be distributed as protofl-{name}",
            "the distribution's name begins with protofl- by itself",
            f"leave it out: protofl new-plugin {short or 'my-method'}",
        )
    taken = [p for p in registry.plugins(kind) if p.name == name]
    if taken:
        raise UsageError(
            f"{kind} {name!r} is taken: {taken[0].distribution} {taken[0].version} provides it",
            "two distributions with one name exclude each other on every machine",
            f"choose another name; taken ones: protofl list-plugins --names --kind {kind}",
        )
    try:
        version = importlib.metadata.version(f"protofl-{name}")
    except importlib.metadata.PackageNotFoundError:
        return
    raise UsageError(
        f"a distribution protofl-{name} is installed, version {version}",
        "the new one would take its place",
        f"choose another name, or remove it: pip uninstall protofl-{name}",
    )


def render_files(kind: str, name: str, samples: str = "image") -> dict[str, str]:
    """{path: content} of a new distribution.

    Args:
        kind: The plugin's kind.
        name: Its name.
        samples: What it takes or holds.
    """
    from protofl import HOOKSPEC_VERSION, __version__
    from protofl.hooks.discovery.kinds import KINDS as GROUPS

    about, package = _about(kind, samples), f"protofl_{name.replace('-', '_')}"
    source = f"{kind}.py" if samples == "image" else f"{kind}-{samples}.py"
    module = _template(source)
    values = {
        "name": name,
        "kind": kind,
        "key": name.replace("_", "-"),
        "Class": _class_name(name, kind, module.template),
        "package": package,
        "distribution": f"protofl-{name}",
        "description": about.description,
        "group": GROUPS[kind].group,
        "Contract": about.contract,
        "run": about.run.format(name=name),
        "hookspec": HOOKSPEC_VERSION,
        "release": ".".join(__version__.split(".")[:2]),
    }
    files = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        ".gitignore": "gitignore",
        f"src/{package}/py.typed": "",
        f"src/{package}/__init__.py": source,
        f"tests/test_{package}.py": "test.py",
    }
    if kind == "backend":
        files[f"src/{package}/worker.py"] = "worker.py"
    return {
        path: _template(source).substitute(values) if source else ""
        for path, source in files.items()
    }


def _template(name: str) -> Template:
    folder = importlib.resources.files("protofl_cli") / "templates"
    return Template((folder / f"{name}.tmpl").read_text(encoding="utf-8"))


def _class_name(name: str, kind: str, module: str) -> str:
    """``fed-x`` as ``FedX``, apart from every name that the module uses itself."""
    plain = "".join(word[:1].upper() + word[1:] for word in re.split(r"[-_]+", name))
    if keyword.iskeyword(plain) or re.search(rf"\b{plain}\b", module):
        plain += "".join(word.title() for word in kind.split("-"))
    return plain
