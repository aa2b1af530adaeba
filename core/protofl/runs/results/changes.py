"""Comparison of a recorded run with one that is planned: to resume it, or to use it again."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from protofl.errors import UsageError
from protofl.federation.plan.plan import Plan
from protofl.runs.results.configuration import config_of
from protofl.runs.results.identity import (
    ELSEWHERE,
    OURS,
    Defaults,
    chose_engine,
    file_digests,
    used_in,
)
from protofl.system.files.tables import differences as differing
from protofl.system.machine import recorded_facts
from protofl.system.options.table import OPTIONS, flag_of
from protofl.system.sources import UNKNOWN

RECORDING = tuple(name for name, option in OPTIONS.items() if option.affects == "record")
"""Options by which more is recorded; all other results stay the same."""


def not_recorded(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List what a recorded run lacks of the requested recordings.

    Args:
        was: What the recorded run's ``config.json`` holds.
        now: What that of the wanted one would hold.
    """
    result, whole = list[str](), set[str]()
    for option in RECORDING:
        asked, there, flag = now.get(option), was.get(option), flag_of(option)
        if isinstance(asked, list):
            missing = [name for name in asked if name not in (there or [])]
            result += [f"it was made without {flag} {','.join(missing)}"] if missing else []
            whole |= {option} if asked and not missing else set()
        elif isinstance(asked, bool):
            result += [f"it was made without {flag}"] if asked and not there else []
        elif option.partition("_")[0] in whole:  # how something is recorded
            result += _lines("--", {option: there}, {option: asked})
    for metric in now.get("metrics") or []:
        if was.get("options", {}).get(metric, {}) != now.get("options", {}).get(metric, {}):
            result.append(f"it was made with another --set {metric}.…")
    return result


def differences(
    was: Mapping[str, Any], now: Mapping[str, Any], defaults: Defaults
) -> tuple[list[str], list[str]]:
    """Compare a recorded run with a planned one, except seed, rounds and trials.

    Args:
        was: What the recorded run's ``config.json`` holds.
        now: What that of the planned one would hold.
        defaults: Those of its plugins.

    Returns:
        Lines for the user: those by which they are two runs, and those that say what is not known
        or may change last digits.
    """
    old, new = used_in(was, defaults), used_in(now, defaults)
    lines = _lines("--", old.options, new.options)
    for owner in sorted(old.of_plugins.keys() | new.of_plugins.keys()):
        before, after = (used.of_plugins.get(owner, {}) for used in (old, new))
        lines += _lines(f"--set {owner}.", before, after)
    for file in sorted(old.files.keys() | new.files.keys()):
        if old.files.get(file) != new.files.get(file):
            of_plugin = "." in file.partition("/")[0]
            flag = f"--set {file}" if of_plugin else f"--{file.replace('_', '-')}"
            lines.append(f"{_DATA.get(file, f'the file of {flag}')} is another")
    for which in sorted(old.plugins.keys() & new.plugins.keys()):
        one, other = (" ".join(used.plugins[which]) for used in (old, new))
        lines += [f"{' '.join(which)} was {one} and is {other}"] if one != other else []
    changed, notes = _codes(was, now)
    then, here = ({"device": c.get("device"), **recorded_facts(c)} for c in (was, now))
    if chose_engine(was) != chose_engine(now) and now.get("engine") != "auto":
        then["engine"], here["engine"] = was.get("engine"), now.get("engine")
    others = sorted(name for name in then.keys() & here.keys() if then[name] != here[name])
    notes += [f"{name} was {then[name]} and is {here[name]}" for name in others]
    return lines + changed, notes


_DATA = {"digest": "the data set", "public": "the public data set"}


