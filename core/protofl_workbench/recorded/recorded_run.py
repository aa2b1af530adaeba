"""A recorded run as an object: `load_run`. Data and models are loaded only when they are needed."""

from __future__ import annotations

import warnings
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.data.task_names import below_guess, score_name
from protofl.errors import UsageError
from protofl.records.layout import PARTITION, PREPARATION
from protofl.records.reading import Reading
from protofl.records.record_files import table_or_none
from protofl.system.files.home import expand_user
from protofl_workbench.recorded.row_tables import columns_of, frame_of, with_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    import pandas as pd
    from torch import Tensor

    from protofl.data.preparation import Preparation
    from protofl.federation.plan.plan import Plan
    from protofl.hooks.models.architecture import SplitModel
    from protofl.hooks.wire.payload import Payload
    from protofl.system.options.settings import Settings
    from protofl_workbench.recorded.new_data import Evaluation
    from protofl_workbench.recorded.observed import Observed
    from protofl_workbench.recorded.predicted import Predicted
    from protofl_workbench.recorded.recorded_split import RecordedSplit
    from protofl_workbench.recorded.scorer import Scorer


def load_run(folder: str | Path) -> Run:
    """Open the folder of a run that is finished, was interrupted, or is still going on.

    Only the configuration is read at once; nothing is changed. Values are cached: load the run
    again to see what has been written since.

    Args:
        folder: The run folder.

    Raises:
        UsageError: It is not a run folder, or its ``config.json`` is damaged.

    Examples:
        >>> run = pf.load_run("runs/first")
        >>> run.columns["test_accuracy"].shape
        (2,)
        >>> run.model(client=0, which="best")
        SplitModel(...)
    """
    run = Run.of(folder)
    run.config  # noqa: B018 - a damaged configuration is refused here
    return run


def run_of(reading: Reading) -> Run:
    """Return a reading of a run folder as a run, with the same trials and rounds."""
    return Run(reading.folder, reading.only_trials, reading.only_rounds)


