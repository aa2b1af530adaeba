"""Clients of a run on new labelled data: accuracy by client and overall (`protofl evaluate`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofl.data.arrays import next_tokens
from protofl.data.columns import Columns, as_column, distinct
from protofl.data.dataset import Dataset, checked_labels, class_names
from protofl.data.preparation import Preparation
from protofl.data.targets import checked_targets
from protofl.data.tasks import CONTINUOUS, variance_of
from protofl.errors import UsageError, unknown
from protofl.federation.clients.evaluation import counted, figures_of
from protofl.federation.plan.plan import Plan
from protofl.federation.plan.run_data import fitting_of, load_data, options_like
from protofl.hooks.discovery.registry import TABLES
from protofl.hooks.plugin.members import Choice, choose
from protofl.hooks.wire.payload import Payload
from protofl.records.reading import Reading
from protofl.system.files.home import expand_user
from protofl.system.torch_state import standard_torch
from protofl_workbench.recorded.scorer import raw_samples, scorers_of

PAIRS = (("x", "y"), ("x_test", "y_test"), ("x_train", "y_train"))
"""Names of samples and labels in an .npz file; the first that it has count."""


@dataclass(frozen=True)
class OpenedRun:
    """A run with what its clients need to score samples.

    Attributes:
        reading: Its record.
        plan: Its plan.
        preparation: What its data set did to raw samples; None if that is not known.
    """

    reading: Reading
    plan: Plan
    preparation: Preparation | None


@dataclass(frozen=True)
class NewData:
    """Labelled samples that a run has not seen.

    Attributes:
        x: Raw samples [N, …], or stored ones if they are ``prepared``.
        y: Their classes among those of the run [N], or labels [N, L] (`Dataset.labels`).
        part: Which samples of the data these are, for the user.
        prepared: True if the samples are as the run's data set stores them.
        owners: The client of each sample [N], -1 for none; None if all clients get all samples.
        notes: Lines for the user.
        columns: Further facts about each sample, {name: values [N]}.
    """

    x: Tensor
    y: Tensor
    part: str
    prepared: bool = False
    owners: Tensor | None = None
    notes: tuple[str, ...] = ()
    columns: Columns = field(default_factory=dict)

    def rows_of(self, client: int) -> Tensor:
        """Return the rows on which a client is evaluated; -1 for rows of no client of the run."""
        if self.owners is None:
            return torch.arange(len(self.y))
        return (self.owners == client).nonzero().flatten()


@dataclass(frozen=True)
class Evaluation:
    """Accuracies of clients on new data, or the scores of another task.

    Attributes:
        clients: Per client ``client``, ``samples``, ``correct`` (of a regression or a language
            model ``points``, see `Task.points`), ``accuracy``, which is the score of another task,
            and the metrics of the run that are one number.
        overall: ``samples``, ``correct`` and ``accuracy`` over all pairs of a client and a sample;
            ``client_accuracy`` and ``client_std``, mean and population standard deviation over
            clients; ``majority``, the accuracy of always guessing the most frequent class of a
            client's samples; and the metrics over all pairs.
        part: Which samples of the data were used.
        notes: Lines for the user.
    """

    clients: list[dict[str, Any]]
    overall: dict[str, Any]
    part: str
    notes: tuple[str, ...] = ()


@standard_torch()
def evaluate(
    run: OpenedRun, data: NewData, clients: Sequence[int], which: str | int, trial: int
) -> Evaluation:
    """Evaluate clients on new data by the method's inference, as the run's evaluation does.

    Args:
        run: The run.
        data: The data.
        clients: The clients; those without a sample in the data are left out.
        which: ``last``, ``best``, or the number of a round, from 0.
        trial: The trial.

    Raises:
        UsageError: No client has a sample, or see `protofl.Run.model`.
    """
    owned = {client: data.rows_of(client) for client in clients}
    owned = {client: rows for client, rows in owned.items() if len(rows)}
    if not owned:
        source = data.part.partition(" of ")[2]
        late = shlex.join(["protofl", "join", str(run.reading.folder), source])
        raise UsageError(
            "none of the chosen clients has a sample in the data",
            do=f"add a client that comes after the run: {late}" if len(data.rows_of(-1)) else "",
        )
    preparation = None if data.prepared else run.preparation
    rows: list[dict[str, Any]] = []
    metrics, counts, guesses = run.plan.metrics, dict[int, Payload](), 0.0
    task = run.plan.data.task
    right = "points" if task.name in CONTINUOUS else "correct"
    tested = torch.bincount(torch.cat([*owned.values()])).nonzero().flatten()
    variance = variance_of(data.y[tested]) if task.name == "regression" else 1.0
    for client, scorer in scorers_of(run.plan, run.reading, [*owned], which, trial, preparation):
        labels = data.y[owned[client]]
        scores = scorer.scores(data.x[owned[client]])
        decoded = task.decoded(labels)
        points = task.points(scores, decoded, variance * task.scale**2).item()
        counts[client] = counted(metrics, scores, decoded)
        guesses += task.guess(labels, labels, variance, run.plan.data.vocabulary)
        rows.append({"client": client, "samples": len(labels), right: points})
    rows.sort(key=lambda row: row["client"])
    figures = figures_of(metrics, counts)
    for row in rows:
        row["accuracy"] = row[right] / row["samples"]
        client_key = str(row["client"])
        row |= {
            name: each["clients"].get(client_key)
            for name, each in figures.items()
            if "clients" in each
        }
    each = np.array([row["accuracy"] for row in rows])
    overall: dict[str, Any] = {key: sum(row[key] for row in rows) for key in ("samples", right)}
    overall["accuracy"] = overall[right] / overall["samples"]
    overall |= {"client_accuracy": float(each.mean()), "client_std": float(each.std())}
    overall["majority"] = guesses / overall["samples"]
    overall |= {name: figure["all"] for name, figure in figures.items()}
    return Evaluation(rows, overall, data.part, data.notes)


@standard_torch()
def cross(run: OpenedRun, clients: Sequence[int], which: str | int, trial: int) -> np.ndarray:
    """Return the accuracy [n, n] of each client's model (row) on each client's test samples.

    Samples are prepared as the client that has them prepares them.

    Args:
        run: The run.
        clients: The n clients.
        which: ``last``, ``best``, or the number of a round, from 0.
        trial: The trial.
    """
    plan, task, split = run.plan, run.plan.data.task, run.plan.split(trial)
    variance, result = plan.variance(trial) * task.scale**2, np.zeros((len(clients),) * 2)
    tests = [plan.samples(split.test(client), False, trial) for client in clients]
    for client, scorer in scorers_of(plan, run.reading, clients, which, trial, None):
        for place, test in enumerate(tests):
            x, rows = test.memory
            points = task.points(scorer.scores(x[rows]), task.decoded(test.y), variance)
            result[clients.index(client), place] = points.item() / len(test)
    return result


def new_data(run: OpenedRun, text: str) -> NewData:
    """Read new labelled data for a run.

    Args:
        run: The run.
        text: An .npz file with x and y (or x_test and y_test, or x_train and y_train); a table
            with named columns; a folder of images by class; or a data set as ``--dataset`` names
            it, of which the test part counts if there is one.

    Raises:
        UsageError: The data cannot be read, or their samples or classes are not the run's.
    """
    path = expand_user(text)
    name, _, file = text.partition(":")
    table = next((p for p in (path, expand_user(file)) if p.suffix.lower() in TABLES), None)
    if table is not None and table.is_file():
        return _of_columns(run, table)
    if name == "npz" and ":" in text:
        path = expand_user(text.partition(":")[2])
    if path.suffix == ".npz" and (name == "npz" or path.is_file()):
        return _of_npz(run, path)
    if path.is_dir():
        text, name = f"folder:{path}", "folder"
    elif path.is_file():
        raise UsageError(
            f"{path}: labelled data are an .npz file with x and y, a table with named columns "
            "(.csv, .parquet), a folder of images by class, or a data set as --dataset names it"
        )
    return _of_data_set(run, text, name)


def _of_npz(run: OpenedRun, path: Path) -> NewData:
    files: Any = run.plan.registry.load("dataset", "npz")
    arrays, held = files.read_arrays(path)
    pair = next((pair for pair in PAIRS if {*pair} <= {*arrays}), None)
    if pair is None:
        raise UsageError(
            f"{path} has no labelled samples",
            f"it holds: {', '.join(held) or 'nothing'}",
            "save x and y (numpy.savez_compressed)",
        )
    plan = run.plan
    known = raw_samples(
        arrays[pair[0]], plan.data.sample, plan.data.x.dtype, run.preparation, f"{path}: {pair[0]}"
    )
    names = class_names(arrays["classes"], str(path)) if "classes" in arrays else None
    source, task = f"{path}: {pair[1]}", plan.data.task
    if task.has_classes:
        labels = checked_labels(arrays[pair[1]], len(known), source)
        y = _classes(labels, names, plan.data.classes, str(path))
    elif task.name == "language-model":
        y = next_tokens(known, plan.data.padding)
    else:
        targets = torch.from_numpy(checked_targets(task, arrays[pair[1]], source, len(known)))
        y = task.encoded(_columns(targets, names, plan.data.outputs, str(path)))
    suffix = pair[0].removeprefix("x")
    columns = {
        key.removesuffix(suffix) if suffix else key: values
        for key, values in arrays.items()
        if values.shape == (len(known),) and key not in (pair[1], "classes")
    }
    owners, notes = _owners(run, columns, str(path))
    return NewData(known, y, f"{pair[0]} of {path}", False, owners, notes, columns)


def _of_columns(run: OpenedRun, path: Path) -> NewData:
    """Read a table with named columns as the run's data set reads it."""
    fitted = run.preparation.fitted if run.preparation else None
    if fitted is None:
        raise UsageError(
            f"{path} is a table with named columns, and the data of {run.reading.folder} have none",
            do="give an .npz file with x and y",
        )
    data = run.plan.data
    labels = [fitted.label] if data.task.has_classes else data.outputs
    read = fitting_of(fitted, run.plan.registry).read
    x, columns = read(path, [*labels, *data.columns])
    if missing := [name for name in labels if name not in columns]:
        raise UsageError(
            f"{path} has no column {missing[0]!r} with the "
            + ("classes" if data.task.has_classes else "labels"),
            do="add the column; protofl score classifies rows without it",
        )
    if data.task.has_classes:
        names, numbers = np.unique(columns[fitted.label], return_inverse=True)
        y = _classes(numbers.astype(np.int64), names.tolist(), data.classes, str(path))
    else:
        values = np.stack([_numbers(columns[name], f"{path}: {name}") for name in labels], 1)
        targets = checked_targets(data.task, values, str(path), len(x))
        y = data.task.encoded(torch.from_numpy(targets))
    for name in columns.keys() & data.columns.keys():
        if data.columns[name].dtype.kind == "i":
            columns[name] = _whole(columns[name])
    owners, notes = _owners(run, columns, str(path))
    return NewData(x, y, f"all rows of {path}", False, owners, notes, columns)


