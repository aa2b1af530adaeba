"""Contract: checks that every plugin of a kind passes, run by pytest and `protofl check`.

A check is a method ``test_…`` whose docstring states what it tests. It fails with an
`AssertionError` or an error of the plugin; `unittest.SkipTest` skips it.
"""

from __future__ import annotations

import inspect
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from unittest import SkipTest

import torch

from protofl.errors import ProtoflError, UsageError, plugin_location
from protofl.hooks.discovery.kinds import check_class, spec_hooks
from protofl.hooks.discovery.registry import Registry, installed
from protofl.hooks.plugin.members import Choice, choose
from protofl.runs.request.program_classes import installed_name, plain_name
from protofl.system.options.plugin_options import Config, VariantConfig, parse_config
from protofl.system.sources import error_location


def expect(kept: bool, broken: str) -> None:
    """Fail a check, with a sentence, unless a promise was kept."""
    if not kept:
        raise AssertionError(broken)


def skip(why: str) -> None:
    """Skip a check for a reason, by raising `SkipTest`."""
    raise SkipTest(why)


@contextmanager
def skipped(what: str) -> Iterator[None]:
    """Skip a check if the plugin refuses to work here, such as without a download."""
    try:
        yield
    except UsageError as error:
        raise SkipTest(f"{what}: {refusal(error)}") from error


class NotReached(SkipTest):
    """The check cannot run, because another one fails; pytest skips it."""


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        check: The check's name, without ``test_``.
        words: The first line of its docstring.
        outcome: ``passed``, ``failed``, ``skipped``, or ``not reached`` where another check has
            failed by the same cause.
        why: What was broken, why it was left out, which other check fails, or a remark.
        seconds: How long it took.
        trace: The traceback of a failure.
    """

    check: str
    words: str
    outcome: str
    why: str = ""
    seconds: float = 0.0
    trace: str = ""

    def to_json(self) -> dict[str, Any]:
        """All of it but the traceback."""
        return {key: value for key, value in asdict(self).items() if key != "trace"}


class Contract:
    """The checks that plugins of every kind pass.

    Attributes:
        plugin: The plugin: its class, or the name of an installed one.
        name: The name under which a class is checked; by default that of its entry point, or the
            class's name in lower case with hyphens.
        argument: What follows the plugin's name, where it takes an argument.
        options: The plugin's options in the checks; the plugin's own ``check_options`` where not
            given.
        kind: The plugin's kind.
    """

    plugin: ClassVar[type | str]
    name: ClassVar[str] = ""
    argument: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Any] | None] = None
    kind: ClassVar[str] = ""

    # --- around a check -------------------------------------------------------------------------

    def setup_method(self) -> None:
        """Compute with one thread, as rounding depends on their number; have a folder."""
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self.folder = Path(tempfile.mkdtemp(prefix="protofl-check-"))
        self.remarks: list[str] = []

    def teardown_method(self) -> None:
        """Restore the number of threads and remove the folder."""
        torch.set_num_threads(self._threads)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the plugin -----------------------------------------------------------------------------

    @cached_property
    def label(self) -> str:
        """The plugin's name."""
        if isinstance(self.plugin, str):
            return self.plugin
        if self.name:
            return self.name
        return installed_name(self.kind, self.plugin) or plain_name(self.plugin)

    @cached_property
    def extra(self) -> dict[tuple[str, str], type]:
        """The plugin as a class given in the program; nothing where it is an installed one."""
        return {} if isinstance(self.plugin, str) else {(self.kind, self.label): self.plugin}

    @cached_property
    def block(self) -> list[str]:
        """Installed plugins that have the name of the class under check."""
        if isinstance(self.plugin, str):
            return []
        same = [p for p in installed(self.kind) if p.name == self.label]
        return [f"{p.label}@{p.distribution}" for p in same]

    @cached_property
    def registry(self) -> Registry:
        """The registry in which the plugin and all others are found."""
        return Registry(self.block, self.extra)

    @cached_property
    def cls(self) -> Any:  # noqa: ANN401 - its attributes are those of its kind
        """The plugin's class."""
        return self.registry.load(self.kind, self.label)

    @cached_property
    def chosen(self) -> Mapping[str, Any]:
        """The plugin's options in the checks."""
        return getattr(self.cls, "check_options", {}) if self.options is None else self.options

    @cached_property
    def text(self) -> str:
        """``NAME`` or ``NAME:ARGUMENT``."""
        argument = self.argument or getattr(self.cls, "check_argument", "")
        return f"{self.label}:{argument}" if argument else self.label

    def choice(self, kind: str = "", text: str = "") -> Choice:
        """The plugin with its options, or another one with its defaults."""
        if kind:
            return choose(self.registry, kind, text)
        return choose(self.registry, self.kind, self.text, self.chosen)

    # --- checks of every kind -------------------------------------------------------------------

    def test_name_and_hooks(self) -> None:
        """The plugin's name, its Config and the signatures of its hooks keep the rules."""
        check_class(self.kind, self.label, self.cls)
        hooks = spec_hooks(self.kind)
        for name, value in inspect.getmembers(self.cls, inspect.isroutine):
            near = get_close_matches(name, hooks, n=1, cutoff=0.85)
            if near and name not in hooks and not name.startswith("_"):
                expect(False, f"{name} is not a hook and is never called; did you mean {near[0]}?")
            expect(
                not inspect.iscoroutinefunction(value),
                f"{name} is a coroutine, which is never awaited",
            )

    def test_words(self) -> None:
        """The plugin has a docstring, and each of its options a description."""
        doc_lines = (self.cls.__doc__ or "").strip().splitlines()
        expect(
            bool(doc_lines), "the class has no docstring; its first line is shown in list-plugins"
        )
        expect(
            len(doc_lines[0]) <= 100,
            f"its docstring's first line is {len(doc_lines[0])} characters long",
        )
        config = getattr(self.cls, "Config", Config)
        for name, field in config.model_fields.items():
            expect(bool(field.description), f"option {name} has no description: pf.Field(…)")
        for name, value in self.chosen.items():
            known = {*config.model_fields, *(f.alias for f in config.model_fields.values())}
            expect(name in known, f"check_options has {name!r}, which is not an option: {value!r}")
        argument = getattr(self.cls, "argument", None)
        expect(
            argument is None or argument in config.model_fields,
            f"argument = {argument!r} is not an option of its Config",
        )

    def test_options(self) -> None:
        """The plugin's options have defaults within their ranges, and can be recorded as JSON."""
        config: Any = getattr(self.cls, "Config", Config)
        named = getattr(self.cls, "argument", None)
        arguments = (
            {named: self.argument or getattr(self.cls, "check_argument", "x")} if named else {}
        )
        missing = [
            n for n, f in config.model_fields.items() if f.is_required() and n not in arguments
        ]
        expect(not missing, f"option {', '.join(missing)} has no default")
        values = parse_config(config, dict(arguments), self.label)
        again = type(values).model_validate_json(values.model_dump_json())
        expect(again == values, "its options are others after a way through JSON")
        if issubclass(config, VariantConfig):
            for variant in ("paper", "official"):
                filled = parse_config(config, {"variant": variant}, self.label)
                for name, deviation in config.deviations.items():
                    expect(name in config.model_fields, f"deviation {name!r} is not an option")
                    expect(
                        getattr(filled, name) == getattr(deviation, variant),
                        f"variant={variant} does not set {name} to {getattr(deviation, variant)!r}",
                    )

    def test_one_of_its_name(self) -> None:
        """No other installed distribution provides a plugin of this kind and name."""
        if not isinstance(self.plugin, str):
            others = [
                p.distribution
                for p in installed(self.kind)
                if p.name == self.label and not _is_target(self.plugin, p.target)
            ]
            expect(
                not others, f"{self.label!r} is the name of a {self.kind} of {' and '.join(others)}"
            )
        else:
            self.registry.find(self.kind, self.label)


