"""The evidence of a run: recorded uploads, and models and samples with which attacks are judged.

An attacker never has all of it. Each attack says which part its attacker knows (`ATTACKERS`); the
rest only decides whether the attacker was right.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import protofl as pf

ATTACKERS = {
    "server": "sees the uploads, and has samples of other clients",
    "colluder": "also knows the model of another client, but not the attacked client's",
    "insider": "also knows the attacked client's extractor, as for a public or shared one",
    "querier": "also gets the scores of the attacked client's model for any sample",
}
"""Knowledge of each attacker. The labels of the samples in question are known to all of them."""

CHUNK = 256
"""Samples in one forward pass."""


class Evidence:
    """Uploads of a round, the clients' models at its end, and their samples.

    Args:
        run: The run; its uploads and weights of one round must be recorded.
        trial: The trial.
        round: The round, from 0; None for the last one of which uploads and weights are there.
        clients: Largest number of attacked clients; they are spread evenly over the ids.
        samples: Largest number of samples of other clients that an attacker has.
        seed: Seed of all draws.

    Attributes:
        round: The round.
        uploads: {client: upload} of all clients of the round.
        clients: The attacked clients.

    Raises:
        UsageError: The run has no such round, or its task is not classification.
    """

    def __init__(
        self,
        run: pf.Run,
        *,
        trial: int = 0,
        round: int | None = None,
        clients: int = 50,
        samples: int = 2000,
        seed: int = 0,
    ) -> None:
        self.run, self.trial, self.seed, self._most = run, trial, seed, samples
        self.round = usable_round(run, trial) if round is None else round
        self.uploads = run.uploads(self.round, trial)
        self.plan = run.plan
        if (task := self.plan.data.task.name) != "classification":
            raise pf.UsageError(
                f"{run.folder} has the task {task}",
                "the attacks of protofl leak are about classes",
                "give a run of classification",
            )
        there = [client for client in self.uploads if self.uploads[client]]
        if not there:
            raise pf.UsageError(
                f"{run.folder}: the uploads of round {self.round + 1} are empty",
                f"{run.config['method']} sends nothing, so there is nothing to attack",
            )
        steps = np.linspace(0, len(there) - 1, min(clients, len(there))).round().astype(int)
        self.clients = [there[step] for step in steps]
        self._models: dict[int, pf.models.SplitModel] = {}
        self._features: dict[tuple[int, bytes], Tensor] = {}

    @property
    def num_classes(self) -> int:
        """C."""
        return int(self.plan.info.num_classes)

    @cached_property
    def y(self) -> Tensor:
        """Labels [N] of the whole data set."""
        return self.plan.data.y

    @cached_property
    def split(self) -> Any:  # noqa: ANN401 - the split of a plan
        """The samples of each client."""
        return self.plan.split(self.trial)

    def members(self, client: int) -> Tensor:
        """Return the rows [n] that a client trained on."""
        return self.split.train(client)  # type: ignore[no-any-return]

    def held_out(self, client: int) -> Tensor:
        """Return rows [n] of a client that it has not trained on: test and validation samples."""
        held = self.split.held_out(client)
        parts = [self.split.test(client)] + ([] if held is None else [held])
        return torch.cat(parts)

    def others(self, client: int) -> tuple[Tensor, Tensor]:
        """Return rows [n] of other clients, and a mask [n] of those that they trained on."""
        rest = [c for c in range(self.split.num_clients) if c != client]
        rows = torch.cat([piece for c in rest for piece in (self.members(c), self.held_out(c))])
        trained = torch.cat(
            [
                torch.full((len(piece),), bool(number == 0))
                for c in rest
                for number, piece in enumerate((self.members(c), self.held_out(c)))
            ]
        )
        generator = np.random.default_rng([self.seed, client])
        chosen = torch.from_numpy(generator.permutation(len(rows))[: self._most])
        return rows[chosen], trained[chosen]

    def colluder(self, client: int) -> int | None:
        """Return the client whose model a colluding attacker has: the next one of equal width."""
        width = self.model(client).feature_dim
        later = [c for c in self.uploads if c > client] + [c for c in self.uploads if c < client]
        return next((c for c in later if self.model(c).feature_dim == width), None)

    # --- models ---------------------------------------------------------------------------------

    def model(self, client: int) -> pf.models.SplitModel:
        """Return a client's model at the end of the round, in eval mode."""
        if client not in self._models:
            self._models[client] = self.run.model(client, trial=self.trial, round=self.round)
        return self._models[client]

    def uploaded_model(self, client: int) -> pf.models.SplitModel:
        """Return the client's model with the weights that it uploaded in their places."""
        model, upload = deepcopy(self.model(client)), self.uploads[client]
        parts = {"model": model, "head": model.head, "extractor": model.extractor}
        with torch.no_grad():
            for prefix, part in parts.items():
                if has(upload, f"{prefix}/"):
                    pf.models.load_weights(part, upload, prefix)
        return model

    def samples(self, client: int, rows: Tensor) -> Any:  # noqa: ANN401 - Samples of a plan
        """Return rows of the data as a client's model sees them."""
        layout = self.plan.info.architecture_of(client).channels_last
        return self.plan.samples(rows, layout, self.trial)

    @torch.no_grad()
    def features(self, client: int, rows: Tensor) -> Tensor:
        """Return features [n, K] of rows by a client's model, float32."""
        key = client, rows.numpy().tobytes()
        if key not in self._features:
            model, chunks = self.model(client), self.samples(client, rows).chunks(CHUNK)
            parts = [model.features(x).float() for x in chunks]
            self._features[key] = torch.cat(parts) if parts else torch.empty(0, model.feature_dim)
        return self._features[key]

    @torch.no_grad()
    def scores(self, model: pf.models.SplitModel, client: int, rows: Tensor) -> Tensor:
        """Return class scores [n, C] of rows by a model of a client's architecture."""
        parts = [model(x).float() for x in self.samples(client, rows).chunks(CHUNK)]
        return torch.cat(parts) if parts else torch.empty(0, self.num_classes)

    def public(self, index: Tensor | None) -> Tensor:
        """Return the public samples at ``index`` [n, D], all for None, like `flat`."""
        public, rows = self.plan.public_data, self.split.public
        x = self.plan.data.x[rows] if public is None else public.x
        return self._scaled(x if index is None else x[index])

    def flat(self, rows: Tensor) -> Tensor:
        """Return stored samples [n, D] as an attacker's own regressions take them: from 0 to 1."""
        return self._scaled(self.plan.data.x[rows])

    def _scaled(self, x: Tensor) -> Tensor:
        x = x.flatten(1).float()
        low, high = self._range
        return (x - low) / (high - low).clamp(min=1e-6)

    @cached_property
    def _range(self) -> tuple[Tensor, Tensor]:
        """The smallest and largest value: of images of all pixels, of tables of each column."""
        x = self.plan.data.x
        if x.dtype == torch.uint8:
            return torch.tensor(0.0), torch.tensor(255.0)
        flat = x.flatten(1).float()
        if self.plan.data.sample.kind == "image":
            return flat.min(), flat.max()
        return flat.min(0).values, flat.max(0).values


def has(upload: pf.Payload, prefix: str) -> bool:
    """Return True if an upload has tensors under a prefix (``model/``)."""
    return any(key.startswith(prefix) for key in upload.keys())


def classes_in(y: Tensor) -> list[int]:
    """Return the classes of labels, ascending."""
    return sorted({*y.tolist()})


def usable_round(run: pf.Run, trial: int) -> int:
    """Return the last round of which both uploads and weights are kept.

    Raises:
        UsageError: There is none.
    """
    rounds = run.upload_rounds(trial)
    for number in reversed(rounds):
        try:
            pf.read_weights(run.folder, number, trial, clients=[])
        except pf.UsageError:
            continue
        return number
    what = "uploads" if not rounds else "a round with uploads and weights"
    raise pf.UsageError(
        f"{run.folder} has not recorded {what}",
        do="repeat the run with --record-uploads --keep last",
    )


def families(upload: pf.Payload) -> list[str]:
    """Return the keys of an upload in order, weights as ``PREFIX/*``."""
    return [*dict.fromkeys(k.partition("/")[0] + "/*" if "/" in k else k for k in upload.keys())]
