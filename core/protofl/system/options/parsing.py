"""Options as users write them: ``KEY=VALUE`` strings, lists of strings, ``OWNER.KEY``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from protofl.errors import UsageError

JOINS = "write --join-round N[:SHARE][,…]: 20, 20:0.3, 10:0.2,20:0.2"
"""The form of ``--join-round``."""

KEPT = "write --keep-weights every:10, rounds:1,5,10 or none"
"""The form of ``--keep-weights``."""

_JOIN = re.compile(r"(\d{1,8})(?::(\d*\.?\d+(?:e-?\d+)?|\d+/\d+))?")


def check_texts(values: Any) -> None:  # noqa: ANN401 - as JSON or TOML has them
    """Check that all strings could be file names, as any of them may become one.

    Raises:
        UsageError: A string has a character that no file name can have.
    """
    if isinstance(values, Mapping):
        check_texts([*values, *values.values()])
    elif isinstance(values, (list, tuple)):
        for value in values:
            check_texts(value)
    elif isinstance(values, (str, os.PathLike)):
        try:
            invalid = b"\0" in os.fsencode(values)
        except UnicodeEncodeError:
            invalid = True
        if invalid:
            raise UsageError(f"{str(values)!r} has a character that no name can have")


def assignments(flag: str, entries: Mapping[str, Any] | Iterable[str], form: str) -> dict[str, Any]:
    """Return ``KEY=VALUE`` strings as a mapping.

    Raises:
        UsageError: A string has no ``=``, no key or no value, or a key is given twice.
    """
    if isinstance(entries, Mapping):
        return dict(entries)
    result: dict[str, Any] = {}
    for item in text_list(flag, entries):
        key, sign, value = item.partition("=")
        key, value = key.strip(), value.strip() or value  # a separator may be a space
        if not (sign and key and value):
            raise UsageError(f"{flag} {item}: not of the form {form}", do=f"write {flag} {form}")
        if key in result:
            raise UsageError(
                f"{flag} {key} is given twice: {result[key]!r} and {value!r}",
                do="give it once; options that take several names separate them by commas",
            )
        result[key] = value
    return result


def text_list(flag: str, value: Any) -> list[str]:  # noqa: ANN401 - it may come from a file
    """Return a string or a list of strings as a list.

    Raises:
        UsageError: The value is neither.
    """
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{flag}: expected a string or a list of strings, got {value!r}")
    return list(items)


def expand_set(values: Mapping[str, Any], bare: str) -> dict[str, dict[str, Any]]:
    """Return ``[NAME.]KEY`` entries of --set as {plugin: {key: value}}.

    Keys without a name belong to the plugin `bare`.

    Raises:
        UsageError: An entry names no option.
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):  # TOML reads partition.beta = 0.5 as a table in a table
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    nested: dict[str, dict[str, Any]] = {}
    for key, value in flat.items():
        owner, dot, option = key.rpartition(".")
        if (dot and not owner) or not option:
            raise UsageError(f"--set {key}={value}: no option", do="write [NAME.]KEY=VALUE")
        nested.setdefault(owner or bare, {})[option] = value
    return nested


def merge_nested(
    base: Mapping[str, Mapping[str, Any]], over: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Merge options of plugins; the second mapping wins key by key."""
    return {k: {**base.get(k, {}), **over.get(k, {})} for k in (*base, *over)}


def read_share(value: Any) -> Any:  # noqa: ANN401 - as pydantic passes it
    """Return ``1/20`` as 0.05; other values unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return float(Fraction(value))
    except (ValueError, ZeroDivisionError, OverflowError):
        return value


def whole_number(value: float) -> float:
    """Return 2.0 as 2, as whole numbers are recorded; other values unchanged."""
    return int(value) if value == int(value) else value


def read_names(value: Any) -> Any:  # noqa: ANN401 - as pydantic passes it
    """Return ``A,B`` as a list of unique names; other values unchanged."""
    parts = value.split(",") if isinstance(value, str) else value
    texts = isinstance(parts, list) and all(isinstance(name, str) for name in parts)
    return [*dict.fromkeys(filter(None, map(str.strip, parts)))] if texts else parts


def read_labels(value: Any) -> Any:  # noqa: ANN401 - as pydantic passes it
    """Return ``A,2,A`` or a list of names and numbers as a list of texts, in order."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        return value
    return [str(label).strip() if type(label) in (str, int) else label for label in parts]


def read_joins(value: Any) -> Any:  # noqa: ANN401 - as pydantic passes it
    """Return ``--join-round`` in one form: ``ROUND:SHARE[,…]``, in order of rounds.

    Entries without a share divide the clients evenly: with k of them, 1/(k+1) come in each.

    Raises:
        UsageError: The value has another form.
    """
    if value is None or isinstance(value, bool):
        return value
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    matches = [_JOIN.fullmatch(str(item).replace(" ", "")) for item in items]
    if not matches or not all(matches):
        raise UsageError(f"--join-round {value} names no rounds", do=JOINS)
    rest = f"1/{len(matches) + 1}"
    pairs = sorted((int(m[1]), m[2] or rest) for m in matches if m)
    return ",".join(f"{round}:{share}" for round, share in pairs)


def read_kept(value: Any) -> Any:  # noqa: ANN401 - as pydantic passes it
    """Return ``--keep-weights`` in one form: ``every:N`` or ``rounds:R,R``, ascending; empty: none.

    Raises:
        UsageError: The value has another form.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() in ("", "none")):
        return ""
    kind, colon, text = str(value).replace(" ", "").partition(":")
    numbers = [*filter(None, text.split(","))]
    if not colon or kind not in ("every", "rounds"):
        raise UsageError(f"--keep-weights {value}: expected every:N or rounds:R,R,…", do=KEPT)
    form = r"[0-9]{1,8}" if kind == "every" else r"[1-9][0-9]{0,7}"
    if wrong := next((each for each in numbers if not re.fullmatch(form, each)), None):
        raise UsageError(f"--keep-weights {value}: {wrong!r} is not the number of a round", do=KEPT)
    if not numbers or (kind == "every" and (len(numbers) > 1 or int(numbers[0]) < 1)):
        wanted = "one number, from 1" if kind == "every" else "at least one round"
        raise UsageError(f"--keep-weights {value}: expected {wanted} after {kind}:", do=KEPT)
    return f"{kind}:{','.join(map(str, sorted({*map(int, numbers)})))}"


