"""Defences: robust aggregation rules for prototypes, for any method.

A defence provides ``server_aggregate`` (``--use server_aggregate=NAME``) and sees the uploads
before the server's other hooks do. It puts into them what it believes, so that what a method itself
does with prototypes, in its ``server_train`` or elsewhere, is done with that:

* A `Filter` takes the rows out that it does not trust; the others stay what they are.
* A `RobustMean` puts a class's robust mean in the place of each row of it. So there are as many
  rows as before, and a server that trains on them (FedTGP, FedGH) takes as many steps.

What it aggregates is the plain mean of what is left, which of a `RobustMean` is the robust mean.
Counts that clients send have no weight here: they are claims like all else.
"""

from __future__ import annotations

from torch import Tensor

import protofl as pf
from protofl_plugins.shared.prototypes import Absent, mean_prototypes, with_absent

_ROWS = ("prototypes", "counts")


class DefenceConfig(pf.Config):
    """Options of all defences."""

    absent: Absent = pf.Field(
        "keep", description="a class that no client of the round has: its last prototype, or none"
    )


class Sifted:
    """The mean of the rows that a defence keeps."""

    donates = ("server_aggregate",)

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[DefenceConfig], uploads: pf.Uploads) -> pf.Payload:
        """The mean of every class."""
        mean, known = mean_prototypes(server, uploads, "uniform")
        mean, known = with_absent(server, mean, known, server.config.absent)
        return pf.class_rows(known, prototypes=mean)


class RobustMean(Sifted):
    """A defence that has a `rule` for one prototype of every class."""

    def rule(self, server: pf.Server, rows: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """The prototypes [C, K] of M clients' rows [M, C, K], and the known classes [C]."""
        raise NotImplementedError

    @pf.hookimpl
    def receive_uploads(self, server: pf.Server, uploads: pf.Uploads) -> pf.Uploads:
        """Every row of a class as the class's robust mean."""
        rows, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
        table, _ = self.rule(server, rows, present)
        return {
            client: _with(upload, table[upload.classes_of("prototypes")])
            for client, upload in uploads.items()
        }


class Filter(Sifted):
    """A defence that has a `rule` for the rows that it keeps."""

    def rule(self, server: pf.Server, rows: Tensor, present: Tensor) -> Tensor:
        """Return a mask [M, C] of the rows of M clients [M, C, K] that are used."""
        raise NotImplementedError

    @pf.hookimpl
    def receive_uploads(self, server: pf.Server, uploads: pf.Uploads) -> pf.Uploads:
        """The rows that are kept."""
        rows, present = pf.stack_rows(uploads, "prototypes", server.num_classes)
        kept = self.rule(server, rows, present)
        return {
            client: _without(upload, ~kept[number][upload.classes_of("prototypes")])
            for number, (client, upload) in enumerate(uploads.items())
        }


def _with(upload: pf.Payload, rows: Tensor) -> pf.Payload:
    return pf.Payload(upload, prototypes=rows.to(upload["prototypes"]))


def _without(upload: pf.Payload, dropped: Tensor) -> pf.Payload:
    """An upload without some rows of its prototypes, and of the counts that belong to them."""
    if not bool(dropped.any()):
        return upload
    changed = {}
    for name in _ROWS:
        if name in upload.keys() and len(upload[name]) == len(dropped):
            changed[name] = upload[name][~dropped]
            changed[f"{name}.classes"] = upload.classes_of(name)[~dropped]
    return pf.Payload(upload | changed)
