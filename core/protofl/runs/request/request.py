"""Requests: the options of a run by name, who set which, and the settings that they make.

`read_request` is the one door of the command line, of programs, reproductions and sweeps. Typed
options win over those of a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from protofl.errors import UsageError
from protofl.hooks.discovery.registry import Registry
from protofl.runs.request.plugin_names import Extra, gives_classes, with_names, without_classes
from protofl.system.consent import allow_folder, check_output, is_data_folder, is_inside
from protofl.system.files.tables import read_table
from protofl.system.options.parsing import (
    by_option,
    check_texts,
    merge_options,
    options_in,
    parse_options,
)
from protofl.system.options.settings import Settings
from protofl.system.options.table import build, check_names


@dataclass(frozen=True)
class Request:
    """A request of a user.

    Attributes:
        options: Given options by the names of `protofl.system.options.settings`; on resume those
            that stand beside the run's own.
        out: The run folder, where one is given.
        resume: Whether to continue the run in it.
        said: {plugin: its options that the user typed}. Options that need the user's consent must
            be among them.
        set_by: {option: ``file NAME``} of options that the user did not type.
        quiet: Whether a ``--config`` file asks for the last table only.
        extra: Plugin classes that are not installed, {(kind, name): class}.
        home: The folder of the file that holds options, in which it may name output folders.
        recorded: Whether the options are those of a recorded run.
        notes: Lines for the user.
        group: The group of the run in trackers, such as a sweep; may be empty.
    """

    options: dict[str, Any]
    out: Path | None = None
    resume: bool = False
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    set_by: dict[str, str] = field(default_factory=dict)
    quiet: bool = False
    extra: Extra = field(default_factory=dict)
    home: Path = Path()
    recorded: bool = False
    notes: tuple[str, ...] = ()
    group: str = ""

    @cached_property
    def registry(self) -> Registry:
        """The plugins that the run can use, found once."""
        return Registry.of(self.options, self.extra)

    @cached_property
    def settings(self) -> Settings:
        """The options, validated once.

        Plugins are found by the names of entry points, so that a wrong name is an error before any
        plugin is imported.

        Raises:
            UsageError: An option is unknown, missing, or out of its range, or names no plugin.
        """

        def find(option: str, kind: str, text: Any) -> Any:  # noqa: ANN401 - of any type
            if isinstance(text, str) and text not in ("", "auto"):
                self.registry.find(kind, text.partition(":")[0])
            return text

        with_names(self.options, find)
        for added in self.options.get("add") or ():
            hook, sign, method = added.partition("=")
            find("add", "method", method if sign else hook.partition(".")[0])
        return build({key: value for key, value in self.options.items() if value is not None})

    def with_options(self, options: dict[str, Any], **others: Any) -> Request:  # noqa: ANN401
        """Return the request with other options; it keeps the registry if that stays the same."""
        other = replace(self, options=options, **others)
        if all(options.get(key) == self.options.get(key) for key in ("block", "classes")):
            vars(other)["registry"] = self.registry
        return other

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields: other processes find plugins themselves."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def read_request(
    typed: Mapping[str, Any],
    *,
    file: str = "",
    extra: Extra | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Request:
    """Read options; those of a file are defaults below them.

    Args:
        typed: Options by the long names of ``protofl run``, as one types them there.
        file: The file that holds them or is the source of ``config``, whose classes need consent;
            empty for options of the command line or of a program.
        extra: Classes of this program, which have names among the options.
        config: A TOML or JSON file with options, or what it holds.
        out: The run folder.
        resume: Continue the run in ``out``.

    Raises:
        UsageError: An option is not written as it should be, or the file is broken.
    """
    _check_is_no_file(typed.get("method"))
    check_texts([typed, config, out])
    typed = by_option(typed)
    typed, notes = _named(typed, "" if config is not None else file, extra)
    place = None if out is None else Path(out)
    allow_folder(typed.get("data_dir"))
    about: dict[str, Any] = {"extra": extra or {}, "notes": tuple(notes)}
    if resume:
        if config is not None:
            raise UsageError("--resume continues the run as it was; leave --config out")
        if place is None:
            raise UsageError("--resume needs --out: the folder of the interrupted run")
        options = parse_options(typed)
        return Request(options, place, resume, said=options.get("options", {}), **about)
    below = Request({}, place) if config is None else _below(config, typed, place, file)
    above = parse_options(typed, str(typed.get("method") or below.options.get("method") or ""))
    return replace(
        below,
        options=merge_options(below.options, above),
        said=above.get("options", {}),
        set_by={key: who for key, who in below.set_by.items() if key not in above},
        **about,
    )


def _named(
    typed: Mapping[str, Any], file: str, extra: Extra | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Replace places of classes by names; see `program_classes.name_plugins`."""
    if not gives_classes(typed):
        return without_classes(typed), []
    from protofl.runs.request.program_classes import name_plugins

    return name_plugins(typed, file, extra)


def _below(
    config: str | Path | Mapping[str, Any], typed: Mapping[str, Any], out: Path | None, source: str
) -> Request:
    """Return the request of a ``--config`` file alone.

    The data folder of a run's record never counts.

    Args:
        config: The file, or what a program gives in its place.
        typed: The options that win over it.
        out: The run folder that the user gave.
        source: The file of which a program gives the content.

    Raises:
        UsageError: The file can't be read, or names a class or a folder without consent.
    """
    if isinstance(config, Mapping):
        table, where, home, name = config, "the options", Path(), ""
    else:
        table, where = read_table(Path(config), "--config", "options"), f"--config {config}"
        home, name = Path(config).parent, f"file {Path(config).name}"
    options, recorded = options_in(table), "versions" in table
    check_texts(options)
    data = options.get("data_dir")
    if data is not None and not is_data_folder(data):
        if recorded or not name or typed.get("data_dir") is not None:
            del options["data_dir"]
        else:
            check_output("data_dir", data, where, home)
    place, quiet = options.pop("out", None), options.pop("quiet", False)
    if place and out is None:
        if not is_inside(place, Path.cwd()):
            check_output("out", place, where, home)
        out = Path(str(place))
    if not isinstance(quiet, bool):
        raise UsageError(f"{where}: quiet is {quiet!r}", do="write true or false")
    options, _ = _named(options, source or where)
    options = parse_options(options, str(typed.get("method") or options.get("method") or ""))
    check_names(options, f"option in {where}:", ("out", "quiet"))
    sources = sources_in(table)
    default = (
        "" if sources else name
    )  # a recorded run names who set an option, unless it is a default
    set_by = {**dict.fromkeys(options, default), **sources} if sources or name else {}
    return Request(options, out, set_by=set_by, quiet=quiet, home=home, recorded=recorded)


def sources_in(recorded: Mapping[str, Any]) -> dict[str, str]:
    """Return {option: who set it} of a ``config.json``; empty for other files of options."""
    set_by = recorded.get("set_by")
    return {k: str(who) for k, who in set_by.items()} if isinstance(set_by, dict) else {}


def _check_is_no_file(method: object) -> None:
    """Check that the method is not a file of options, which ``--config`` takes.

    Raises:
        UsageError: It is.
    """
    if isinstance(method, str) and method.endswith((".toml", ".json")):
        raise UsageError(
            f"{method} is a file of options, expected the name of a method",
            do=f"write --config {method}",
        )