def _numbers(texts: np.ndarray, source: str) -> np.ndarray:
    """Return labels [N] float64 of texts; true and false are 1 and 0."""
    words = {"true": "1", "false": "0", "yes": "1", "no": "0"}
    try:
        return np.array([float(words.get(t.lower(), t.replace(",", "."))) for t in texts.tolist()])
    except ValueError as error:
        raise UsageError(f"{source}: {error}", "labels are numbers here") from None


def _whole(texts: np.ndarray) -> np.ndarray:
    """Return whole numbers of texts, -1 for other texts."""
    return np.array([int(text) if text.isdecimal() else -1 for text in texts.tolist()])


def _of_data_set(run: OpenedRun, text: str, name: str) -> NewData:
    plan = run.plan
    used = plan.choices["dataset"]
    sample = plan.data.sample
    options = used.dump() if used.name == name else {}
    fields = getattr(plan.registry.load("dataset", name), "Config", None)
    option_names = {*getattr(fields, "model_fields", ())}
    run_options = options_like(sample)
    if run.preparation is None or run.preparation.fitted is None:
        run_options["standardise"] = False  # the run's own statistics are applied
    if sample.kind == "image":
        run_options["side"] = sample.shape[1]
        if run.preparation and (files := run.preparation.images):
            run_options |= asdict(files)
    options |= {key: value for key, value in run_options.items() if key in option_names}
    choice: Choice = choose(plan.registry, "dataset", text, options)
    data = load_data(choice, plan.settings.data_dir, lambda line: None, plan.settings.cache)
    # Another offset, scale or loss of a regression does not matter: the run's are applied.
    alike = replace(data.sample, task=sample.task) == sample and data.task.name == sample.task.name
    if not alike or data.x.dtype != plan.data.x.dtype:
        has, needs = (
            f"{d.sample}, {str(d.x.dtype)[6:]}, {d.about_outputs()}" for d in (data, plan.data)
        )
        raise UsageError(f"{text} holds {has}", f"the data of {run.reading.folder} are {needs}")
    prepared = _is_prepared(data, run, text)
    rows, selection = torch.arange(len(data.y)), "all samples"
    if data.num_train < len(data.y):
        rows, selection = rows[data.num_train :], "the test part"
    if data.targets is not None:
        targets = _columns(data.targets, data.outputs, plan.data.outputs, text)
        y = plan.data.task.encoded(targets)[rows]
    else:
        y = _classes(data.y.numpy(), data.classes, plan.data.classes, text)[rows]
    columns = {key: values[rows.numpy()] for key, values in data.columns.items()}
    owners, notes = _owners(run, columns, text)
    notes = (*data.note.splitlines(), *notes)
    part = f"{selection} of {text}"
    return NewData(data.x[rows], y, part, prepared, owners, notes, columns)


