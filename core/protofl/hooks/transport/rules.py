"""Rules of payload validation: names, exemptions, faults, and checks of hosts' replies."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from protofl.errors import Diverged, RunFailure, UsageError, unknown
from protofl.hooks.wire.keys import RUNTIME, Keys, declared_keys, matches
from protofl.hooks.wire.payload import BadUpload, Payload
from protofl.system.files.tensors import shown, shown_name

SAMPLES = 1 << 40
"""Samples of a client, at most."""

RULES = {
    "format": "a payload is safetensors bytes without gaps, each name once",
    "size": "a payload has at most as many bytes as --upload-limit allows, sent and decoded",
    "encoding": "an encoded payload can be decoded to its form",
    "names": "its keys are those of the dry run, or declared in the method's uploads or downloads",
    "missing": "it has the keys that the dry run's had and the others of the round have",
    "dtype": "each key has one type",
    "shape": "each key has one shape; the number of rows by class may differ",
    "classes": "classes are int64, each once, from 0 to C-1",
    "rows": "a tensor by class has a row for each of its classes, one of public samples for each",
    "counts": "numbers of samples are from 1 to 2^40, and at most those that the client has",
    "finite": "its training diverged",
    "figures": "counts are 0 to 2^40, right ones at most all, all those that the client has, "
    "seconds 0 to 1e9, sums by loss term",
    "bound": "no number is larger than --upload-bound allows",
    "norm": "its numbers are not far larger than those of most clients (with --on-bad-upload skip)",
    "method": "the method's own check accepts it",
}
"""{rule: its requirement in words}, for the line below an error."""


class Fault(Exception):
    """A payload breaks a rule; becomes an error only if it stops the run.

    Attributes:
        key: The name of the tensor; empty for the whole payload.
        rule: The rule's name in `RULES`.
        problem: The content at fault, to be read after "client 3 sent" or "it has".
        requirement: The rule and its requirement in words.
    """

    def __init__(self, key: str, rule: str, problem: str) -> None:
        self.key, self.rule = key, rule
        self.problem = f"{shown_name(key)} {problem}" if key else problem
        self.requirement = RULES[rule] if rule == "finite" else f"{rule}: {RULES[rule]}"
        super().__init__(self.problem)


def check_size(payload: Mapping[str, Tensor], limit: float) -> None:
    """Check that an upload is not too large to be copied: an expanded tensor may claim any size.

    Args:
        payload: The upload.
        limit: ``--upload-limit`` in MiB.

    Raises:
        BadUpload: It is larger.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in payload.values())
    if size > limit * 2**20:
        raise BadUpload(f"the upload has {size:,} bytes", f"size: {RULES['size']}")


def refused_upload(client: int, round: int, fault: Fault) -> RunFailure:
    """Return the error for an upload that stops the run."""
    skip = "leave such uploads out with --on-bad-upload skip"
    do = {
        "finite": f"lower --lr, or {skip}",
        "bound": f"lower --lr, raise --upload-bound, or {skip}",
        "names": f"declare it in the method's uploads, or {skip}",
        "size": f"raise --upload-limit, or {skip}",
        "missing": f"declare it optional in the method's upload_rules, or {skip}",
        "shape": f"declare a dimension that varies in the method's uploads (pf.Key), or {skip}",
    }
    kind = Diverged if fault.rule in ("finite", "bound") else RunFailure
    what = f"client {client} sent {fault.problem} in round {round + 1}"
    return kind(what, fault.requirement, do.get(fault.rule, skip))


def skipped_upload(client: int, round: int, fault: Fault) -> str:
    """Return the note for an upload that is skipped."""
    what = f"client {client} sent {fault.problem} in round {round + 1}"
    return f"{what} ({fault.rule}): it is left out"


