"""Checks of payloads and global state in the dry run, with the hook that caused an error."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protofl.errors import RunFailure, part_of
from protofl.federation.plan.plan import Plan
from protofl.hooks.transport.contents import ContentRules
from protofl.hooks.transport.return_values import description
from protofl.hooks.transport.rules import RULES, Declarations, Fault
from protofl.hooks.views.client import Client
from protofl.hooks.views.server import Server
from protofl.hooks.wire.payload import Payload
from protofl.system.files.tensors import TYPES, TensorEntry


class FoundLater(RunFailure):
    """An error that appeared in another hook than the one that caused it."""


class PayloadChecks:
    """Checks payloads and global state against the rules, right after the hook call.

    Attributes:
        notes: Lines for the user.
        wrapped: The transforms around what clients send.
    """

    def __init__(self, plan: Plan) -> None:
        composition = plan.composition
        self.wrapped = [m.name for m in composition.transforms if "upload_payload" in m.hooks]
        self._uploads = composition.declarations("upload_payload")
        self._contents = ContentRules(plan.info.num_classes, None, self._uploads)
        self._downloads = composition.declarations("download_payload")
        self._kept = ContentRules(plan.info.num_classes, None, self._downloads)
        self.notes: dict[str, str] = {}

    def upload(self, who: str, sent: Mapping[str, Tensor], client: Client) -> None:
        """Check an upload.

        Raises:
            RunFailure: A key is not declared, or a tensor breaks a rule.
        """
        declared = self._uploads
        self._expect_declared(who, sent, declared, "uploads")
        if declared.names is None and sent:
            keys = ", ".join(dict.fromkeys(map(part_of, sent)))
            problem = f"{who.partition('.')[0]} sends {keys} and declares no uploads"
            self.notes["declared"] = f"{problem}: write uploads = {{'NAME': 'what it reveals'}}"
        meant = any("float64" in key.shape for key in map(declared.keys.find, sent) if key)
        for name, tensor in sent.items():
            if tensor.dtype == torch.float64 and not meant:
                problem = f"{who} sends {name!r} as float64, twice the bytes of float32"
                self.notes["float64"] = f"{problem}: .float() makes it one"
        self._check(who, self._contents, sent, {}, client)
        if not self.wrapped:  # an attack may send what it likes, within the rules
            self._check_first(who, sent, client)

    def download(self, who: str, sent: Mapping[str, Tensor]) -> None:
        """Check a download.

        Raises:
            RunFailure: A key is not declared, or a tensor breaks a rule.
        """
        self._expect_declared(who, sent, self._downloads, "downloads")
        self._check(who, self._kept, sent, {}, None)

    def _expect_declared(
        self, who: str, sent: Mapping[str, Tensor], declared: Declarations, attribute: str
    ) -> None:
        for name, tensor in sent.items():
            if declared.names is not None and not declared.covers(name):
                raise RunFailure(
                    f"{who} sends {name!r}, {description(tensor)}, and {attribute} don't list it",
                    f"declared: {', '.join(sorted(declared.names)) or 'nothing'}",
                    f"leave it out, e.g. payload.select({_first(declared)!r}); or say what it "
                    f"reveals: {attribute} = {{…, {part_of(name)!r}: '…'}}",
                )

    def update(self, who: str, made: Mapping[str, Tensor], server: Server) -> None:
        """Check an update of the server's global state.

        Raises:
            RunFailure: A tensor breaks a rule, or carries its graph.
        """
        for name, tensor in made.items():
            if tensor.requires_grad:
                raise RunFailure(
                    f"{who} returned {name!r} with its graph: {description(tensor)}",
                    "global state would keep all that it was computed of, from round to round",
                    f"return {name}.detach()",
                )
            known = "classes" in {*made, *server.global_state.keys()} or f"{name}.classes" in made
            if self._downloads.keys.is_by_class(name) and not known:
                raise RunFailure(
                    f"{who} returned {name!r}, {description(tensor)}, without the classes of its "
                    "rows",
                    "rows by class come with 'classes', [n] int64",
                    f"return pf.class_rows(known, {name}=table), table [C, …] and known [C] bool",
                )
        have = {k: v for k, v in server.global_state.items() if k == "classes"}
        self._check(who, self._kept, made, have, None)

    def _check(
        self,
        who: str,
        contents: ContentRules,
        made: Mapping[str, Tensor],
        have: Mapping[str, Tensor],
        client: Client | None,
    ) -> None:
        """Check tensors against rules; ``have`` are tensors that exist already.

        Raises:
            RunFailure: One breaks a rule.
        """
        try:
            entries = {
                name: TensorEntry(TYPES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))
                for name, tensor in {**have, **made}.items()
            }
            contents.check_header(entries)
            contents.check_classes(made, upload=client is not None)
            if client is not None:
                contents.check_finite(Payload(made))
        except Fault as fault:
            tensor = made.get(fault.key)
            suffix = f" ({description(tensor)})" if tensor is not None else ""
            near, do = _remedy(fault, {**have, **made}, client)
            verb = "sends" if client is not None else "returned"
            raise RunFailure(f"{who} {verb} {fault.problem}{suffix}", near, do) from None

    def _check_first(self, who: str, sent: Mapping[str, Tensor], client: Client) -> None:
        """Find classes that are counted from 1: each one too high for the client."""
        for name, tensor in sent.items():
            if name != "classes" and not (name.endswith(".classes") and "/" not in name):
                continue
            classes = client.class_counts.nonzero().squeeze(1).tolist()
            sends = tensor.tolist()
            if len(classes) > 1 and sends == [label + 1 for label in classes]:
                raise RunFailure(
                    f"{who} sends {name!r} {sends}, where the client has samples of {classes}",
                    RULES["classes"],
                    f"classes count from 0: write {name} - 1",
                )


def _first(declared: Declarations) -> str:
    names = sorted({part_of(name) for name in declared.names or ()} - {"classes"})
    return names[0] if names else ""


def _remedy(fault: Fault, tensors: Mapping[str, Tensor], client: Client | None) -> tuple[str, str]:
    """Return the rule that a fault breaks, and advice."""
    key, tensor = fault.key, tensors[fault.key]
    near, do = f"{fault.rule}: {RULES[fault.rule]}", ""
    if fault.rule == "classes":
        do = _of_classes(key, tensor, "download" if client is None else "upload")
    elif fault.rule == "rows":
        classes = tensors.get(f"{key}.classes", tensors.get("classes"))
        do = f"send the rows of its classes alone: pf.class_rows(known, {key}=table)"
        if classes is not None and tensor.dim() == 2 and tensor.shape[1] == len(classes):
            do = f"it is transposed: write {key}.T"
    elif fault.rule == "finite" and client is not None:
        expect_finite_weights(client)
        near = "the client's weights are finite"
        do = "look for a division by 0 (a class without samples), log or sqrt in the hook"
    elif fault.rule == "counts":
        do = f"{key} are numbers of samples, whole and at least 1: leave out rows of none"
    return near, do


def expect_finite_weights(client: Client) -> None:
    """Check that training left no NaN in a client's weights, after NaN appeared elsewhere.

    Raises:
        RunFailure: It has.
    """
    weights = {str(n): w.detach() for n, w in enumerate(client.parameters())}
    if Payload(weights).nonfinite() is not None:
        raise FoundLater(
            "a step by local_loss makes NaN of the client's weights",
            "its terms are finite, the gradient is not",
            "look for sqrt, norm, log or a division with an infinite gradient at 0: clamp what "
            "goes in, or add a small number",
        )


def _of_classes(key: str, tensor: Tensor, way: str) -> str:
    """Return the advice for invalid classes."""
    if tensor.dtype == torch.bool:
        return "it is a mask: pf.class_rows(mask, …) makes rows and classes of it"
    if tensor.dtype != torch.int64:
        return f"write {key}.long()"
    if tensor.dim() != 1:
        return f"write {key}.flatten()"
    if tensor.numel() and int(tensor.min()) > 0 and len({*tensor.tolist()}) == len(tensor):
        return f"classes count from 0: write {key} - 1"
    return (
        f"send a row for each class once, as pf.class_rows does; several rows of one: "
        f"{way}_rules = {{{key!r}: 'several'}}"
    )
