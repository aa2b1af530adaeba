"""Attacks: malicious clients change chosen tensors of their payloads."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from fnmatch import fnmatchcase

from torch import Tensor

import protofl as pf


class AttackConfig(pf.Config):
    """Tensors of a payload that an attack changes."""

    keys: str = pf.Field(
        "*",
        description="keys of the payload to touch, with * and ? and commas between (head/*,counts);"
        " of these the floating-point tensors that are not buffers",
    )


def touched(payload: Mapping[str, Tensor], config: AttackConfig) -> list[str]:
    """Return the keys of a payload that an attack changes.

    BatchNorm's statistics are left alone: a negative variance would end the run and not the
    defence.

    Raises:
        UsageError: ``keys`` names none.
    """
    floating = [k for k, v in payload.items() if v.is_floating_point() and "/buffer/" not in k]
    patterns = [pattern.strip() for pattern in config.keys.split(",")]
    result = [key for key in floating if any(fnmatchcase(key, pattern) for pattern in patterns)]
    if floating and not result:
        raise pf.UsageError(
            f"keys={config.keys} names nothing that the attack could touch",
            f"floating-point tensors of the upload: {', '.join(sorted(floating)[:8])}",
            "name some of these, with * for the rest of a name",
        )
    return result


class Attack:
    """A transform that changes tensors of what malicious clients send; see `forged`."""

    attack = True

    def forged(self, client: pf.Client, name: str, tensor: Tensor) -> Tensor:
        """Return the tensor that is sent in place of another."""
        raise NotImplementedError

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client: pf.Client) -> Generator[None, pf.Payload, pf.Payload]:
        """Replace the tensors of a malicious client."""
        payload = yield
        if not client.malicious:
            return payload
        names = touched(payload, client.config)
        return pf.Payload(payload | {n: self.forged(client, n, payload[n]) for n in names})