def _is_prepared(data: Dataset, run: OpenedRun, text: str) -> bool:
    """Return True if data are prepared as those of the run are, False if they are raw.

    Raises:
        UsageError: They are prepared in another way.
    """
    preparation, recorded = data.preparation, run.preparation
    if preparation is not None and preparation.scaling is None:
        theirs = recorded or Preparation()
        parts = ("words", "images", "fitted")
        if all(getattr(preparation, p) in (None, getattr(theirs, p)) for p in parts):
            return False
    if preparation is None or preparation != recorded:
        raise UsageError(
            f"{text} is prepared in another way than the data of {run.reading.folder}",
            f"its preparation: {preparation or 'not known'}; "
            f"that of the run: {recorded or 'not known'}",
            "give raw samples as an .npz file with x and y",
        )
    return True


def _classes(
    labels: np.ndarray, names: Sequence[str] | None, classes: Sequence[str], source: str
) -> Tensor:
    """Return the run's class of each label.

    Labels stand for names of classes, or for numbers if they have no names and the classes have.

    Args:
        labels: Labels [N] int64.
        names: The name of each label; None if labels are their own names.
        classes: The classes of the run.
        source: What has the labels, for errors.

    Raises:
        UsageError: A label that occurs is not a class of the run.
    """
    names = [str(v) for v in range(int(labels.max(initial=0)) + 1)] if names is None else names
    if len(labels) and int(labels.max()) >= len(names):
        raise UsageError(f"{source}: label {labels.max()}, but there are {len(names)} classes")
    plain = all(name.isdecimal() for name in names)
    if plain and not all(name.isdecimal() for name in classes):
        places = [int(name) if int(name) < len(classes) else -1 for name in names]
    else:
        places = [classes.index(name) if name in classes else -1 for name in names]
    class_numbers = np.array(places, np.int64)[labels]
    if (class_numbers < 0).any():
        raise unknown(f"class in {source}:", names[int(labels[class_numbers.argmin()])], classes)
    return torch.from_numpy(class_numbers)


