"""Checks of every hook call in the dry run: common mistakes of plugin authors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from protofl.errors import RunFailure, UsageError
from protofl.federation.plan.plan import Plan
from protofl.hooks.discovery.kinds import spec_hooks
from protofl.hooks.plugin.loss import NO_GRADIENT, WITH_GRADIENT, LossSource, Watch
from protofl.hooks.transport.return_values import UPDATES
from protofl.runs.dry_run.payload_checks import FoundLater, PayloadChecks, expect_finite_weights
from protofl.runs.dry_run.randomness_checks import GlobalRandomness, LossCalls
from protofl.runs.dry_run.state_checks import (
    MissingKeys,
    PluginState,
    as_it_is,
    changed,
    expect_state,
    weights_as_they_are,
)

if TYPE_CHECKING:
    from protofl.runs.dry_run.effect_checks import EffectChecks

READING = ("download_payload", "inference", "global_models")
"""Hooks that are called any number of times and write nothing."""

CODING = ("encode_download", "decode_upload", "decode_download")
"""Coding hooks that write nothing; ``encode_upload`` may write state of the client."""

DECODING = CODING[1:]
"""Hooks in which an error may come from the sender; their errors are raised at the end."""

GIVEN = ("payload", "labels")
"""Arguments of hooks that others hold too."""


_INSIDE = {
    "number": "makes a number of a tensor ({}): no gradient flows through it, and engines other "
    "than eager cannot follow; .detach() keeps a tensor",
    "draw": "draws random numbers ({}): other engines draw others; draw in before_training from "
    "client.generator, and return pf.per_step(tensor)",
}
"""Notes about calls inside a loss."""


def _effect_checks(plan: Plan) -> EffectChecks | None:
    """Return the checks of effects; None for one method that does not train on the server."""
    methods = plan.composition.methods
    if len(methods) == 1 and "server_train" not in methods[0].hooks:
        return None
    from protofl.runs.dry_run.effect_checks import EffectChecks

    return EffectChecks(plan)


class HookChecks(Watch):
    """Executes hook calls and checks them against the rules for plugin authors.

    Args:
        plan: The run.
        missing_keys: Collects keys that downloads do not have.

    Attributes:
        notes: Lines for the user about what is allowed and hurts.
    """

    def __init__(self, plan: Plan, missing_keys: MissingKeys) -> None:
        members = plan.composition.members.values()
        self._missing_keys, self._plugins = missing_keys, PluginState(members)
        self.randomness, self._sending = GlobalRandomness(), PayloadChecks(plan)
        self._effects = _effect_checks(plan)
        self.notes: dict[str, str] = {}
        self._terms: dict[str, Tensor] = {}
        self._later: RunFailure | None = None
        self._reached: dict[str, bool] = {}
        self._counted: set[str] = set()
        self._weighing = [
            t.name for t in plan.composition.transforms if {*t.hooks} == {"loss_factors"}
        ]
        for member in members:
            self._note_misspelt(member.kind, member.name, member.plugin)

    def begin_round(self) -> None:
        """Start a round: only gradients of the last round count."""
        self._reached, self._counted = {}, set()

    def call(
        self, method: str, hook: str, arguments: Mapping[str, Any], do: Callable[[], Any]
    ) -> Any:  # noqa: ANN401 - as the hook says
        """Call a hook and check what it does.

        Raises:
            RunFailure: It breaks a rule.
        """
        who, client, server = f"{method}.{hook}", arguments.get("client"), arguments.get("server")
        self._missing_keys.reader = who if client is not None and hook not in CODING else ""
        if hook == "upload_payload":
            self._expect_finite_terms()
        before = _kept(hook, arguments)
        do = partial(self.randomness.watched, who, hook, do)
        result = self._effects.call(hook, server, do) if self._effects else do()
        try:
            written = changed(before, _kept(hook, arguments))
            if written:
                raise _wrote(who, hook, written[0])
            self._expect_nothing_on_plugins(who)
            if client is not None:
                expect_state(client.state, "client", who)
            if server is not None:
                expect_state(server.state, "server", who)
        except RunFailure as error:
            if hook not in DECODING:
                raise
            self._later = self._later or error
        if hook == "upload_payload":
            around = "".join(f", {name} around it," for name in self._sending.wrapped)
            self._sending.upload(who + around, result, arguments["client"])
        elif hook == "download_payload":
            self._sending.download(who, result)
        elif hook in UPDATES and result:
            self._sending.update(who, result, arguments["server"])
        elif hook == "inference" and bool(result.isnan().any()):
            expect_finite_weights(arguments["client"])
            near = "scores with NaN give no prediction"
            do_ = "look for 0/0 and for inf - inf: masked_fill(~known, -torch.inf) leaves no NaN"
            raise RunFailure(f"{who} returned NaN among its scores {list(result.shape)}", near, do_)
        self.notes |= self._sending.notes
        return result

    def options(self, configs: Mapping[str, Any]) -> dict[str, Any]:
        """Return options that note which hook reads them."""
        return self._effects.options(configs) if self._effects else {**configs}

    # --- losses -----------------------------------------------------------------------------------

    def loss(self, source: LossSource) -> LossSource:
        """Wrap a loss so that each call is checked."""
        return replace(source, function=partial(self._loss, source))

    def _loss(self, source: LossSource, *arguments: Any) -> Mapping[str, Tensor]:  # noqa: ANN401
        who, inside = f"{source.method}.local_loss", LossCalls()
        before = as_it_is(source.constants)
        do = partial(inside.entered, partial(source.function, *arguments))
        do = partial(self.randomness.watched, who, "local_loss", do)
        effects = self._effects
        result: Mapping[str, Tensor] = effects.call("local_loss", None, do) if effects else do()
        for kind, place in inside.found.items():
            self.notes.setdefault(f"{kind} of {who}", f"{who} {_INSIDE[kind].format(place)}")
        written = changed(before, as_it_is(source.constants))
        if written:
            raise RunFailure(
                f"{who} writes into constants[{written[0]!r}]",
                "an engine may call the loss again with what was given",
                "compute it anew, or collect it in after_batch: client.scratch[…]",
            )
        self._expect_nothing_on_plugins(who)
        if isinstance(result, Mapping):
            for name, term in result.items():
                if isinstance(term, Tensor) and name in source.labels:
                    label = f"{who}: the term {name!r}"
                    with _disable_current_modes():  # a `StepTrace` counts what a step keeps
                        self._terms[label] = term.detach().clone()
                    self._reached[label] = self._reached.get(label, False) or term.requires_grad
        return result

    def _expect_finite_terms(self) -> None:
        """Check that earlier loss terms are finite; values are read late to avoid waits.

        Raises:
            RunFailure: One is not.
        """
        terms, self._terms = self._terms, {}
        for label, term in terms.items():
            value = float(term)
            self._counted |= {label} if value else set()
            if not math.isfinite(value):
                raise FoundLater(
                    f"{label} is {value}",
                    "one such step makes NaN of all weights",
                    "look for log or sqrt of 0, and for a mean over nothing: leave out a term "
                    "that has no samples",
                )

    # --- all calls --------------------------------------------------------------------------------

    def _expect_nothing_on_plugins(self, who: str) -> None:
        written = self._plugins.written(who)
        if written:
            raise RunFailure(
                written,
                "each process has an instance of its own, none is in a checkpoint, and clients "
                "share it",
                "keep it in client.state or server.state, for a phase in client.scratch",
            )

    def _note_misspelt(self, kind: str, name: str, plugin: type) -> None:
        hooks = spec_hooks(kind)
        for method, _ in inspect.getmembers(plugin, inspect.isroutine):
            near = get_close_matches(method, hooks, n=1, cutoff=0.85)
            if near and method not in hooks and not method.startswith("_"):
                problem = f"{method} of {name} is not a hook and is never called"
                self.notes[method] = f"{problem}: did you mean {near[0]}?"

    def conclude(self) -> None:
        """Check the results of both rounds, and note what had no effect.

        Raises:
            UsageError: A term has no gradient, or a hook draws what can't be repeated.
        """
        self._expect_finite_terms()
        if self._later is not None:
            raise self._later
        for label, reached in self._reached.items():
            if label in self._counted and not reached:  # one that an option leaves out is 0
                raise UsageError(
                    f"{label} has no gradient: it changes nothing",
                    NO_GRADIENT,
                    WITH_GRADIENT,
                )
        self.randomness.conclude()
        if not self._reached:
            for name in self._weighing:
                self.notes[name] = f"{name} has no effect: clients train no loss"
        if self._effects:
            self.notes |= dict(self._effects.notes())


def _kept(hook: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the current state of everything that a hook may only read."""
    result: dict[str, Any] = {}
    for name in GIVEN:
        held = arguments.get(name)
        if isinstance(held, Mapping):
            result |= {f"{name}[{k!r}]": as_it_is(v) for k, v in held.items()}
        elif held is not None:
            result[name] = as_it_is(held)
    if "server" in arguments:
        server = arguments["server"]
        result |= {
            f"server.global_state[{k!r}]": as_it_is(v) for k, v in server.global_state.items()
        }
        if hook in READING or hook in CODING:
            result |= {f"server.state[{k!r}]": as_it_is(v) for k, v in server.state.items()}
            result["server.modules"] = weights_as_they_are(server.modules.values())
    if (hook in READING or hook in CODING) and "client" in arguments:
        client = arguments["client"]
        result |= {f"client.state[{k!r}]": as_it_is(v) for k, v in client.state.items()}
        result |= {f"client.received[{k!r}]": as_it_is(v) for k, v in client.received.items()}
        modules = [client.module("model"), *client.modules.values()]
        result["the client's weights"] = weights_as_they_are(modules)
    return result


def _wrote(who: str, hook: str, what: str) -> RunFailure:
    """Return the error for a hook that writes what it may only read."""
    if what.startswith(GIVEN):
        near = "the sender, or the run's data, may still hold the same tensors"
        do = "return others: pf.Payload(payload, NAME=…), or labels.clone()"
    elif hook in CODING:
        near = "a sender encodes, and a receiver decodes, any number of times"
        do = "write state in encode_upload, which is called once an upload"
    elif hook in READING:
        near = "it is called as often as there are evaluations, and may change nothing"
        do = "write state in upload_payload or after_training, on the server in server_train"
    else:
        near = "what it returns is merged into the global state, with the classes of its rows"
        do = "return what changes: pf.class_rows(known, prototypes=table)"
    return RunFailure(f"{who} writes {what}", near, do)
