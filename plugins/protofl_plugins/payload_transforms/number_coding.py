"""Transforms that encode numbers: choice of tensors and direction, encoding by row."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor

import protofl as pf


class CodingConfig(pf.Config):
    """Options of a transform that encodes tensors one by one."""

    direction: Literal["up", "down", "both"] = pf.Field(
        "up", description="encode uploads, downloads, or both"
    )
    keys: str = pf.Field(
        "*",
        description="keys of the payload to encode, with * and ? and commas between "
        "(head/*,prototypes); of these the floating-point tensors that are not buffers",
    )


class Coded:
    """A transform that encodes payloads in the directions that its options say.

    Subclasses write `encoded` and `decoded`, which does the same whoever receives.
    """

    @staticmethod
    def encoded(
        payload: pf.Payload,
        config: Any,  # noqa: ANN401 - the options of the subclass
        generator: torch.Generator,
        state: dict[str, Any] | None,
    ) -> pf.Payload:
        """Return the encoded form of a payload.

        Args:
            payload: The payload.
            config: The transform's options.
            generator: For draws.
            state: What the sender remembers of what it sent; None where it may not (a server).
        """
        raise NotImplementedError

    @staticmethod
    def decoded(payload: pf.Payload, form: pf.Payload, config: Any) -> pf.Payload:  # noqa: ANN401
        """Decode what `encoded` returned into its original form.

        Raises:
            ValueError: It can't be what `encoded` makes of a payload of that form.
        """
        raise NotImplementedError

    @pf.hookimpl
    def encode_upload(self, client: pf.Client[CodingConfig], payload: pf.Payload) -> pf.Payload:
        """Encode the upload unless only downloads are encoded."""
        if client.config.direction == "down":
            return payload
        return self.encoded(payload, client.config, client.generator("up"), client.state)

    @pf.hookimpl
    def decode_upload(
        self, server: pf.Server[CodingConfig], payload: pf.Payload, form: pf.Payload
    ) -> pf.Payload:
        """Decode the payload."""
        if server.config.direction == "down":
            return payload
        return self.decoded(payload, form, server.config)

    @pf.hookimpl
    def encode_download(self, server: pf.Server[CodingConfig], payload: pf.Payload) -> pf.Payload:
        """Encode the download unless only uploads are; once for all clients that get the same."""
        if server.config.direction == "up":
            return payload
        return self.encoded(payload, server.config, server.generator("down"), None)

    @pf.hookimpl
    def decode_download(
        self, client: pf.Client[CodingConfig], payload: pf.Payload, form: pf.Payload
    ) -> pf.Payload:
        """Decode the payload."""
        if client.config.direction == "up":
            return payload
        return self.decoded(payload, form, client.config)


def is_chosen(name: str, tensor: Tensor, config: CodingConfig) -> bool:
    """Return True if a tensor is to be encoded.

    Floating-point numbers in rows, or weights; never what counts or names something, nor buffers
    (BatchNorm statistics, of which a variance that becomes 0 would divide).
    """
    if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.dim() == 0:
        return False
    if "/buffer/" in name:
        return False
    return any(fnmatchcase(name, pattern.strip()) for pattern in config.keys.split(","))


def checked_names(payload: pf.Payload, form: pf.Payload, parts: set[str]) -> pf.Payload:
    """Return the tensors of a received form, which may have no other parts than these.

    Raises:
        ValueError: Something else came too.
    """
    extra = payload.keys() - form.keys() - parts
    if extra:
        raise ValueError(f"{min(extra)!r} belongs to nothing that is encoded")
    return pf.Payload({name: payload[name] for name in form})


def put_beside(sent: pf.Payload, name: str, tensor: Tensor) -> None:
    """Add a tensor's further parts to the payload.

    Raises:
        UsageError: The payload has a key of that name.
    """
    if name in sent:
        raise pf.UsageError(
            f"the payload has {name!r} already", do="say in keys= what is to be encoded"
        )
    sent[name] = tensor


def in_rows(tensor: Tensor, *, by_row: bool) -> Tensor:
    """Return a tensor as [N, d]: its rows, or all of it as one row."""
    return tensor.flatten(1) if by_row and tensor.dim() > 1 else tensor.reshape(1, -1)
