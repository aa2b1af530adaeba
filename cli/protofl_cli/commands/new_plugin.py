"""``protofl new-plugin``: write a package with one plugin."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import keyword
import re
import tempfile
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer

from protofl.system.files.home import expand_user
from protofl_cli.options.options import Debug, option
from protofl_cli.screens import render

if TYPE_CHECKING:
    from protofl.hooks.discovery.registry import Registry


KINDS = {
    "method": "{name} --models cnn4",
    "model-group": "fedproto --models {name}",
    "partitioner": "fedproto --models cnn4 --partition {name}",
    "dataset": "fedproto --models cnn4 --dataset {name}",
    "generator": "fedktl --models cnn4 --generator {name}",
    "payload-transform": "fedproto --models cnn4 --with {name}",
    "metric": "fedproto --models cnn4 --metrics {name}",
    "client-sampler": "fedproto --models cnn4 --sampling {name} --participation 0.5",
    "device-model": "fedproto --models cnn4 --devices {name}",
    "schedule": "fedproto --models cnn4 --devices tiers --schedule {name}",
    "tracker": "fedproto --models cnn4 --track {name}",
    "engine": "fedproto --models cnn4 --engine {name}",
    "backend": "fedproto --models cnn4 --backend {name} --workers 2",
    "command": "",
}
"""{kind of plugin: arguments of `protofl run` with the plugin}."""

SAMPLES = {
    ("model-group", "series"): "fedproto --models {name} --dataset digits-series",
    ("model-group", "tokens"): "fedproto --models {name} --dataset python-docs",
    ("model-group", "table"): "fedproto --models {name} --dataset wine",
    ("dataset", "series"): "fedproto --models cnn1d --dataset {name}",
    ("dataset", "tokens"): "fedproto --models text --dataset {name}",
    ("dataset", "table"): "fedproto --models mlp --dataset {name}",
}
"""The same for templates with other samples than images."""


def new_plugin(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Name of the plugin: lower-case letters, digits, '-' and '_'. The package is "
            "protofl-NAME.",
        ),
    ],
    kind: Annotated[
        str, option("--kind", "KIND", f"Kind of the plugin: {', '.join(KINDS)}.")
    ] = "method",
    samples: Annotated[
        str,
        option(
            "--samples",
            "KIND",
            "Samples of a data set or a model group: image, series, tokens or table.",
        ),
    ] = "image",
    out: Annotated[
        Path | None,
        option(
            "--out",
            "DIR",
            "Folder to write, empty or new (default: protofl-NAME)",
            show_default=False,
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a new plugin: a complete package that installs, runs and passes its tests.

    The README in the new folder explains the next steps.
    """
    from protofl.errors import UsageError, unknown
    from protofl.hooks.discovery.registry import Registry
    from protofl.system.files.atomic import write_file

    if kind not in KINDS:
        raise unknown("kind", kind, KINDS, "write --kind KIND")
    _check_samples(kind, samples)
    _check_name(Registry(), kind, name)
    folder = expand_user(out or Path(f"protofl-{name}"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{folder} exists already",
            "expected a new or empty folder",
            "choose another one with --out DIR, or remove it",
        )
    files = render_files(kind, name, samples)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder) as staging:
            for path, content in files.items():
                (Path(staging) / path).parent.mkdir(parents=True, exist_ok=True)
                write_file(Path(staging) / path, content)
            for entry in sorted(Path(staging).iterdir()):
                entry.rename(folder / entry.name)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror or error}", do="choose another --out DIR"
        ) from None
    render.line(f"{kind}/{name} is in {folder}:")
    for path in files:
        render.line(f"  {path}", "dim")
    render.text()
    render.line("Next:")
    steps = [f"cd {folder}", "pip install -e '.[dev]'", f"protofl check {kind}/{name}", "pytest"]
    for step in (*steps, run_command(kind, name, samples)):
        render.line(f"  {step}")


def run_command(kind: str, name: str, samples: str = "image") -> str:
    """Return the command that runs a new plugin."""
    if kind == "command":
        return f"protofl {name} --help"
    template = KINDS[kind] if samples == "image" else SAMPLES[kind, samples]
    return f"protofl run {template.format(name=name)} --rounds 3"