class Run(Reading):
    """A recorded run in ``folder``; ``only_trials`` and ``only_rounds`` select rows (`Reading`)."""

    def __repr__(self) -> str:
        rounds_done, asked = self.rounds_done, self.asked
        about = f"{self.name}, {self.config['models']}, {self.config['dataset']}"
        return f"<Run {self.folder}: {about}, {rounds_done} of {asked} rounds>"

    @cached_property
    def settings(self) -> Settings:
        """The options of the run (`protofl.system.options.settings`).

        Raises:
            UsageError: Another version of protofl recorded options that this one doesn't know.
        """
        from protofl.system.options.parsing import options_in
        from protofl.system.options.table import build

        return build(options_in(self.config))

    @property
    def name(self) -> str:
        """The method of the run."""
        name: str = self.config["method"]
        return name

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The record as columns {figure: [lines]}, lines sorted by trial and round.

        Nested figures have a dot in their names (``seconds.train``, ``loss_terms.ce``,
        ``client_accuracies.3``). Clients have the names that the data give them, if they give any
        (``client_accuracies.St Mary``). A missing value is NaN, or None in a column without
        numbers.
        """
        rows = [row for trial in self.trials for row in self.rows_of(trial)]
        return columns_of([with_names(row, self.client_names) for row in rows])

    def frame(self) -> pd.DataFrame:
        """Return the columns as a pandas frame.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of(self.columns, "Run.columns has the same as NumPy arrays")

    @property
    def why_it_ended(self) -> str:
        """The error of a run that diverged, or where an unfinished run ended; else empty."""
        return str((self.failure or {}).get("what", "")) or self.interruption

    # --- data and weights -------------------------------------------------------------------------

    def split(self, trial: int = 0) -> RecordedSplit:
        """Return the samples of each client: counts by class, and rows of the data if available.

        Args:
            trial: The trial.

        Raises:
            UsageError: The run has no such trial, or has not written its split yet.
        """
        from protofl_workbench.recorded.recorded_split import RecordedSplit

        record = self.split_record(trial)
        return RecordedSplit.of(
            self.folder / PARTITION, record, lambda: self.plan.split(record["trial"])
        )

    @cached_property
    def plan(self) -> Plan:
        """The plan of the run on the CPU of this machine: data, split, models before training.

        Raises:
            UsageError: Data or plugins are missing, or the data have changed.
        """
        from protofl.federation.plan.plan import Plan
        from protofl.system.consent import check_recorded
        from protofl.system.options.parsing import options_in

        check_recorded(self.config, str(self.folder / "config.json"))
        options = portable(options_in(self.config)) | {"device": "cpu"}
        plan = Plan.make(options, report=lambda line: None, recorded=True)
        recorded = self.config.get("data", {}).get("digest")
        if recorded and recorded != plan.data.digest:
            raise UsageError(
                f"the data of {self.config['dataset']} are not those of {self.folder}",
                do="restore the data",
            )
        return plan

    @cached_property
    def preparation(self) -> Preparation | None:
        """Preparation of raw samples by the data set, such as a standardisation.

        None if the data set does not know it, and `lacks_preparation` then says so.

        Raises:
            UsageError: The record is damaged; or it has none, and data or plugins are missing.
        """
        from protofl.data.preparation import Preparation

        file = self.folder / PREPARATION
        recorded = table_or_none(file)
        if recorded is None:
            return self.plan.preparation(self.plan.split_trials)
        return Preparation.of_json(recorded, str(file))

    @property
    def lacks_preparation(self) -> str:
        """A line about a run whose preparation is not known; empty for others."""
        if self.preparation is not None:
            return ""
        return (
            f"{self.folder} has no record of what was done to raw samples: give samples as the "
            "data set stored them (standardised, if it was)"
        )

    @property
    def observed(self) -> Observed:
        """The recorded observations (``--observe``): prototypes, features and images by round."""
        from protofl_workbench.recorded.observed import Observed

        return Observed(self.folder)

    def uploads(self, round: int = -1, trial: int = 0) -> dict[int, Payload]:
        """Return {client: upload} of a round, as the server accepted them (``--record-uploads``).

        Args:
            round: The round, from 0; -1 for the last recorded one, -2 for the one before, ….
            trial: The trial.

        Raises:
            UsageError: The uploads of this round are not recorded.
            Damaged: The recorded file is damaged.
        """
        from protofl_workbench.recorded.recorded_uploads import read_uploads

        return read_uploads(self.folder, trial, round)

    def upload_rounds(self, trial: int = 0) -> list[int]:
        """Return the rounds of a trial whose uploads are recorded, ascending."""
        from protofl_workbench.recorded.recorded_uploads import rounds_in, series_of

        return rounds_in(series_of(self.folder), trial)

    def predictions(
        self, which: str = "last", trial: int = 0, rounds: int | None = None
    ) -> Predicted:
        """Return the recorded predictions (``--record-predictions``) of a round.

        Args:
            which: ``last`` for the last evaluated round, ``best`` for the first round with the best
                test accuracy, ``validation`` for the first with the best validation accuracy.
            trial: The trial.
            rounds: The first rounds among which the round is chosen; None for all.

        Raises:
            UsageError: The run has not recorded the predictions of this round.
        """
        from protofl_workbench.recorded.predicted import read_predictions

        stored = trial if self.only_trials is None else self.only_trials[trial]
        rows = self.rows_of(trial)
        rows = rows if rounds is None else [row for row in rows if row.round < rounds]
        return read_predictions(self.folder, rows, which, trial, stored)

    def model(
        self, client: int, which: str = "last", trial: int = 0, round: int | None = None
    ) -> SplitModel:
        """Return a client's model in eval mode, with its weights at the end of a round.

        A client that has not trained has its initial weights.

        Args:
            client: The client.
            which: The ``last`` or ``best`` round of the trial, if ``--keep`` kept it.
            trial: The trial.
            round: A round, from 0, that ``--keep-weights`` or ``--keep`` kept, instead of `which`.

        Raises:
            UsageError: The run has not kept the round, the client does not exist, or its data or
                plugins are missing.
        """
        from protofl.federation.clients.host import build_client
        from protofl.hooks.wire.weights import load_weights

        self._check_client(client)
        kept = self.weights(_chosen(which, round), trial, [client])
        model = build_client(self.plan, trial, client).model
        if client in kept.clients:
            load_weights(model, kept.clients[client], "model")
        return model.eval()

    def global_state(
        self, which: str = "last", trial: int = 0, round: int | None = None
    ) -> dict[str, Tensor]:
        """Return the server's global state at the end of a round (names: docs/reference/wire.md).

        See `model` for arguments and errors.
        """
        server, start = self.weights(_chosen(which, round), trial, []).server, "global_state/"
        return {k.removeprefix(start): t for k, t in server.items() if k.startswith(start)}

    def predict(
        self,
        client: int,
        samples: Any,  # noqa: ANN401 - whatever NumPy makes an array of
        which: str = "last",
        trial: int = 0,
        round: int | None = None,
    ) -> Tensor:
        """Predict the classes of samples by the method's inference, as the run's evaluation does.

        `model` alone scores by the client's head. A method may predict otherwise: FedProto by the
        nearest prototype that the server knows.

        Args:
            client: The client.
            samples: Raw samples [N, …]: rows of a table before they are standardised, images in any
                layout that ``npz:`` reads and with the pixels of the data set, texts or token ids;
                a data frame, or the path of a file, of a table with named columns.
                The run's `preparation` is applied; a run without one warns (UserWarning), and takes
                samples as its data set stored them.
            which: See `model`.
            trial: See `model`.
            round: See `model`.

        Returns:
            Class numbers [N] int64; the names are ``run.plan.data.classes``. Of a multi-label task
            which labels a sample has, [N, L] bool; of a regression the numbers [N] in their unit.

        Raises:
            UsageError: The samples do not fit, or see `model`.
        """
        from protofl_workbench.recorded.scorer import raw_samples

        scorer, data = self.scorer(client, which, trial, round), self.plan.data
        if self.lacks_preparation:
            warnings.warn(self.lacks_preparation, UserWarning, stacklevel=2)
        known, registry = scorer.preparation, self.plan.registry
        x = raw_samples(samples, data.sample, data.x.dtype, known, registry=registry)
        return data.task.outcomes(scorer.scores(x))

    def scorer(
        self, client: int, which: str = "last", trial: int = 0, round: int | None = None
    ) -> Scorer:
        """Return the module that maps raw samples to a client's class scores, as `predict`."""
        from protofl_workbench.recorded.scorer import scorer_of

        self._check_client(client)
        return scorer_of(self.plan, self, client, _chosen(which, round), trial, self.preparation)

    def evaluate(
        self,
        data: str | Path,
        clients: Sequence[int] | None = None,
        which: str = "last",
        trial: int = 0,
        round: int | None = None,
    ) -> Evaluation:
        """Evaluate clients on new labelled data, by the method's inference.

        Args:
            data: An .npz file with x and y (or x_test and y_test, or x_train and y_train), raw and
                in a layout that ``npz:`` reads; a folder of images by class; or a data set as
                ``--dataset`` names it, of which the test part counts if there is one. If a column
                names the client of each sample (that of ``--partition column:NAME``, or ``client``
                with numbers), each client has its own samples, otherwise all.
            clients: The clients; None for all.
            which: See `model`.
            trial: See `model`.
            round: See `model`.

        Raises:
            UsageError: The data cannot be read, their form or classes are not the run's, or see
                `model`.
        """
        from protofl_workbench.recorded.new_data import OpenedRun, evaluate, new_data

        chosen = range(self.config["clients"]) if clients is None else clients
        for client in chosen:
            self._check_client(client)
        run = OpenedRun(self, self.plan, self.preparation)
        each, when = [*dict.fromkeys(chosen)], _chosen(which, round)
        return evaluate(run, new_data(run, str(data)), each, when, trial)

    def cross(
        self,
        clients: Sequence[int] | None = None,
        which: str = "last",
        trial: int = 0,
        round: int | None = None,
    ) -> np.ndarray:
        """Return the accuracy of each client's model on the test samples of each client, [n, n].

        Rows are models, columns are test samples, as the clients that have them prepare them. The
        diagonal is the run's own accuracy of the clients; other tasks have their score.

        Args:
            clients: The n clients; None for all.
            which: See `model`.
            trial: See `model`.
            round: See `model`.

        Raises:
            UsageError: See `model`.
        """
        from protofl_workbench.recorded.new_data import OpenedRun, cross

        chosen = [*dict.fromkeys(range(self.config["clients"]) if clients is None else clients)]
        for client in chosen:
            self._check_client(client)
        run = OpenedRun(self, self.plan, self.preparation)
        return cross(run, chosen, _chosen(which, round), trial)

    def join(
        self,
        data: str | Path,
        model: str | None = None,
        fine_tune: int | None = None,
        path: str | Path | None = None,
        trial: int = 0,
    ) -> dict[str, Any]:
        """Add a client that comes after the run, and score it as an unseen client (``--unseen``).

        It has the number after the run's clients, gets what the server would send it after the last
        round, and is fine-tuned on 75 % of its samples. The run folder does not change.

        Args:
            data: See `evaluate`. Rows of the run's clients do not count.
            model: The name of its architecture; None for the one that a further client would have.
            fine_tune: Epochs of fine-tuning; None for the default of ``--fine-tune``.
            path: A file for the fine-tuned client, see `export`; None for none.
            trial: The trial.

        Returns:
            ``client``, ``name`` (None without names), ``architecture``, ``train_samples``,
            ``test_samples``; on its test samples ``accuracy`` before and ``fine_tuned_accuracy``
            after fine-tuning (the score of another task), ``majority``, the accuracy of always
            guessing its most frequent class, and the run's metrics that are one number.

        Raises:
            UsageError: The data cannot be read, or are not those of one new client; or the
                architecture is unknown or does not fit the method; or see `export`.
        """
        from protofl.federation.plan.resolution import TUNING
        from protofl_workbench.recorded.late_client import join
        from protofl_workbench.recorded.new_data import OpenedRun, new_data

        run = OpenedRun(self, self.plan, self.preparation)
        usual = ceil(TUNING * self.settings.local_epochs)
        epochs = fine_tune or self.settings.fine_tune or usual
        target = None if path is None else expand_user(path)
        return join(run, new_data(run, str(data)), model, epochs, target, trial)

    def export(
        self,
        client: int,
        path: str | Path,
        which: str = "last",
        trial: int = 0,
        round: int | None = None,
    ) -> Path:
        """Write a client to a file that other programs read.

        Args:
            client: The client.
            path: ``FILE.onnx`` and ``FILE.pt2`` (torch.export) map raw samples to class scores
                and contain the `preparation` and the method's inference; ``FILE.safetensors`` has
                the weights, but for those of a frozen net, the client's download, and the
                preparation in its metadata.
            which: See `model`.
            trial: See `model`.
            round: See `model`.

        Returns:
            The file.

        Raises:
            UsageError: The ending is another, the method's inference cannot be exported, or see
                `model`.
        """
        from protofl_workbench.recorded.scorer import export

        warning = self.guess_warning(client, which, trial, round)
        scorer = self.scorer(client, which, trial, round)
        return export(scorer, self.plan, expand_user(path), warning)

    def guess_warning(
        self, client: int, which: str = "last", trial: int = 0, round: int | None = None
    ) -> str:
        """Return a line about a client that is not better than its majority guess; else empty.

        See `model` for arguments and errors. A round without an evaluation has no line.
        """
        kept = self.weights(_chosen(which, round), trial, []).round
        rows = [row for row in self.rows_of(trial) if row.round == kept]
        accuracy = rows[0].client_accuracies.get(str(client)) if rows else None
        if accuracy is None:
            return ""
        text = below_guess(score_name(self.config), accuracy, self.majority(trial, [client]))
        return f"{self.split(trial).name_of(client)}: {text}" if text else ""

    @staticmethod
    def export_client(
        plan: Plan,
        client: int,
        path: str | Path,
        trial: int,
        round: int,
        file: Path | None,
        download: bytes,
    ) -> Path:
        """Write a client whose file a backend's host keeps; see `export`.

        Args:
            plan: The plan of the run, with the data of this machine.
            client: The client.
            path: See `export`.
            trial: The trial.
            round: The round of the client's last evaluation.
            file: The client's file, as a job wrote it; None if the client has not trained.
            download: The encoded download of that evaluation.
        """
        from protofl_workbench.recorded.scorer import export, scorer_with

        known = plan.preparation([trial])
        known = None if known is None else known.of_client(client, 0)
        scorer = scorer_with(plan, trial, client, file, round, download, known)
        return export(scorer, plan, expand_user(path))

    def _check_client(self, client: int) -> None:
        clients = self.config["clients"]
        if not 0 <= client < clients:
            raise UsageError(
                f"{self.folder} has no client {client}", f"clients are 0 to {clients - 1}"
            )


def _chosen(which: str | int, round: int | None) -> str | int:
    """Return a round if there is one, otherwise ``which``."""
    return which if round is None else round


def portable(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a recorded run that are valid on every machine.

    The data, the split, the models and the server's part of the run follow from them. Engine,
    backend and folders are left out, as this machine may lack them.

    Args:
        options: Options as ``config.json`` holds them.
    """
    from protofl.system.consent import is_data_folder
    from protofl.system.options.table import CHOOSING, UNRECORDED

    left_out = UNRECORDED | {"engine", "participants_from", "observe"}
    if not is_data_folder(options.get("data_dir", "")):
        left_out |= {"data_dir"}  # a record may not say where to write
    gone = left_out & CHOOSING.keys()
    plugin_options = {owner: v for owner, v in options["options"].items() if owner not in gone}
    return {k: v for k, v in options.items() if k not in left_out} | {"options": plugin_options}
