"""Rules of what a host says of a job beside the payload: numbers that go into the record."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from protofl.errors import RunFailure
from protofl.hooks.gate.contents import SAMPLES
from protofl.hooks.gate.faults import RULES, Fault

LONGEST = 1e9
"""Seconds of a stage, at most."""

WHY = ("deadline", "failed", "left")
"""Why a client may be absent, as a host or a pool says it."""


def check_reply(
    found: Mapping[str, Any], wanted: str, stages: Collection[str], terms: Collection[str]
) -> None:
    """Hold the values of a reply against what they may be.

    Args:
        found: The reply's values by their names, and its ``kind``.
        wanted: The kind that the job asks for; ``Absent`` may stand in its place where that is
            allowed, which is the caller's to say.
        stages: The stages whose seconds are booked.
        terms: The labels of the run's loss terms.

    Raises:
        Fault: One can't be.
    """
    if found["kind"] != wanted:
        raise Fault("", "figures", f"a reply {found['kind']}, which is no {wanted}")
    for stage, seconds in _mapping(found, "seconds").items():
        if stage not in stages:
            raise Fault("seconds", "figures", f"of a stage {_short(stage)}")
        if not (_is_number(seconds) and 0 <= seconds <= LONGEST):
            raise Fault("seconds", "figures", f"as {_short(seconds)} of {stage}")
    for label, total in _mapping(found, "sums").items():
        if label not in terms:
            raise Fault("sums", "figures", f"of a loss term {_short(label)}")
        if not _is_number(total):  # NaN is what training that diverges comes to
            raise Fault("sums", "figures", f"as {_short(total)} of {label}")
    _check_counts(found)
    notes = found.get("notes", [])
    if not (isinstance(notes, list) and all(isinstance(note, str) for note in notes)):
        raise Fault("notes", "figures", "that are no lines")
    if not isinstance(found.get("profile", ""), str):
        raise Fault("profile", "figures", "that is no text")
    if found.get("reason", "failed") not in WHY:
        raise Fault("reason", "figures", f"as {_short(found['reason'])}")


def _check_counts(found: Mapping[str, Any]) -> None:
    """Samples that were seen, and scored."""
    further = ("train", "validation")
    scores = {name: found[name] for name in further if found.get(name) is not None}
    if "correct" in found:
        scores["test"] = found["correct"], found["count"]
    for whose, pair in scores.items():
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(_is_count, pair))):
            raise Fault("correct", "figures", f"of {whose} samples as {_short(pair)}")
        if pair[0] > pair[1]:
            raise Fault("correct", "figures", f"as {pair[0]} of {pair[1]} {whose} samples")
    for name in ("samples", "floats"):
        if name in found and not _is_count(found[name]):
            raise Fault(name, "figures", f"as {_short(found[name])}")


def refused_reply(doing: str, fault: Fault) -> RunFailure:
    """The error for a reply that stops the run.

    Args:
        doing: The job in words; it names the client.
        fault: What is wrong with the reply.
    """
    return RunFailure(
        f"{doing}: its host answered with {fault.words}",
        f"{fault.rule}: {RULES[fault.rule]}",
        "look at the backend, and at the machine on which this client lives",
    )


def diverged(sums: Mapping[str, float]) -> list[str]:
    """The loss terms that are NaN or infinite."""
    return [label for label, total in sums.items() if not math.isfinite(total)]


def printable(note: str) -> str:
    """A host's line as a terminal may show it."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in note[:1000])
    return text if len(note) <= 1000 else f"{text}…"


def _mapping(found: Mapping[str, Any], name: str) -> Mapping[Any, Any]:
    value = found.get(name, {})
    if not isinstance(value, Mapping):
        raise Fault(name, "figures", f"as {_short(value)}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= SAMPLES


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