def _lines(start: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    keys = [k for k in sorted(before.keys() | after.keys()) if before.get(k) != after.get(k)]
    said = {key: start + (key.replace("_", "-") if start == "--" else key) for key in keys}
    return [
        f"{said[key]} was {before.get(key, 'the default')} and is {after.get(key, 'the default')}"
        for key in keys
    ]


def _codes(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Compare the code of plugins: lines about changed code, and about code of unknown versions."""
    old, new = ({(p["kind"], p["name"]): p for p in c.get("plugins", ())} for c in (was, now))
    changed, unknown = list[str](), list[str]()
    for kind, name in sorted(old.keys() & new.keys()):
        before, after = _code(old[kind, name]), _code(new[kind, name])
        if kind in ELSEWHERE or not after:
            continue
        if not before:
            unknown.append(name)
        elif before != after:
            changed.append(f"the code of {kind} {name} has changed")
    return changed, [f"the code of {', '.join(unknown)} was not recorded"] if unknown else []


def _code(plugin: Mapping[str, Any]) -> str:
    code = plugin.get("code") or (plugin["version"] if plugin["distribution"] == OURS else "")
    return "" if code == UNKNOWN else str(code)


def describe_changes(recorded: Mapping[str, Any], plan: Plan) -> list[str]:
    """Compare what a run's results depend on beside its options with what it is now.

    Args:
        recorded: What ``config.json`` holds.
        plan: The run that goes on.

    Returns:
        Lines for the user: one for all that changes the last bits alone, one each for the rest.
    """
    now = config_of(plan)
    last_bits = {"torch", *recorded_facts({"machine": now["machine"]})}
    was, is_now = recorded_facts(recorded), recorded_facts(now)
    rounded = [
        f"{name} was {was[name]} and is {is_now[name]}"
        for name in is_now
        if name in was and name in last_bits and was[name] != is_now[name]
    ]
    lines = [f"{', '.join(rounded)}: {_LAST_BITS}"] if rounded else []
    before, after = (
        {name: value for name, value in facts.items() if name not in last_bits}
        | {"layout": values.get("layout")}
        | {
            f"{p['kind']} {p['name']}": p["version"]
            for p in values.get("plugins", ())
            if p["kind"] != "engine" or recorded.get("engine") == now["engine"]
        }
        for facts, values in ((was, recorded), (is_now, now))
    )
    return lines + [
        f"{name} was {one} when the run began and is {other} now: "
        "results may differ from those of a run that was not interrupted"
        for name, (one, other) in differing(before, after).items()
    ]


_LAST_BITS = "the rounds from here on will not match those of an uninterrupted run to the last bit"


def check_same_data(recorded: Mapping[str, Any], plan: Plan) -> None:
    """Check that the data are those with which the run began.

    Raises:
        UsageError: The data have changed.
    """
    for noun, text, key, data in (
        ("data", plan.settings.dataset, "digest", plan.data),
        ("public data", plan.settings.public, "public", plan.public_data),
    ):
        digest = recorded["data"].get(key)
        if digest and data and digest != data.digest:
            raise UsageError(
                f"the {noun} of {text} are not those with which the run began",
                do="restore the data, or start a new run",
            )


def check_same_files(recorded: Mapping[str, Any], plan: Plan) -> None:
    """Check that files of options are those with which the run began.

    Raises:
        UsageError: A file has changed, or can't be read.
    """
    was, now = recorded.get("files", {}), file_digests(plan)
    for option in (option for option in was if was[option] != now.get(option)):
        path = getattr(plan.settings, option, None)
        name = f"--{option} {path}" if path else f"the file of --set {option}"
        raise UsageError(
            f"{name} is not the file with which the run began",
            do="restore it, or start a new run",
        )


def check_unchanged(
    recorded: Mapping[str, Mapping[str, Any]],
    repeated: Mapping[str, Mapping[str, Any]],
    free: Container[str],
) -> None:
    """Check that options given again on resume equal those of the run.

    Args:
        recorded: The plugins' options in the run.
        repeated: The plugins' options that are given again.
        free: Plugins whose options may differ.

    Raises:
        UsageError: An option differs, or does not name its plugin.
    """
    for owner, values in repeated.items():
        for key, value in values.items() if owner not in free else ():
            if not owner:
                do = "with --resume write --set NAME.KEY=VALUE"
                raise UsageError(f"--set {key}={value} does not name a plugin", do=do)
            was = recorded.get(owner, {}).get(key)
            if str(was).lower() != str(value).lower():
                raise UsageError(
                    f"--set {owner}.{key}={value} differs from the run's {was}",
                    do="leave it out, or start a new run in another folder",
                )