def kept_rounds(text: str, rounds: int) -> list[int]:
    """Return the rounds, from 0, of a text from `read_kept`, of the first ``rounds`` rounds.

    The text counts rounds from 1: ``every:N`` stands for rounds N, 2N, ….
    """
    kind, _, numbers = text.partition(":")
    if kind == "every":
        return [*range(int(numbers) - 1, rounds, int(numbers))]
    return [number - 1 for number in map(int, filter(None, numbers.split(","))) if number <= rounds]


def read_rounds(value: Any) -> Any:  # noqa: ANN401 - as pydantic passes it
    """Return ``off`` as 0; other values unchanged."""
    return 0 if str(value).lower() == "off" else value


def read_addition(item: str) -> str:
    """Return ``local_loss=METHOD.TERM`` as ``METHOD.TERM``, and ``HOOK=METHOD`` without spaces."""
    hook, sign, name = (text.strip() for text in item.partition("="))
    return name if hook == "local_loss" else hook + sign + name


# --- all options of a run ---------------------------------------------------------------------


def by_option(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with ``schedule``, the flag, under the name of its option.

    In ``--set`` the owner ``schedule`` is that of learning rates.
    """
    return {"timing" if key == "schedule" else key: value for key, value in typed.items()}


def parse_options(typed: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Return options by the names of `protofl.system.options.settings`, from the names of flags.

    Args:
        typed: Options as typed; None counts as not given.
        owner: The method to which keys of ``set`` without a name belong; by default the method
            among the options.

    Raises:
        UsageError: An option has the wrong form.
    """
    typed = by_option(typed)
    result = {key: value for key, value in typed.items() if value is not None}
    set_values = assignments("--set", result.pop("set", ()), "[NAME.]KEY=VALUE")
    if set_values:
        nested = expand_set(set_values, owner or str(result.get("method") or ""))
        result["options"] = merge_nested(result.get("options", {}), nested)
    if "with" in result:
        result["transforms"] = text_list("--with", result.pop("with"))
    if "use" in result:
        result["use"] = assignments("--use", result["use"], "HOOK=METHOD")
    if "add" in result:
        result["add"] = [*map(read_addition, text_list("--add", result["add"]))]
    if "drop" in result:
        terms = text_list("--drop", result["drop"])
        result["drop"] = [term.strip().removeprefix("local_loss.") for term in terms]
    return result


RECORD_ONLY = set(
    "plugins versions machine data layout files depends_on notes identity protofl description "
    "set_by arithmetic engine_chosen".split()
)
"""Entries of ``config.json`` that are not options."""


def options_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options in a file or a ``config.json``.

    A record without ``arithmetic`` is of a CPU. Its precision ``fp32`` and engine ``eager`` are
    those of its device, not a choice, so they are left out: another device has its own.
    """
    values = {key.replace("-", "_"): value for key, value in values.items()}
    result = {key: value for key, value in values.items() if key not in RECORD_ONLY}
    if _is_run(values) and "arithmetic" not in values:
        for option, usual in (("precision", "fp32"), ("engine", "eager")):
            if result.get(option) == usual:
                del result[option]
    return result


def _is_run(values: Mapping[str, Any]) -> bool:
    """Return True if values are a ``config.json``, which records the data."""
    data = values.get("data")
    return isinstance(data, Mapping) and "digest" in data


def merge_options(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge options of a run; the second mapping wins."""
    merged = {**base, **over}
    if "options" in base and "options" in over:
        merged["options"] = merge_nested(base["options"], over["options"])
    for key in {"use", "classes"} & base.keys() & over.keys():
        merged[key] = {**base[key], **over[key]}
    return merged
