"""Errors for the user: what is wrong, what was near, what to do."""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CROSSING = ("UsageError", "HostFailure", "Late", "Diverged")
"""Errors that keep their kind when they cross to another process; others become `RunFailure`."""


class ProtoflError(Exception):
    """An error for the user: a line about the problem, one about alternatives, one of advice.

    Args:
        what: The problem, with the value.
        near: The accepted or similar values; may be empty.
        do: Advice; may be empty.
    """

    exit_code = 1
    place = ""
    """The hook that raised it, with round and client."""

    def __init__(self, what: str, near: str = "", do: str = "") -> None:
        super().__init__(what)
        self.what, self.near, self.do = what, near, do

    def __str__(self) -> str:
        return "\n".join(line for line in (self.what, self.near, self.do) if line)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProtoflError.from_values, (ProtoflError.to_values(self),)

    @staticmethod
    def to_values(error: Exception) -> dict[str, Any]:
        """Return any error as plain values for another process; see `from_values`."""
        what, near, do = error_text(error), "", "--debug shows where"
        if isinstance(error, ProtoflError):
            what, near, do = error.what, error.near, error.do
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return {
            "error": next((kind for kind in kinds if kind in CROSSING), kinds[0]),
            "what": what,
            "near": near,
            "do": do,
            "trace": "".join(traceback.format_exception(error)),
        }

    @staticmethod
    def from_values(values: Mapping[str, Any]) -> ProtoflError:
        """Return the error of `to_values`, with its traceback as the cause."""
        name = str(values["error"])
        kind: type[ProtoflError] = globals()[name] if name in CROSSING else RunFailure
        error: ProtoflError = kind(values["what"], values["near"], values["do"])
        error.__cause__ = RuntimeError(values["trace"])
        return error


class UsageError(ProtoflError):
    """A request that can't work, found before training starts (exit code 2)."""

    exit_code = 2


class RunFailure(ProtoflError):
    """The run started and failed; finished rounds are saved (exit code 1)."""


class Diverged(RunFailure):
    """Training or the server made NaN or infinity; so would the same run again."""


class NotReplayable(RunFailure):
    """A training step reads a value that an engine which replays steps cannot follow."""


class Overtime(BaseException):
    """A time limit is exceeded. Not an `Exception`, so that hooks do not catch it by accident."""


class Late(RunFailure):
    """A client's job or a hook of the server took longer than ``--job-limit``."""

    GO_ON = (
        "with workers (--backend process) and --on-lost-client skip the round goes on without "
        "such a client"
    )
    """Advice about a client's training."""


class HostFailure(RunFailure):
    """A host ended during a job, for example a killed worker process."""


class Clash(UsageError):
    """A name has two owners."""


class Blocked(UsageError):
    """A plugin exists and is blocked (``--block``)."""


class Unknown(UsageError):
    """A name that does not exist.

    Attributes:
        noun: The kind of thing, such as ``reproduction``.
    """

    noun = ""


class TooLittle(UsageError):
    """The record has too few data for a figure or a picture."""


class Refused(UsageError):
    """A composition or run that can't work because something with a name is missing.

    Attributes:
        lacks: The missing kind of thing: a ``key`` of a payload, another ``shape`` of a key, a
            unique ``name`` for a key that two methods send, a ``module``, a ``phase`` of training,
            or a ``requirement`` of a method.
        name: Its name: the key, the module, the phase, or the requirement in words.
    """

    def __init__(self, what: str, near: str = "", do: str = "", *, lacks: str, name: str) -> None:
        super().__init__(what, near, do)
        self.lacks, self.name = lacks, name


class Lacking(ProtoflError):
    """A hook reads something that is missing or has another form.

    Attributes:
        lacks: The kind of thing, as in `Refused`.
        key: Its name.
    """

    lacks: str
    key: str


class MissingKey(Lacking, KeyError):
    """A payload or the server's global state lacks a key that a hook reads."""

    lacks = "key"

    def __init__(self, key: str, holder: str, present: Iterable[str]) -> None:
        has = ", ".join(dict.fromkeys(map(part_of, sorted(present)))) or "nothing"
        ProtoflError.__init__(self, f"{holder} has no {key!r}", f"it holds: {has}")
        self.key = key


class WrongShape(Lacking, ValueError):
    """A tensor of a payload has another shape than a hook can read."""

    lacks = "shape"

    def __init__(self, key: str, shape: Iterable[int], mismatch: str, holder: str = "") -> None:
        came, whose = ", ".join(map(str, shape)), f" of {holder}" if holder else ""
        ProtoflError.__init__(self, f"{key!r}{whose} came in shape [{came}], {mismatch}")
        self.key = key


class SentTwice(Lacking, ValueError):
    """Two methods of a run return different tensors under the same key."""

    lacks = "name"

    def __init__(self, key: str, first: str, second: str) -> None:
        do = "take one of them in the other's place with --use, or leave it out of --add"
        ProtoflError.__init__(self, f"{first} and {second} both send {key!r}", do=do)
        self.key = key


