"""Base of the groups for series, tokens and tables, with an option for one net for all clients."""

from __future__ import annotations

import difflib
from typing import cast

import protofl as pf
from protofl_plugins.models.group import GroupConfig, ModelGroup


class SelectableGroup(ModelGroup):
    """A group of which one net can be taken for all clients."""

    feature_dim = 64
    server_extractors = ()

    class Config(GroupConfig):
        """The chosen net, or None for all."""

        only: str | None = pf.Field(
            None, description="the name of one of its nets, for all clients. None: all in turn"
        )

    def nets(self, config: pf.Config) -> list[pf.models.Architecture]:
        """Return the extractors in order, or the chosen one, each with a linear head K → C.

        Raises:
            UsageError: The chosen one is none of them.
        """
        by_name = {extractor.name: extractor.with_head() for extractor in self.members(config)}
        only = cast(SelectableGroup.Config, config).only
        if only is None:
            return [*by_name.values()]
        if only not in by_name:
            near = difflib.get_close_matches(only, by_name, n=1, cutoff=0.5)
            raise pf.UsageError(
                f"only={only} is not a net of this group",
                f"did you mean {near[0]}?" if near else f"its nets: {', '.join(by_name)}",
                "choose one of them, or leave it out",
            )
        return [by_name[only]]

    @pf.hookimpl
    def server_architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """All nets: the server's own, and the auxiliary of FML and FedKD, may be any of them."""
        return [extractor.with_head() for extractor in self.members(config)]
