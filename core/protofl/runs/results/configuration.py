"""``config.json``: the resolved options of a run, from which it is repeated or resumed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protofl.federation.plan.plan import Plan
from protofl.hooks.discovery.kinds import Plugin
from protofl.hooks.plugin.members import Choice
from protofl.runs.results.identity import defaults_of, file_digests, identity_of
from protofl.system.device import ARITHMETIC
from protofl.system.machine import machine_facts
from protofl.system.options.table import OPTIONS, UNRECORDED, untracked, usual_values
from protofl.system.sources import UNKNOWN, fingerprint
from protofl.system.transfers import has_streams
from protofl.system.version import versions


def config_of(
    plan: Plan,
    *,
    tried: bool = False,
    notes: Sequence[str] = (),
    engine_chosen: bool = False,
) -> dict[str, Any]:
    """Return the content of ``config.json``: options, plugins, versions and machine.

    Args:
        plan: The run.
        tried: Whether there was a dry run, so that it is known what hooks ask for.
        notes: Lines of the dry run for the user.
        engine_chosen: Whether the run has chosen its engine, as on a GPU.
    """
    # Numbers that clients are trained together for depend on which host has them.
    held = {"backend", "profile"} if plan.choices["engine"].trains_groups else set()
    settings = untracked(plan.settings)
    values: dict[str, Any] = json.loads(settings.model_dump_json(exclude={*UNRECORDED} - held))
    values["options"] = {k: v for k, v in values["options"].items() if k not in UNRECORDED}
    if not values["classes"]:
        del values["classes"]
    usual = usual_values(values)
    others = {k for k in values if k in usual and values[k] != usual[k]}
    set_by = {k: who for k, who in plan.set_by.items() if k in others or "." in k}
    unrecorded = {OPTIONS[name].chooses for name in UNRECORDED}
    task = plan.data.task
    used: list[Choice] = [*plan.composition.members.values()]
    used += [one for one in plan.choices.values() if one.kind not in unrecorded]
    about = {
        "set_by": {name: set_by[name] for name in sorted(set_by)},
        "plugins": [_recorded(plan.registry.find(c.kind, c.name), c.plugin) for c in used],
        "versions": versions(),
        "machine": machine_facts(),
        "data": {
            "digest": plan.data.digest,
            "samples": len(plan.data.y),
            "shape": list(plan.data.x.shape[1:]),
            "classes": plan.data.num_classes,
            **({} if task.has_classes else {"task": task.name, "outputs": plan.data.outputs}),
            **({"public": public_data.digest} if (public_data := plan.public_data) else {}),
        },
        "layout": {
            a.name: {"channels_last": a.channels_last, "eval_batch": a.eval_batch}
            for a in plan.info.architectures
        },
        **({"files": files} if (files := file_digests(plan)) else {}),
        **({"depends_on": sorted(plan.info.asked)} if tried else {}),
        **({"notes": [*notes]} if notes else {}),
        **arithmetic_facts(plan),
        **({"engine_chosen": True} if engine_chosen else {}),
    }
    values |= about
    return values | {"identity": identity_of(values, defaults_of(plan))}


def arithmetic_facts(plan: Plan) -> dict[str, Any]:
    """Return ``arithmetic`` of a run on a GPU; nothing for a CPU, which computes in float32."""
    if not has_streams(plan.device):
        return {}
    factors = ARITHMETIC[plan.settings.precision]
    return {"arithmetic": {**factors._asdict(), "repeatable": plan.settings.deterministic}}


def about_arithmetic(plan: Plan) -> str:
    """Return a line about precision and repeatability on a GPU; empty for a CPU."""
    if not has_streams(plan.device):
        return ""
    s, factors = plan.settings, ARITHMETIC[plan.settings.precision]
    if s.precision == "bf16":
        how = "bfloat16 (autocast)"
    else:
        how = f"convolutions in {factors.convolutions}, matrix products in {factors.products}"
    same = "equal runs on this GPU and torch give equal bits"
    other = "not repeatable to the bit (--deterministic is)"
    return f"precision {s.precision}: {how}; {same if s.deterministic else other}"


def _recorded(plugin: Plugin, loaded: type) -> dict[str, str]:
    """Return the recorded facts of a plugin, with a digest of its module's code."""
    about = {key: getattr(plugin, key) for key in ("kind", "name", "version", "distribution")}
    code = fingerprint(loaded)
    return about | ({"code": code} if code != UNKNOWN else {})


def folder_words(plan: Plan) -> list[str]:
    """Return the words of a run folder's name: method, models, data and seed."""
    s = plan.settings
    data, _, file = s.dataset.partition(":")
    return [s.method, s.models, data, Path(file).stem, f"s{s.seed}"]