def _columns(
    targets: Tensor, names: Sequence[str] | None, outputs: Sequence[str], source: str
) -> Tensor:
    """Return labels [N, L] in the order of the run's.

    Args:
        targets: Labels [N, L] or numbers [N, 1].
        names: The name of each column; None if they are the run's.
        outputs: Names of the run's labels.
        source: What has the labels, for errors.

    Raises:
        UsageError: A label is not the run's, or one is missing.
    """
    names = [*outputs] if names is None else names
    for name in names:
        if name not in outputs:
            raise unknown(f"label in {source}:", name, outputs)
    if len(names) != len(outputs) or targets.shape[1] != len(outputs):
        raise UsageError(
            f"{source}: labels of {targets.shape[1]} columns, the run has {len(outputs)}",
            f"its labels: {', '.join(outputs)}",
            "give a column for each label of the run",
        )
    return targets[:, [names.index(name) for name in outputs]]


def _owners(
    run: OpenedRun, columns: Mapping[str, np.ndarray], source: str
) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the client of each sample, if a column names it, and notes.

    The column is that of ``--partition column:NAME``, with the values that name the run's clients;
    or ``client``, with their numbers.
    """
    clients, data = run.reading.config["clients"], run.plan.data
    kind, _, name = str(run.reading.config["partition"]).partition(":")
    values = np.arange(clients)
    if kind == "column" and name in columns and name in data.columns:
        values, _ = distinct(data.columns[name])
    elif "client" in columns and columns["client"].dtype.kind in "iu":
        name = "client"
    else:
        return None, ()
    column = as_column(columns[name])
    if len(values) != clients or column.dtype.kind != values.dtype.kind:
        return None, ()
    places = np.searchsorted(values, column).clip(max=len(values) - 1)
    owners = np.where(values[places] == column, places, -1)
    notes = [f"each client is evaluated on its own samples, by the column {name}"]
    if (strange := int((owners < 0).sum())) and strange < len(owners):
        notes.append(f"{strange:,} samples of {source} are of none of the run's clients")
    return torch.from_numpy(owners), tuple(notes)
