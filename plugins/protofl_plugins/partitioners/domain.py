"""Feature shift: every client has samples of one domain (``--partition domain``).

FedPLVM (Wang et al., NeurIPS 2024) and others give a client a domain, or several clients one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import protofl as pf
from protofl_plugins.partitioners.column import check_gaps
from protofl_plugins.partitioners.dirichlet import Dirichlet
from protofl_plugins.partitioners.requirements import MIN_SAMPLES, check_samples


class Domain:
    """One or several clients per domain: feature shift, with label skew inside if wanted."""

    check_options = {"column": "client"}

    class Config(pf.Config):
        """Options of the domain partitioner."""

        column: str = pf.Field("domain", description="the column that names each sample's domain")
        clients_per_domain: int = pf.Field(1, ge=1, description="clients of each domain")
        beta: float | None = pf.Field(
            None, gt=0, le=1e9,
            description="β of a Dirichlet distribution of labels inside a domain. None: iid",
        )  # fmt: skip
        min_samples: int | None = MIN_SAMPLES

    @pf.hookimpl
    def count_clients(self, columns: Mapping[str, np.ndarray], config: Config) -> int:
        """As many per domain as asked for."""
        return len(pf.datasets.distinct(_domains(columns, config))[0]) * config.clients_per_domain

    @pf.hookimpl
    def partition(
        self,
        labels: np.ndarray,
        num_classes: int,
        num_clients: int,
        min_samples: int,
        columns: Mapping[str, np.ndarray],
        generator: np.random.Generator,
        config: Config,
        notes: list[str],
    ) -> list[np.ndarray]:
        """Divide each domain's samples, domains in ascending order of their names."""
        values, owner = pf.datasets.distinct(_domains(columns, config))
        each = config.clients_per_domain
        if len(values) * each != num_clients:
            raise pf.UsageError(
                f"{len(values)} domains with {each} clients each are not {num_clients} clients",
                do="hold out fewer public samples: lower --public",
            )
        result: list[np.ndarray] = []
        for place, name in enumerate(values):
            rows = np.flatnonzero(owner == place)
            check_samples(f"domain {name}", len(rows), each, min_samples)
            if config.beta is None:
                parts = np.array_split(generator.permutation(len(rows)), each)
            else:
                parts = Dirichlet().partition(
                    labels=labels[rows],
                    num_classes=num_classes,
                    num_clients=each,
                    min_samples=min_samples,
                    generator=generator,
                    config=Dirichlet.Config(beta=config.beta, min_samples=config.min_samples),
                    notes=notes,
                )
            result += [rows[client_rows].astype(np.int64) for client_rows in parts]
        order = ", ".join(map(str, values))
        notes.append(f"domains, {each} client{'s' * (each > 1)} each, in this order: {order}")
        return result


def _domains(columns: Mapping[str, np.ndarray], config: Domain.Config) -> np.ndarray:
    """Return the domain of each sample.

    Raises:
        UsageError: The data have none, or it has gaps.
    """
    if config.column not in columns:
        raise pf.UsageError(
            f"the data set has no column {config.column!r}",
            f"columns: {', '.join(columns) or 'none'}",
            "choose --dataset digits-domains, domains:DIR, or another column: "
            "--set partition.column=NAME",
        )
    check_gaps(columns[config.column], config.column, "domain")
    return columns[config.column]
