"""Kinds of which a run may have several plugins: metrics and trackers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protofl.discovery.registry import Registry
from protofl.errors import UsageError
from protofl.options.table import SEVERAL
from protofl.plugin.choice import Choice, choose

if TYPE_CHECKING:
    from protofl.plugin.composition import Composition


def chosen_several(
    registry: Registry, settings: Mapping[str, Any], composition: Composition
) -> dict[str, Choice]:
    """The plugins that options of `SEVERAL` name, with their own options, by ``KIND/NAME``.

    Args:
        registry: Where they are found.
        settings: The options of a run.
        composition: Its methods and wrappers.

    Raises:
        UsageError: There is none of a name, or another plugin of the run has it too.
    """
    owners = {name: member.kind for name, member in composition.members.items()}
    found: dict[str, Choice] = {}
    for option, kind in SEVERAL.items():
        for name in settings[option]:
            if name in owners:
                raise UsageError(
                    f"--{option} {name}: the run has a {owners[name]} of that name",
                    do=f"block the {kind} (--block {kind}/{name}), or leave it out",
                )
            found[f"{kind}/{name}"] = choose(registry, kind, name, settings["options"].get(name))
        owners |= dict.fromkeys(settings[option], kind)
    return found


def several_in(choices: Mapping[str, Choice], *kinds: str) -> list[Choice]:
    """Those of some kinds among a run's plugins."""
    return [choice for choice in choices.values() if choice.kind in kinds]