def _is_target(plugin: type, target: str) -> bool:
    """Return True if an entry point's target is this class, also if it was read from its file."""
    module, _, name = target.partition(":")
    if name != plugin.__qualname__:
        return False
    if module == plugin.__module__:
        return True
    try:
        spec = find_spec(module)
        return spec is not None and spec.origin == inspect.getsourcefile(plugin)
    except (ImportError, TypeError):  # a damaged distribution; a class of a notebook has no file
        return False


# --- running it without pytest --------------------------------------------------------------------


def checks_of(contract: type[Contract]) -> dict[str, str]:
    """Return {check: description}, with the checks of every kind first."""
    classes = [c for c in reversed(contract.__mro__) if c is not object]
    names = dict.fromkeys(n for c in classes for n in vars(c) if n.startswith("test_"))
    return {
        name: (inspect.getdoc(getattr(contract, name)) or name).splitlines()[0].rstrip(".")
        for name in names
        if callable(getattr(contract, name))
    }


def run_checks(
    contract: type[Contract], report: Callable[[str], None] = lambda description: None
) -> list[Finding]:
    """Run all checks of a contract, one after the other.

    Args:
        contract: A contract whose ``plugin`` is set.
        report: Called with the description of each check before it starts.
    """
    findings, causes = [], dict[str, str]()
    for name, description in checks_of(contract).items():
        report(description)
        findings.append(_run_check(contract, name, description, causes))
    return findings


def _run_check(
    contract: type[Contract], name: str, description: str, causes: dict[str, str]
) -> Finding:
    """Run a check; ``causes`` are those of failures, with the check that failed first."""
    start, instance = time.perf_counter(), contract()
    outcome, why, trace = "passed", "", ""
    instance.setup_method()
    try:
        getattr(instance, name)()
        why = "; ".join(dict.fromkeys(instance.remarks))
    except NotReached as reason:
        outcome, why = "not reached", str(reason)
    except SkipTest as reason:
        outcome, why = "skipped", str(reason)
    except Exception as error:
        first = causes.setdefault(_cause(error), description)
        outcome, why, trace = "failed", _reason(error), traceback.format_exc()
        if first != description:
            outcome, why = "not reached", f"it fails as this does: {first}"
    finally:
        instance.teardown_method()
    return Finding(
        name.removeprefix("test_"), description, outcome, why, time.perf_counter() - start, trace
    )


def _cause(error: BaseException) -> str:
    """Return the part that errors of one cause share, whichever client or round they are of."""
    while isinstance(error, ProtoflError) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, (ProtoflError, AssertionError)):
        return re.sub(r"\d+", "N", str(error).partition("\n")[0])
    return f"{type(error).__name__}, {plugin_location(error) or error_location(error)}"


def _reason(error: Exception) -> str:
    if isinstance(error, ProtoflError):
        return " · ".join(str(error).splitlines())
    if isinstance(error, AssertionError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error} ({error_location(error)})"


def refusal(error: ProtoflError) -> str:
    """A refusal in one line."""
    return " ".join(str(error).split())
