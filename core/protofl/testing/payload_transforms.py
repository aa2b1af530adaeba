"""Contract of transforms."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from protofl.errors import Refused, UsageError
from protofl.hooks.discovery.kinds import hooks_of, spec_hooks
from protofl.hooks.views.client import Client
from protofl.hooks.views.server import Server
from protofl.hooks.wire.payload import Payload
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy
from protofl.testing.codings import CodingChecks
from protofl.testing.contract import expect, refusal, skip
from protofl.testing.method_federations import expect_finite
from protofl.testing.toy_plugins import Prototypes, Weights


class Silent:
    """Sends nothing either way."""


CARRIED = {"prototypes": Prototypes, "weights": Weights, "nothing": Silent}
"""Methods whose payloads are wrapped, by what they carry."""

RUNS: dict[str, list[dict[str, Any]]] = {
    "prototypes": [
        {},
        {"models": toy.group(toy.FROZEN), "drop": ["align"]},  # the term has no gradient there
    ],
    "weights": [{"models": toy.group(toy.NORM)}, {"models": toy.group(toy.CNN)}],
    "nothing": [{}, {"models": toy.group(toy.CNN)}],
}
"""Options of the runs with each method; the first run that a transform does not refuse is used."""


class PayloadTransformContract(CodingChecks):
    """The checks of a transform, around methods that send prototypes, all weights, and nothing.

    A transform may refuse a run on purpose: by ``requires``, or by a `UsageError` in one of its
    hooks that begins with the transform's name. Checks leave out what it refuses; the check of the
    dry run tells the reasons.
    """

    kind = "payload-transform"

    def fed(self, carried: str, *, wrapped: bool = True, **options: Any) -> toy.Toy:  # noqa: ANN401
        """A toy federation of a method that sends ``carried``."""
        backwards = options.pop("backwards", False)
        number = options.pop("number", None)
        given = RUNS[carried][(self.taken(carried)[0] or 0) if number is None else number]
        extra = {("method", "carrier"): CARRIED[carried], **self.extra}
        options = {**given, **options}
        if wrapped:
            if getattr(self.cls, "attack", False):
                options.setdefault("malicious", 0.5)
            options["transforms"] = [self.label]
            options["options"] = {self.label: self.chosen} if self.chosen else {}
        plan = toy.make_plan("carrier", self.folder, extra=extra, block=self.block, **options)
        return toy.Toy(plan, backwards=backwards)

    def taken(self, carried: str) -> tuple[int | None, str]:
        """Return the first run in `RUNS` that is not refused, or None, and why others are."""
        contract: Any = type(self)
        known: dict[str, tuple[int | None, str]] = vars(contract).get("_taken", {})
        if carried not in known:
            refusals, first = dict[str, int](), None
            for number in range(len(RUNS[carried])):
                if not (why := self._refusal(carried, number)):
                    first = number
                    break
                refusals[why] = number
            known[carried] = first, "; ".join(refusals)
            contract._taken = known
        return known[carried]

    def _refusal(self, carried: str, number: int) -> str:
        """Return why the transform refuses a run on purpose; empty if it does not."""
        try:
            plan = self.fed(carried, number=number).plan
        except Refused as error:
            return refusal(error) if f"{self.label}: " in refusal(error) else ""
        try:
            dry_run(plan)
        except UsageError as error:
            own = isinstance(error.__cause__, UsageError) and f"{self.label}: " in error.what
            return refusal(error) if own else ""
        return ""

    def carried(self, *among: str) -> list[str]:
        """Return what the transform does not refuse to carry.

        Args:
            *among: Keys of `CARRIED`; prototypes and weights if none is given.

        Raises:
            SkipTest: It refuses all of them.
        """
        names = among or ("prototypes", "weights")
        result = [name for name in names if self.taken(name)[0] is not None]
        if left := [name for name in names if name not in result]:
            self.remarks.append(f"refused on purpose: {' and '.join(left)}")
        if not result:
            skip(self.remarks[-1])
        return result

    def plain(self, carried: str) -> toy.Toy:
        """Three wrapped rounds, run once for all checks that only read what they leave."""
        contract: Any = type(self)
        runs: dict[str, toy.Toy] = vars(contract).get("_plain", {})
        if carried not in runs:
            runs[carried] = self.fed(carried)
            runs[carried].rounds(3)
            contract._plain = runs
        return runs[carried]

    def test_its_hooks_are_wrappers(self) -> None:
        """The transform's payload hooks are generators marked with @pf.hookimpl(wrapper=True)."""
        hooks = hooks_of("payload-transform", self.cls)
        known = ", ".join(spec_hooks("payload-transform"))
        expect(bool(hooks), f"it has no hook; there are {known}")
        for hook in hooks:
            function = getattr(self.cls, hook)
            marked = bool(function.protofl_impl.get("wrapper"))
            wraps = marked and inspect.isgeneratorfunction(function)
            if hook in ("upload_payload", "download_payload"):
                how = "@pf.hookimpl(wrapper=True), one yield, return a payload"
                expect(wraps, f"{hook} is not a wrapper: {how}")
            else:
                how = "@pf.hookimpl, without wrapper=True"
                expect(not marked, f"{hook} takes what it changes as an argument: {how}")

    def test_the_honest_are_left_alone(self) -> None:
        """An attack changes nothing of what honest clients send."""
        if not getattr(self.cls, "attack", False):
            skip("it is not an attack")
        for carried in self.carried():
            plain, wrapped = self.fed(carried, wrapped=False), self.plain(carried)
            plain.rounds(1)
            first, other = plain.pool.uploads(0), wrapped.pool.uploads(0)
            malicious = wrapped.server.malicious
            expect(len(malicious) == 2, f"{len(malicious)} of 4 clients are malicious at 0.5")
            for client in {*first} - malicious:
                expect(first[client] == other[client], f"{carried}: client {client} is honest")

    def test_what_it_sends(self) -> None:
        """Runs go on with what it makes of prototypes and of weights; all values are finite."""
        for carried in self.carried():
            federation = self.plain(carried)
            expect_finite(federation.lines)
            for number, line in enumerate(federation.lines):
                for direction in ("upload", "download"):
                    blobs = getattr(federation.pool, f"{direction}s")(number)
                    size = sum(len(b) for b in blobs.values())
                    expect(line[f"{direction}_bytes"] == size, f"{direction} bytes miscounted")
                    for blob in blobs.values():
                        bad = Payload.from_bytes(blob).nonfinite()
                        expect(bad is None, f"{direction} {bad!r} holds NaN or infinity")

    def test_an_empty_payload(self) -> None:
        """The transform passes an empty payload on."""
        self.carried("nothing")
        federation = self.fed("nothing")
        lines = federation.rounds(2)
        expect_finite(lines)
        sent = sum(line["upload_bytes"] + line["download_bytes"] for line in lines)
        if sent:
            self.remarks.append(f"it adds {sent} bytes to payloads that were empty")

    def test_it_does_something(self) -> None:
        """The transform changes what is sent, or a remark says that its options change nothing."""
        changed = False
        for carried in self.carried():
            plain = self.fed(carried, wrapped=False)
            changed |= not toy.same(plain.rounds(2), self.plain(carried).lines[:2])
        if not changed:
            self.remarks.append("with these options it changes neither prototypes nor weights")

    def test_equal_runs_are_equal(self) -> None:
        """A seed gives the same run, whatever the order of the clients."""
        for carried in self.carried():
            first, backwards = self.plain(carried), self.fed(carried, backwards=True)
            backwards.rounds(3)
            if not toy.same(*map(toy.fingerprint, (first, backwards))):
                again = self.fed(carried)
                again.rounds(3)
                equal = toy.same(*map(toy.fingerprint, (first, again)))
                expect(equal, f"{carried}: two runs of one seed differ")
                expect(False, f"{carried}: the order of clients shows")

    def test_the_sender_keeps_what_it_has(self) -> None:
        """The transform does not change the sender's tensors, also if called several times."""
        for carried in self.carried():
            federation = self.fed(carried)
            federation.rounds(2)
            server = Server(federation.server, "carrier")
            before = toy.server_state(federation.server)
            first, again = (
                dict(federation.call("download_payload", server=server, client_id=1))
                for _ in range(2)
            )
            expect(toy.same(first, again), f"{carried}: a second download is another")
            expect(toy.same(before, toy.server_state(federation.server)), "a download writes")
            state = federation.client(0)
            held = toy.client_state(state)[0]
            with torch.no_grad():
                federation.call("upload_payload", client=Client(state, "carrier"))
            expect(toy.same(held, toy.client_state(state)[0]), "an upload changes the model")

    def test_it_keeps_nothing_on_itself(self) -> None:
        """The transform keeps nothing on self."""
        federation = self.fed(self.carried()[0])
        federation.rounds(2)
        held = vars(federation.plan.composition.members[self.label].instance)
        expect(not held, f"self holds {', '.join(held)} after two rounds")

    def test_the_dry_run(self) -> None:
        """The transform passes the dry run, or refuses it with a reason."""
        self.remarks += [refused for name in CARRIED if (refused := self.taken(name)[1])]
        for carried in self.carried(*CARRIED):
            dry_run(self.fed(carried).plan)