def expect_finite(
    update: Mapping[str, Tensor],
    maker: str,
    near: str = "all uploads of the round were finite",
    do: str = "lower the learning rate of the server's training, or --lr",
) -> None:
    """Check that what a server hook returned is finite.

    Args:
        update: The tensors that the hook returned.
        maker: The hook and its method.
        near: The hook's input.
        do: Advice.

    Raises:
        Diverged: A tensor holds NaN or infinity; the error names the hook.
    """
    bad = Payload(update).nonfinite()
    if bad is not None:
        raise Diverged(f"{maker} made {bad!r} with NaN or infinity", near, do)


WORDS = {
    "several": "of `classes`: a class may have several rows; `several 9`: at most 9",
    "any": "it may have any type and shape, and under PART/* any name",
    "optional": "not every client, nor every round, has it",
}
"""Exemptions that ``upload_rules`` and ``download_rules`` may declare for a key."""


Named = Sequence[tuple[str, Any]]
"""Names and classes of plugins."""


@dataclass(frozen=True)
class Declarations:
    """The declared names of one direction, and their exemptions.

    Attributes:
        names: Names as declarations write them, ``PART/*`` among them; None if a provider
            has no declaration.
        exempt: {name: {word of `WORDS`: the number after it, or 0}}.
        sender: The hook and the plugins that provide it.
        keys: The keys of all plugins of the run.
    """

    names: Collection[str] | None = None
    exempt: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    sender: str = ""
    keys: Keys = RUNTIME

    @classmethod
    def of(
        cls, hook: str, providers: Named, others: Named = (), keys: Keys = RUNTIME
    ) -> Declarations:
        """Return the declarations for a payload hook.

        Args:
            hook: ``upload_payload`` or ``download_payload``.
            providers: The hook's providers.
            others: Other plugins that change the payload.
            keys: The keys of all plugins of the run.

        Raises:
            UsageError: An exemption is unknown.
        """
        attribute = f"{hook.removesuffix('_payload')}s"
        exempt: dict[str, Mapping[str, int]] = {}
        rules = f"{attribute.removesuffix('s')}_rules"
        for name, plugin in (*providers, *others):
            exempt |= _exemptions(name, rules, getattr(plugin, rules, {}))
        names = {*exempt}.union(*(declared_keys(plugin, attribute) for _, plugin in others))
        known = None
        if all(getattr(plugin, attribute, None) is not None for _, plugin in providers):
            known = names.union(*(declared_keys(plugin, attribute) for _, plugin in providers))
        sender = f"{hook} of {' and '.join(name for name, _ in providers)}"
        return cls(known, exempt, sender, keys)

    def covers(self, name: str) -> bool:
        """Return True if the method declares this key. `NAME.classes` is implied by `NAME`."""
        names, whose = self.names or (), name.removesuffix("classes").removesuffix(".")
        if whose != name and (not whose or whose in names):
            return True
        return any(matches(name, declared) for declared in names)

    def is_exempt(self, name: str, word: str) -> bool:
        """Return True if the rules say a word of `WORDS` about a name."""
        return self.number(name, word) is not None

    def varying(self, name: str) -> int:
        """Return the dimension of a key whose size may differ: -1 for the last; 0 for none."""
        key = self.keys.find(name)
        return key.varies if key else 0

    def number(self, name: str, word: str) -> int | None:
        """Return the number after a word of `WORDS` about a name, 0 if it has none; else None."""
        exemptions = (w for declared, w in self.exempt.items() if matches(name, declared))
        return next((numbers[word] for numbers in exemptions if word in numbers), None)


def _exemptions(owner: str, attribute: str, rules: object) -> dict[str, Mapping[str, int]]:
    if not isinstance(rules, Mapping):
        raise UsageError(f"{attribute} of {owner} is not a mapping of names to words")
    result: dict[str, Mapping[str, int]] = {}
    for name, text in rules.items():
        numbers = {w: int(n or 0) for w, n in re.findall(r"(\S+)(?:\s+(-?\d+))?", str(text))}
        for word, number in numbers.items():
            if word not in WORDS:
                raise unknown(f"word in {attribute} of {owner}:", word, WORDS)
            if number < 0 or (number and word != "several"):
                raise UsageError(f"{attribute} of {owner}: {name!r} is {text!r}", WORDS[word])
        result[name] = numbers
    return result


