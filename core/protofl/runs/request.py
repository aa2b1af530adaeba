"""Requests: options of the command line or a program, merged with a file and a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.hooks.discovery.registry import Registry
from protofl.runs.recipes import check_needs, named_in, of_method, read_needs, with_recipe
from protofl.system.consent import allow_folder, check_output, is_data_folder, is_inside
from protofl.system.files.tables import check_new_table, read_table
from protofl.system.options.parsing import (
    check_texts,
    merge_options,
    options_in,
    parse_options,
)
from protofl.system.options.table import check_names


@dataclass
class Request:
    """A request of a user.

    Attributes:
        options: Given options by the names of `protofl.system.options.settings`; on resume those
            that stand beside the run's own.
        out: The run folder, where one is given.
        resume: Whether to continue the run in it.
        save_recipe: Where to write the options as a recipe, if anywhere.
        said: {plugin: its options that stand on the command line or among the arguments}; what only
            the user may allow has to be there.
        set_by: {option: ``file NAME`` or ``recipe NAME``} of options that the user did not type.
        quiet: Whether a ``--config`` file asks for the last table only.
        extra: Plugin classes that are not installed, {(kind, name): class}.
        home: The folder of the file that holds options, in which it may name output folders.
        recorded: Whether the file is the ``config.json`` of a run.
    """

    options: dict[str, Any]
    out: Path | None = None
    resume: bool = False
    save_recipe: Path | None = None
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    set_by: dict[str, str] = field(default_factory=dict)
    quiet: bool = False
    extra: dict[tuple[str, str], type] = field(default_factory=dict)
    home: Path = Path()
    recorded: bool = False

    @property
    def registry(self) -> Registry:
        """The plugins that the run can use."""
        return Registry.of(self.options, self.extra)


def read_request(
    typed: Mapping[str, Any],
    *,
    config: str | Path | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    save_recipe: str | Path | None = None,
    named: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> Request:
    """Parse options; the options of a file and of a recipe are defaults below them.

    Args:
        typed: Options by the long names of ``protofl run``, as one types them there.
        config: A TOML or JSON file with options, or what it holds.
        out: The run folder.
        resume: Continue the run in ``out``.
        save_recipe: A new file, .toml or .json, for the options given.
        named: Puts names in the place of classes in the file.

    Raises:
        UsageError: An option is not written as it should be, or the file or the recipe is broken.
    """
    request = Request({}, resume=resume)
    _check_is_no_file(typed.get("method"))
    where = "the options" if isinstance(config, Mapping) else f"--config {config}"
    check_texts([typed, config, out, save_recipe])
    request.out = Path(out) if out is not None else None
    request.save_recipe = Path(save_recipe) if save_recipe is not None else None
    if request.save_recipe is not None:
        check_new_table(request.save_recipe, "--save-recipe")
    allow_folder(typed.get("data_dir"))
    if resume:
        for given, flag in ((save_recipe, "--save-recipe"), (config, "--config")):
            if given is not None:
                raise UsageError(f"--resume continues the run as it was; leave {flag} out")
        if out is None:
            raise UsageError("--resume needs --out: the folder of the interrupted run")
        request.options = parse_options(typed)
        request.said = request.options.get("options", {})
        return request
    below, needs, recorded = dict[str, Any](), dict[str, str](), dict[str, str]()
    if (table := config) is not None:
        if not isinstance(table, Mapping):
            table = read_table(Path(table), "--config", "options")
        below, needs, recorded = options_in(table), read_needs(table), sources_in(table)
        request.recorded = "versions" in table
        _take_outputs(below, typed, where, request, recorded=request.recorded)
    below = dict(named(below))
    owner = str(typed.get("method") or below.get("method") or "")
    below = parse_options(below, owner)
    check_names(below, f"option in {where}:", ("out", "quiet"))
    above = parse_options(typed, owner)
    merged = of_method(merge_options(below, above))
    if needs and not isinstance(config, Mapping):
        used = {(k, name) for k, name in named_in(merged) & named_in(below) if name in needs}
        check_needs(where, needs, used)
    request.options = with_recipe(merged)
    source = "" if recorded else f"file {Path(where.removeprefix('--config ')).name}"
    file = {} if isinstance(config, Mapping) and not recorded else dict.fromkeys(below, source)
    request.set_by = _sources(file | recorded, request.options, merged, above)
    request.said = of_method({**request.options, "options": above.get("options", {})})["options"]
    return request


def sources_in(recorded: Mapping[str, Any]) -> dict[str, str]:
    """Return {option: who set it} of a ``config.json``; empty in those of version 0.1.0."""
    found = recorded.get("set_by")
    return {k: str(who) for k, who in found.items()} if isinstance(found, dict) else {}


def _sources(
    file: Mapping[str, str],
    options: Mapping[str, Any],
    merged: Mapping[str, Any],
    above: Mapping[str, Any],
) -> dict[str, str]:
    """Return {option: who set it} of the options that the user did not type.

    Args:
        file: Those of a file; empty for what was the default in a recorded run.
        options: All options, with those of a recipe.
        merged: The options without those of the recipe.
        above: The typed options.
    """
    name = options.get("recipe", {}).get("name", "")
    found = {**file, **dict.fromkeys(options.keys() - merged.keys(), f"recipe {name}")}
    return {key: who for key, who in found.items() if key not in above}


def _check_is_no_file(method: object) -> None:
    """Check that the method is not a file of options, which ``--config`` takes.

    Raises:
        UsageError: It is.
    """
    if isinstance(method, str) and method.endswith((".toml", ".json")):
        raise UsageError(
            f"{method} is a file of options, expected the name of a method or a recipe",
            do=f"write --config {method}",
        )


def _take_outputs(
    below: dict[str, Any], typed: Mapping[str, Any], where: str, request: Request, *, recorded: bool
) -> None:
    """Take ``out`` and ``quiet`` of a file, and check that its folders are allowed.

    The data folder of a run's record never counts.

    Raises:
        UsageError: The file names a folder elsewhere, or ``quiet`` is not a bool.
    """
    check_texts(below)
    file = where.partition(" ")[2] if where.startswith("--config ") else "."
    request.home, recorded = Path(file).parent, recorded or file == "."
    data = below.get("data_dir")
    if data is not None and not is_data_folder(data):
        if recorded or typed.get("data_dir") is not None:
            del below["data_dir"]
        else:
            check_output("data_dir", data, where, request.home)
    out = below.pop("out", None)
    if out and request.out is None:
        if not is_inside(out, Path.cwd()):
            check_output("out", out, where, request.home)
        request.out = Path(str(out))
    request.quiet = below.pop("quiet", False)
    if not isinstance(request.quiet, bool):
        raise UsageError(f"{where}: quiet is {request.quiet!r}", do="write true or false")
