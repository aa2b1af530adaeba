"""What is wrong with a payload, and by which rule."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from protofl.errors import Diverged, RunFailure
from protofl.hooks.wire.payload import Payload
from protofl.system.files.tensors import quoted

RULES = {
    "format": "a payload is safetensors bytes without gaps, each name once",
    "size": "a payload has at most as many bytes as --upload-limit allows, sent and decoded",
    "encoding": "what wrappers encode can be decoded to what its form says",
    "names": "its keys are those of the dry step, or declared in the method's uploads or downloads",
    "missing": "it has the keys that the dry step's had and the others of the round have",
    "dtype": "each key has one type",
    "shape": "each key has one shape; rows may differ in number where they are of classes",
    "classes": "classes are int64, each once, from 0 to C-1",
    "rows": "a tensor by class has a row for each of its classes, one of public samples for each",
    "counts": "numbers of samples are from 1 to 2^40",
    "finite": "its training diverged",
    "figures": "samples and floats are from 0 to 2^40, those predicted rightly no more than "
    "there are, seconds from 0 to 10^9, and sums are numbers by the run's loss terms",
    "bound": "no number is larger than --upload-bound allows",
}
"""{rule: what it asks for}, in words for the line below an error."""


class Fault(Exception):
    """A payload breaks a rule; it becomes an error only where it stops the run.

    Attributes:
        key: The name of the tensor; empty where it is the whole.
        rule: The rule's name in `RULES`.
        words: What is there, to be read behind "client 3 sent" or "it has".
    """

    def __init__(self, key: str, rule: str, words: str) -> None:
        self.key, self.rule = key, rule
        self.words = f"{quoted(key)} {words}" if key else words
        super().__init__(self.words)


def refused_upload(client: int, round: int, fault: Fault) -> RunFailure:
    """The error for an upload that stops the run."""
    near = RULES[fault.rule] if fault.rule == "finite" else f"{fault.rule}: {RULES[fault.rule]}"
    skip = "leave such uploads out with --on-bad-upload skip"
    do = {
        "finite": f"lower --lr, or {skip}",
        "names": f"declare it in the method's uploads, or {skip}",
        "size": f"raise --upload-limit, or {skip}",
        "missing": f"declare it optional in the method's upload_rules, or {skip}",
        "shape": f"declare shapes that may vary in the method's upload_rules, or {skip}",
    }
    kind = Diverged if fault.rule == "finite" else RunFailure
    return kind(
        f"client {client} sent {fault.words} in round {round}", near, do.get(fault.rule, skip)
    )


def left_out(client: int, round: int, fault: Fault) -> str:
    """The line for an upload that is left out."""
    return f"client {client} sent {fault.words} in round {round} ({fault.rule}): it is left out"


def expect_finite(
    update: Mapping[str, Tensor],
    maker: str,
    near: str = "all uploads of the round were finite",
    do: str = "lower the learning rate of the server's training, or --lr",
) -> None:
    """NaN of the server is found where it comes up, and not in the clients that it is sent to.

    Args:
        update: What a hook of the server gave.
        maker: The hook and whose it is.
        near: What it had to work with.
        do: What to do about it.

    Raises:
        Diverged: What a hook of the server returned is not finite; it names the hook.
    """
    bad = Payload(update).nonfinite()
    if bad is not None:
        raise Diverged(f"{maker} made {bad!r} with NaN or infinity", near, do)
