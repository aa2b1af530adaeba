"""Class swap: malicious clients send their rows under other classes' numbers.

    P_i^c is sent as that of class (c + shift) mod C

The rows themselves are honest: they have the right length and lie where prototypes lie, only that
of another class. It is the label flip of those who have no need to train for it, and has no
counterpart where weights are averaged: payloads without ``classes`` are left alone.
"""

from __future__ import annotations

from collections.abc import Generator

import protofl as pf


class ClassSwap:
    """Attack: malicious clients send their rows under other classes' numbers."""

    attack = True

    class Config(pf.Config):
        """Options."""

        shift: int = pf.Field(
            1, ge=1, description="c is sent as (c + shift) mod C; a multiple of C is honest"
        )

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client: pf.Client[Config]) -> Generator[None, pf.Payload, pf.Payload]:
        """Change the numbers in ``classes`` and ``NAME.classes``."""
        payload = yield
        if not client.malicious:
            return payload
        names = [n for n in payload if n == "classes" or n.endswith(".classes")]
        C, shift = client.num_classes, client.config.shift
        return pf.Payload(payload | {name: (payload[name] + shift) % C for name in names})