def _check_samples(kind: str, samples: str) -> None:
    """Check that there is a template of the kind for such samples.

    Raises:
        UsageError: The template does not exist.
    """
    from protofl.errors import UsageError, unknown

    if samples == "image" or (kind, samples) in SAMPLES:
        return
    able = sorted({kind for kind, _ in SAMPLES})
    if kind not in able:
        raise UsageError(
            f"--samples {samples}: there is one template of a {kind} for all samples",
            f"--samples applies to: {', '.join(able)}",
            "leave it out",
        )
    raise unknown("kind of sample", samples, ["image", *(s for k, s in SAMPLES if k == kind)])


def _check_name(registry: Registry, kind: str, name: str) -> None:
    """Check that a plugin and its package can have a name.

    Raises:
        UsageError: The name is invalid or taken.
    """
    from protofl.errors import UsageError
    from protofl.hooks.discovery.kinds import NAME

    if not NAME.fullmatch(name) or name[-1] in "-_":
        plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_0123456789")
        raise UsageError(
            f"{name!r} is not a valid name of a plugin",
            "expected lower-case letters, digits, '-' and '_', beginning with a letter",
            f"try: protofl new-plugin {plain or 'my-method'}",
        )
    if name.startswith("protofl"):
        short = name.removeprefix("protofl").strip("-_")
        raise UsageError(
            f"the package of {name!r} would be called protofl-{name}",
            "protofl- is added to the name",
            f"leave protofl out: protofl new-plugin {short or 'my-method'}",
        )
    taken = [p for p in registry.plugins(kind) if p.name == name]
    if taken:
        raise UsageError(
            f"{kind} {name!r} is taken: {taken[0].distribution} {taken[0].version} provides it",
            "two packages with the same plugin cannot be installed together",
            f"choose another name; taken names: protofl list-plugins --names --kind {kind}",
        )
    try:
        version = importlib.metadata.version(f"protofl-{name}")
    except importlib.metadata.PackageNotFoundError:
        return
    raise UsageError(
        f"a package protofl-{name} is installed, version {version}",
        "the new package would replace it",
        f"choose another name, or remove it: pip uninstall protofl-{name}",
    )


def render_files(kind: str, name: str, samples: str = "image") -> dict[str, str]:
    """Return {path: content} of a new package.

    Args:
        kind: Kind of the plugin.
        name: Name of the plugin.
        samples: Kind of samples of a data set or a model group.
    """
    from protofl import __version__
    from protofl.hooks.discovery.kinds import KINDS as GROUPS

    package = f"protofl_{name.replace('-', '_')}"
    source = f"{kind}.py" if samples == "image" else f"{kind}-{samples}.py"
    module = _template(source)
    about = module.template.partition(": ")[2].partition("\n")[0]
    values = {
        "name": name,
        "kind": kind,
        "key": name.replace("_", "-"),
        "Class": "command" if kind == "command" else _class_name(name, kind, module.template),
        "package": package,
        "distribution": f"protofl-{name}",
        "description": about[:1].upper() + about[1:],
        "group": GROUPS[kind].group,
        "Contract": f"{kind.title().replace('-', '')}Contract",
        "run": run_command(kind, name, samples),
        "show": f"{name} --help" if kind == "command" else f"show {kind}/{name}",
        "release": ".".join(__version__.split(".")[:2]),
    }
    files = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        ".gitignore": "gitignore",
        f"src/{package}/py.typed": "",
        f"src/{package}/__init__.py": source,
        f"tests/test_{package}.py": "test-command.py" if kind == "command" else "test.py",
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
    """Return the name of the class: ``FedX`` for ``fed-x``, unless the module uses this name."""
    plain = "".join(word[:1].upper() + word[1:] for word in re.split(r"[-_]+", name))
    if keyword.iskeyword(plain) or re.search(rf"\b{plain}\b", module):
        plain += "".join(word.title() for word in kind.split("-"))
    return plain
