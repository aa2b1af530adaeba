"""Checks of a method's runs: declarations, payloads, repeatability, and what may not change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy

import torch
from torch import Tensor

from protofl.federation.jobs.jobs import Evaluate
from protofl.hooks.views.client import Client
from protofl.hooks.views.server import Server
from protofl.hooks.wire.keys import Key, declared_keys, matches, meaning_of
from protofl.hooks.wire.payload import Payload
from protofl.system.options.plugin_options import Config, VariantConfig
from protofl.testing import toy
from protofl.testing.contract import expect
from protofl.testing.method_federations import (
    WIDTHS,
    WITH_NORM,
    MethodFederations,
    difference,
    expect_finite,
)

LONELY = [[8, 0, 0, 0, 0], [3, 4, 2, 0, 0], [0, 5, 0, 6, 0], [4, 4, 4, 0, 0]]
"""Client 0 has one class, client 2 one that no other client has; no client has the last class."""


class RunChecks(MethodFederations):
    """The checks of a method's runs, each on a toy federation of four clients."""

    # --- declarations ---------------------------------------------------------------------------

    def test_declarations(self) -> None:
        """The method declares and describes its loss terms, uploads and downloads."""
        for attribute in ("terms", "uploads", "downloads"):
            declared = getattr(self.cls, attribute, {})
            expect(
                isinstance(declared, Mapping),
                f"{attribute} is not a mapping from names to descriptions",
            )
            for name, description in declared.items():
                text = meaning_of(description) if isinstance(description, str | Key) else ""
                expect(bool(text.strip()), f"{attribute} does not say what {name!r} is")
        if "local_loss" in vars(self.cls):
            expect(bool(getattr(self.cls, "terms", {})), "local_loss is written, terms is not")

    def test_nothing_undeclared_leaves_a_client(self) -> None:
        """Clients and server send only what uploads and downloads declare."""
        config = getattr(self.sender, "Config", Config)
        variants = ("paper", "official") if issubclass(config, VariantConfig) else ("",)
        sent: dict[str, set[str]] = {"uploads": set(), "downloads": set()}
        for variant in variants:
            federation = self.fed(set={"variant": variant} if variant else {})
            federation.rounds(2)
            for number in range(2):
                for blob in federation.pool.uploads(number).values():
                    sent["uploads"] |= {*toy.header(blob)}
                for blob in federation.pool.downloads(number).values():
                    sent["downloads"] |= {*toy.header(blob)}
        for direction, keys in sent.items():
            declared = {*declared_keys(self.sender, direction)}
            names = as_declared(keys, declared)
            if direction == "downloads":  # whose the rows are goes without saying
                names -= {"classes", *(f"{name}.classes" for name in declared)} - declared
            extra = sorted(names - declared)
            expect(not extra, f"{direction} does not list {', '.join(map(repr, extra))}")
            unseen = sorted(d for d in declared - names if not d.endswith("/buffer/*"))
            if unseen:
                self.remarks.append(f"not seen in two rounds: {', '.join(unseen)} ({direction})")

    def test_it_keeps_nothing_on_itself(self) -> None:
        """The method keeps nothing on self or its class, but in state and scratch."""
        before = {n: deepcopy(v) for n, v in vars(self.cls).items() if isinstance(v, dict | list)}
        federation = self.fed()
        federation.rounds(2)
        instance = federation.plan.composition.members[self.label].instance
        kept = ", ".join(vars(instance))
        expect(not kept, f"self holds {kept} after two rounds; use client.state or server.state")
        changed = [n for n, value in before.items() if not toy.same(value, vars(self.cls)[n])]
        expect(not changed, f"the class attribute {', '.join(changed)} was changed by a run")

    # --- payloads -------------------------------------------------------------------------------

    def test_payloads_survive_the_wire(self) -> None:
        """Payloads survive the wire, hold finite values, and their bytes are counted."""
        federation = self.plain()[0]
        for number, line in enumerate(federation.lines):
            for direction in ("upload", "download"):
                blobs = getattr(federation.pool, f"{direction}s")(number)
                expect(len(blobs) == 4, f"{len(blobs)} of 4 clients had an {direction}")
                size = sum(len(b) for b in blobs.values())
                floats = sum(map(toy.count_floats, blobs.values()))
                expect(line[f"{direction}_bytes"] == size, f"{direction} bytes are counted wrongly")
                expect(line[f"{direction}_floats"] == floats, f"{direction} floats: {floats} sent")
                for blob in blobs.values():
                    payload = Payload.from_bytes(blob)
                    again = Payload.from_bytes(payload.to_bytes())
                    expect(toy.same(dict(payload), dict(again)), f"the {direction} has changed")
                    bad = payload.nonfinite()
                    expect(bad is None, f"{direction} {bad!r} holds NaN or infinity")

    def test_few_and_lonely_classes(self) -> None:
        """Losses and payloads are finite if clients lack classes, and if all clients lack one."""
        federation = self.fed(data=toy.make_images(LONELY))
        lines = federation.rounds(3)
        for direction in ("upload", "download"):
            for blob in getattr(federation.pool, f"{direction}s")(2).values():
                bad = Payload.from_bytes(blob).nonfinite()
                expect(bad is None, f"{direction} {bad!r} holds NaN or infinity")
        expect_finite(lines)
        for client, counts in enumerate(LONELY):
            client_classes = [c for c, n in enumerate(counts) if n]
            upload = Payload.from_bytes(federation.pool.uploads(2)[client])
            if "prototypes" in upload:
                rows = sorted(set(upload.classes_of("prototypes").tolist()))
                expect(
                    rows == client_classes,
                    f"client {client} has classes {client_classes}, its prototypes {rows}",
                )

    def test_a_last_batch_of_one(self) -> None:
        """Losses are finite with BatchNorm, a last batch of one, and a client with one sample."""
        images = toy.make_images([[3, 3, 0], [4, 4, 3], [1, 0, 0], [2, 2, 2]])
        for drop_last in (False, True):
            federation = self.fed(data=images, models=[WITH_NORM], drop_last=drop_last)
            expect_finite(federation.rounds(2))

    def test_a_tenth_of_ten_clients(self) -> None:
        """Rounds in which one of ten clients takes part are finite; all clients are evaluated."""
        shares = [[3 + i % 3, 2, 2, i % 4] for i in range(10)]
        federation = self.fed(data=toy.make_images(shares), participation=0.1, seed=1)
        lines = federation.rounds(4)
        expect_finite(lines)
        for number, line in enumerate(lines):
            expect(
                len(federation.pool.uploads(number)) == 1, f"round {number} had other participants"
            )
            expect(len(line["clients"]) == 10, f"{len(line['clients'])} of 10 were evaluated")

    def test_native_widths(self) -> None:
        """A method that declares native_widths trains with a feature width per architecture."""
        if getattr(self.cls, "native_widths", False):
            groups = [WIDTHS, toy.group(toy.NARROW), WITH_NORM]
            federation = self.fed(models=groups, feature_dim="native")
            expect_finite(federation.rounds(2))

    # --- equal runs -----------------------------------------------------------------------------

    def test_equal_runs_are_equal(self) -> None:
        """A seed gives the same run to the last bit, another seed another run."""
        first, equal, other = self.plain()[1], self.fed(), self.fed(seed=1)
        equal.rounds(3)
        again = toy.fingerprint(equal)
        expect(toy.same(first, again), f"two runs of seed 0 differ: {difference(first, again)}")
        if toy.same(first[0][:1], other.rounds(1)):  # few samples may be scored alike by chance
            other.rounds(2)
            alike = toy.same(first[1], toy.fingerprint(other)[1])
            expect(not alike, "seeds 0 and 1 give the same run")

    def test_the_order_of_clients_does_not_matter(self) -> None:
        """Clients that train in the opposite order give the same run."""
        federation = self.fed(backwards=True)
        federation.rounds(3)
        first, other = self.plain()[1], toy.fingerprint(federation)
        expect(toy.same(first, other), f"the order of clients shows: {difference(first, other)}")

    def test_evaluating_less_often(self) -> None:
        """Evaluating every second round changes nothing but the rounds that are evaluated."""
        (often, *first), seldom = self.plain()[1], self.fed(eval_every=2)
        for number, (one, two) in enumerate(zip(often, seldom.rounds(3), strict=True)):
            expect((two["test_accuracy"] is None) == (number == 0), f"round {number}: evaluated?")
            for key in ("train_loss", "loss_terms", *(["test_accuracy"] if number else [])):
                expect(toy.same(one[key], two[key]), f"{key} of round {number} differs")
        _, *other = toy.fingerprint(seldom)
        expect(toy.same(first, other), "evaluation has changed the server or a client")

    def test_state_survives_a_file(self) -> None:
        """The state that the method keeps of a client survives a file, as after an interruption."""
        runs = [self.fed(rounds=4, participation=0.5, client_store=s) for s in ("memory", "disk")]
        for federation in runs:
            federation.rounds(4)
        first, other = (toy.fingerprint(federation)[:2] for federation in runs)
        expect(toy.same(first, other), "the record or the server differs")
        for client in sorted({job.client for job, _ in runs[0].pool.trained}):
            live, stored = (toy.own_state(federation.client(client)) for federation in runs)
            wrong = [
                word
                for word, a, b in zip(("weights", "modules", "state"), live, stored, strict=True)
                if not toy.same(a, b)
            ]
            expect(not wrong, f"{' and '.join(wrong)} of client {client} are others in a file")

    # --- what may not be changed ----------------------------------------------------------------

    def test_evaluation_changes_nothing(self) -> None:
        """Evaluation changes nothing of a client, and draws from no global generator."""
        federation = self.fed(participation=0.5, rounds=10, eval_every=10)
        federation.rounds(2)  # none of them evaluated: the first evaluation is the one below
        server, everything = Server(federation.server, self.main), torch.get_rng_state()
        for client in range(4):  # two of which have just trained
            state = federation.client(client)
            payload = federation.call("download_payload", server=server, client_id=client)
            job = Evaluate(client, 7, blob=payload.to_bytes())
            before = toy.client_state(state)
            first, again = (federation.pool.host.handle(job).header() for _ in range(2))
            expect(toy.same(before, toy.client_state(state)), "evaluation has changed a client")
            expect(first["correct"] == again["correct"], "two evaluations differ")
        expect(torch.equal(everything, torch.get_rng_state()), "torch's generator was drawn from")

    def test_download_and_inference_write_nothing(self) -> None:
        """download_payload and inference write nothing, and give scores B×C without NaN."""
        federation = self.fed()
        for rounds in (0, 2):
            federation.rounds(rounds)
            server = Server(federation.server, self.main)
            before = toy.server_state(federation.server)
            downloads = [
                dict(federation.call("download_payload", server=server, client_id=client))
                for client in (0, 1, 2, 3, 1)
            ]
            expect(toy.same(downloads[1], downloads[4]), "a second download_payload is another")
            expect(toy.same(before, toy.server_state(federation.server)), "download_payload writes")
            for client in range(4):
                self._score_twice(federation, client, downloads[client])

    def _score_twice(
        self, federation: toy.Toy, client: int, received: Mapping[str, Tensor]
    ) -> None:
        state = federation.client(client)
        state.received = Payload(received)
        view = Client(state, self.main)
        federation.lifecycle("receive", client=view)
        state.set_mode(False)
        before, x = toy.client_state(state), state.test.inputs()
        with torch.no_grad():
            first, again = (federation.call("inference", client=view, x=x) for _ in range(2))
        shape = (len(x), federation.plan.info.num_classes)
        expect(first.shape == shape, f"inference gives {tuple(first.shape)}, B×C is {shape}")
        expect(not bool(first.isnan().any()), "inference gives NaN")
        expect(torch.equal(first, again), "a second inference gives other scores")
        expect(toy.same(before, toy.client_state(state)), "inference writes")


def as_declared(keys: Iterable[str], declared: Iterable[str]) -> set[str]:
    """Return the keys, with ``PREFIX/*`` or ``PREFIX/*/NAME`` for keys that these cover."""
    patterns = sorted((name for name in declared if "/*" in name), key=len, reverse=True)
    return {next((pattern for pattern in patterns if matches(key, pattern)), key) for key in keys}