class MissingModule(Lacking, KeyError):
    """A hook reads a module of its method that does not exist."""

    lacks = "module"

    def __init__(self, key: str, holder: str, present: Iterable[str]) -> None:
        has = ", ".join(sorted(present)) or "none"
        do = "create it in the set-up hook of the same side"
        ProtoflError.__init__(self, f"{holder} has no module {key!r}", f"it has: {has}", do)
        self.key = key


def part_of(key: str) -> str:
    """Return a key, or ``PART/*`` for the keys of one part."""
    prefix, slash, _ = key.partition("/")
    return f"{prefix}/*" if slash else key


def unknown(noun: str, name: str, known: Iterable[str], do: str = "") -> Unknown:
    """Return the error for a name that does not exist, with similar names.

    Similar names have a similar spelling, or are its initials: ``lr`` of ``learning_rate``.
    """
    names = sorted(known)
    initials = "".join(word[:1] for word in name.replace("-", "_").split("_"))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near := near or [each for each in names if each == initials and len(each) > 1]:
        line = f"did you mean {' or '.join(repr(n) for n in near)}?"
    else:
        line = f"known: {', '.join(names) or 'none'}"
    error = Unknown(f"unknown {noun} {name!r}", line, do)
    error.noun = noun
    return error


def ends_hook(error: BaseException) -> bool:
    """Return False for an interruption of the program, and for a generator that is closed."""
    if isinstance(error, GeneratorExit):  # that of a closed generator has one frame
        return error.__traceback__ is not None and error.__traceback__.tb_next is not None
    return not isinstance(error, KeyboardInterrupt)


def error_text(error: BaseException) -> str:
    """Describe an error of a hook."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    text = said_by(error)
    text = text if len(text) <= LONGEST else text[: LONGEST - 2].rstrip() + " …"
    kind = "" if isinstance(error, Overtime) else f"{type(error).__name__}: "
    return (kind + text).removesuffix(": ")


def said_by(error: BaseException) -> str:
    """Return the text of an exception, whose ``str`` may fail."""
    try:
        return str(error)
    except BaseException:
        return "(its text cannot be read)"


LONGEST = 400
"""Maximum characters of another library's error: torch's lists of alternatives are long."""


def memory_problem(error: BaseException) -> str:
    """Describe an error of Python or torch about missing memory; empty for other errors."""
    phrases = ("cannot allocate memory", "out of memory", "not enough memory", "unable to allocate")
    said, on_device = said_by(error).strip(), device_is_full(error)
    torch_s = isinstance(error, RuntimeError) and any(word in said.lower() for word in phrases)
    if isinstance(error, ProtoflError) or not (
        isinstance(error, MemoryError) or torch_s or on_device
    ):
        return ""
    what = "memory of the device" if on_device else "memory"
    return f"{what} ran out ({said.splitlines()[0][:200] if said else type(error).__name__})"


def device_is_full(error: BaseException | None) -> bool:
    """Return True for an error of torch about missing memory of a GPU, or one caused by it."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which need not be imported
            return True
        if isinstance(error, RuntimeError) and any(text in said_by(error) for text in _FULL):
            return True
        error = error.__cause__
    return False


_FULL = (
    "CUDA out of memory", "CUDA error: out of memory", "HIP out of memory",
    "HIP error: out of memory", "XPU out of memory", "STATUS_ALLOC_FAILED",
)  # fmt: skip
"""Messages of torch and NVIDIA's libraries about a GPU without enough memory."""


def less_memory(error: BaseException) -> str:
    """Return the advice for an error about missing memory."""
    if device_is_full(error):
        return (
            "a smaller --batch-size, --client-store memory, --set engine.streams=1 (with "
            "cuda-graphs) or --precision bf16 take less; --debug shows where"
        )
    return (
        "a smaller --batch-size, smaller --models, fewer --workers or --client-store disk take "
        "less; --debug shows where"
    )


def plugin_location(error: BaseException) -> str:
    """Return ``FILE:LINE`` of the last line of a plugin that led to an error; empty for none.

    Packages with a ``__tracebackhide__`` only call other plugins, as engines call losses.
    """
    trace, result = error.__traceback__, ""
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        package = sys.modules.get(str(frame.f_globals.get("__package__")))
        if (
            not hasattr(package, "__tracebackhide__")
            and str(frame.f_globals.get("__name__")).partition(".")[0] not in _LIBRARIES
            and not frame.f_code.co_filename.startswith("<")
        ):
            result = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return result


_LIBRARIES = {"protofl", "torch", "torchvision", "numpy", "scipy", "sklearn", "pluggy", "pydantic"}


class error_context:
    """Add the place (hook, client, round) to all errors of a hook."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ProtoflError):
            if self._place not in error.what:
                error.what = f"{self._place}: {error.what}"
                error.place = error.place or self._place
        elif error is not None and ends_hook(error):
            place, said = plugin_location(error), memory_problem(error)
            way = f"it was raised at {place}; --debug shows the way there"
            do = less_memory(error) if said else way if place else "--debug shows where"
            kind = Late if isinstance(error, Overtime) else RunFailure
            failure = kind(f"{self._place}: {said or error_text(error)}", do=do)
            failure.place = self._place
            raise failure from error
