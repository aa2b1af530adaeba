"""Kept rounds of a run: models, the server's knowledge, predictions, exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protofl.errors import UsageError
from protofl.records.reading import Reading

if TYPE_CHECKING:
    from torch import Tensor

    from protofl.federation.plan import Plan
    from protofl.hooks.models.architecture import SplitModel
    from protofl.runs.scorer import Scorer


class KeptRounds(Reading):
    """The part of `Run` that needs weights."""

    if TYPE_CHECKING:

        @property
        def plan(self) -> Plan:
            """See `Run.plan`."""
            ...

    def model(
        self, client: int, which: Literal["last", "best"] = "last", trial: int = 0
    ) -> SplitModel:
        """Return a client's model in eval mode, with its weights at the end of a round.

        A client that has not trained has its initial weights.

        Args:
            client: The client.
            which: The ``last`` or ``best`` round of the trial, if ``--keep`` kept it.
            trial: The trial.

        Raises:
            UsageError: The run has not kept the round, there is no such client, or its data or
                plugins are missing.
        """
        from protofl.hooks.wire.weights import load_weights

        self._check_client(client)
        kept = self.weights(which, trial, [client])
        model = self.plan.initial_model(client, trial)
        if client in kept.clients:
            load_weights(model, kept.clients[client], "model")
        return model.eval()

    def knowledge(
        self, which: Literal["last", "best"] = "last", trial: int = 0
    ) -> dict[str, Tensor]:
        """Return the server's knowledge at the end of a round (names: docs/reference/wire.md).

        Args:
            which: The ``last`` or ``best`` round of the trial, if ``--keep`` kept it.
            trial: The trial.

        Raises:
            UsageError: The run has not kept the round.
        """
        server = self.weights(which, trial, []).server
        start = "knowledge/"
        return {k.removeprefix(start): t for k, t in server.items() if k.startswith(start)}

    def predict(
        self,
        client: int,
        samples: Any,  # noqa: ANN401 - whatever NumPy makes an array of
        which: Literal["last", "best"] = "last",
        trial: int = 0,
    ) -> Tensor:
        """Predict the classes of samples by the method's inference, as the run's evaluation does.

        `model` alone scores by the client's head. A method may predict otherwise: FedProto by the
        nearest prototype that the server knows.

        Args:
            client: The client.
            samples: Samples [N, …] as the data set holds them, before any preparation; images may
                be in any layout that ``npz:`` reads.
            which: The trial's ``last`` round or its ``best`` one, as far as ``--keep`` kept them.
            trial: The trial.

        Returns:
            Class numbers [N] int64; the names are ``run.plan.data.classes``.

        Raises:
            UsageError: The samples do not fit, or see `model`.
        """
        from protofl.runs.scorer import samples_like

        scorer = self.scorer(client, which, trial)
        return scorer.scores(samples_like(samples, self.plan.data.sample)).argmax(1)

    def scorer(
        self, client: int, which: Literal["last", "best"] = "last", trial: int = 0
    ) -> Scorer:
        """Return the module that maps stored samples to a client's class scores, for `predict`.

        Args:
            client: The client.
            which: See `predict`.
            trial: See `predict`.

        Raises:
            UsageError: See `model`.
        """
        from protofl.runs.scorer import scorer_of

        self._check_client(client)
        return scorer_of(self.plan, self, client, which, trial)

    def export(
        self,
        client: int,
        path: str | Path,
        which: Literal["last", "best"] = "last",
        trial: int = 0,
    ) -> Path:
        """Write a client to a file that other programs read.

        Args:
            client: The client.
            path: ``FILE.onnx`` and ``FILE.pt2`` (torch.export) map stored samples to class scores
                and contain the preparation and the method's inference; ``FILE.safetensors`` has
                the weights and the client's download.
            which: See `predict`.
            trial: See `predict`.

        Returns:
            The file.

        Raises:
            UsageError: The ending is another, the method's inference cannot be exported, or see
                `model`.
        """
        from protofl.runs.client_export import export

        return export(self.scorer(client, which, trial), self.plan, Path(path).expanduser())

    def _check_client(self, client: int) -> None:
        clients = self.config["clients"]
        if not 0 <= client < clients:
            raise UsageError(
                f"{self.folder} has no client {client}", f"clients are 0 to {clients - 1}"
            )
