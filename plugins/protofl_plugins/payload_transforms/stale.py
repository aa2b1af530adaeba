"""Stale: malicious clients send their payload of some rounds ago.

In round t a client sends the payload that it made in round t − k, or in the newest of its rounds
before that; while it has none so old, its oldest. A message is replayed whole. Every number in it
was honest once, so neither payload validation nor most defences have anything against it; free
riders look alike. Up to k + 1 payloads lie in the client's state meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator

import protofl as pf


class Stale:
    """Attack: malicious clients send their payload of k rounds ago."""

    attack = True

    class Config(pf.Config):
        """Options."""

        k: int = pf.Field(5, ge=1, description="k, rounds by which it is old; many: ever the first")

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client: pf.Client[Config]) -> Generator[None, pf.Payload, pf.Payload]:
        """The payload of round t − k."""
        payload = yield
        if not client.malicious:
            return payload
        made = {**client.state.get("made", {}), client.round: dict(payload)}
        due = [round for round in made if round <= client.round - client.config.k]
        chosen = max(due, default=min(made))
        client.state["made"] = {round: kept for round, kept in made.items() if round >= chosen}
        return pf.Payload(made[chosen])