Count = Annotated[int, Field(strict=True, ge=0, le=SAMPLES)]
Number = Annotated[float, Field(strict=True)]
Seconds = Annotated[Number, Field(ge=0, le=1e9, allow_inf_nan=False)]
Scores = tuple[Count, Count]
Points = Annotated[float, Field(strict=True, ge=-1e15, le=SAMPLES, allow_inf_nan=False)]
PointsOf = tuple[Points, Count]


Reason = Literal["deadline", "failed", "left", "refused", "skipped", "stale"]
"""Reasons for which a host says that a client is absent."""

REASONS = frozenset({*get_args(Reason), "late"})
"""All reasons in a record; in virtual time a client may also come late."""


class ReplyValues(BaseModel):
    """Values of a host's reply; NaN among the sums is a training that diverged."""

    kind: str
    seconds: dict[str, Seconds] = {}
    sums: dict[str, Number] = {}
    samples: Count = 0
    floats: Count = 0
    correct: Count = 0
    count: Count = 0
    train: Scores | None = None
    validation: Scores | None = None
    balanced: Scores | None = None
    size: Count = 0
    crc: Annotated[int, Field(strict=True, ge=0, lt=1 << 32)] = 0
    notes: list[str] = []
    profile: str = ""
    reason: Reason = "failed"
    error: str = ""


class PointValues(ReplyValues):
    """Values of a reply in a run whose score is not a number of samples (R²)."""

    correct: Points = 0.0  # type: ignore[assignment]
    train: PointsOf | None = None  # type: ignore[assignment]
    validation: PointsOf | None = None  # type: ignore[assignment]
    balanced: PointsOf | None = None  # type: ignore[assignment]


def check_reply(
    values: Mapping[str, Any],
    kind: str,
    stages: Collection[str],
    terms: Collection[str],
    form: type[ReplyValues] = ReplyValues,
) -> None:
    """Check the values of a reply.

    Args:
        values: The reply's values by their names, and its ``kind``.
        kind: The kind that the job asks for, or ``Absent``.
        stages: The stages whose seconds are counted.
        terms: The labels of the run's loss terms.
        form: The form of the values.

    Raises:
        Fault: A value is impossible.
    """
    if values["kind"] != kind:
        raise Fault("", "figures", f"a reply {values['kind']}, expected {kind}")
    try:
        reply = form.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, *inner = map(str, first["loc"])
        place = f" of {shown(inner[0])}" if inner else ""
        problem = f"as {shown(first['input'])}{place}: {first['msg']}"
        raise Fault(key, "figures", problem) from None
    for key, known, labels in (("seconds", stages, reply.seconds), ("sums", terms, reply.sums)):
        for label in labels.keys() - known:
            raise Fault(key, "figures", f"of an unknown {shown_name(label)}")
    scores = {"test": (reply.correct, reply.count), "train": reply.train}
    scores |= {"validation": reply.validation, "balanced": reply.balanced}
    for samples, pair in scores.items():
        if pair and pair[0] > pair[1]:
            raise Fault("correct", "figures", f"as {pair[0]} of {pair[1]} {samples} samples")


def refused_reply(doing: str, fault: Fault, host: str = "its host") -> RunFailure:
    """Return the error for a reply that stops the run.

    Args:
        doing: The job in words; it names the client.
        fault: The fault of the reply.
        host: The host in words.
    """
    return RunFailure(
        f"{doing}: {host} answered with {fault.problem}",
        fault.requirement,
        "check the backend, and the machine of this client",
    )


def diverged(sums: Mapping[str, float]) -> list[str]:
    """Return the loss terms that are NaN or infinite."""
    return [label for label, total in sums.items() if not math.isfinite(total)]


def printable(note: str) -> str:
    """Return a host's note with unprintable characters escaped."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in note[:1000])
    return text if len(note) <= 1000 else f"{text}…"
