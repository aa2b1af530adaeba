"""The samples of a node's clients, from the data set that its ``node.toml`` names.

Nothing of them leaves the node but what ``tell`` allows: with ``counts`` the training and test
samples of each class, with ``sizes`` their numbers and how many of the test samples the most
frequent training class guesses right, with ``nothing`` none of them.

This hides counts from the reports of an honest server only. A server that sends crafted models
learns the counts of all classes from sums of losses and a few evaluations; see ``losses`` and
``most_evaluations`` of the policy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

import protofl as pf
from protofl_flower.node_data import FORM

SHARE = 0.75
"""Training share of samples that have no test part of their own."""

Tell = Literal["counts", "sizes", "nothing"]


@dataclass
class LocalData:
    """The table ``[data]`` of ``node.toml``, and the samples that it names.

    Attributes:
        clients: The clients on this node.
        data_dir: The folder of decoded data.
        dataset: The data set, as ``--dataset`` names it.
        options: Its options.
        part: For data that come already split: the part of each client.
        labels: {own label: the federation's class}, by name or number.
        seed: Draws the test part of data that have none.
        tell: What the server learns about sizes.
        public: Public samples, as ``--public`` names them.
    """

    clients: Sequence[int]
    data_dir: Path
    dataset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    part: Sequence[int] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    tell: Tell = "counts"
    public: str = ""

    @classmethod
    def read(cls, table: Any, clients: Sequence[int], data_dir: Path) -> LocalData | None:  # noqa: ANN401 - of a file
        """Return the data of a table of ``node.toml``; None without it.

        Raises:
            UsageError: A setting is unknown, missing or of another type.
        """
        if table is None:
            return None
        kinds: dict[str, tuple[type, ...]] = {"dataset": (str,), "options": (dict,)}
        kinds |= {"part": (int, list), "labels": (dict,), "seed": (int,), "tell": (str,)}
        kinds |= {"public": (str,)}
        if not isinstance(table, Mapping):
            raise pf.UsageError(
                f"node.toml: data is {table!r}", do='write [data] and dataset = "…"'
            )
        for key, value in table.items():
            if key not in kinds:
                raise pf.UsageError(
                    f"node.toml: unknown setting [data] {key}", f"known: {', '.join(kinds)}"
                )
            if not isinstance(value, kinds[key]) or isinstance(value, bool):
                expected = " or a ".join({"int": "number", "str": "text", "dict": "table"}.get(
                    kind.__name__, kind.__name__) for kind in kinds[key])  # fmt: skip
                raise pf.UsageError(
                    f"node.toml: [data] {key} is {value!r}", do=f"write a {expected}"
                )
        if "dataset" not in table:
            raise pf.UsageError(
                "node.toml: [data] has no dataset", do='name it: dataset = "npz:FILE"'
            )
        setting = table.get("part", [])
        parts = [setting] if isinstance(setting, int) else setting
        if any(type(p) is not int or p < 0 for p in parts) or len(parts) not in (0, len(clients)):
            raise pf.UsageError(
                f"node.toml: [data] part is {setting!r}",
                f"expected a number for each of the clients {', '.join(map(str, clients))}",
            )
        if table.get("tell", "counts") not in get_args(Tell):
            raise pf.UsageError(
                f"node.toml: [data] tell is {table['tell']!r}",
                do=f"write {', '.join(get_args(Tell))}",
            )
        labels = {str(key): str(value) for key, value in table.get("labels", {}).items()}
        return cls(clients, data_dir, **{**table, "part": parts, "labels": labels})

    def described(self) -> str:
        """Return the size of each client's data and the labels, for the operator.

        Raises:
            UsageError: The data can't be read.
        """
        samples = self._read(self.dataset, self.options)
        sizes = ", ".join(f"{len(a)} + {len(b)}" for a, b in self._parts(samples))
        labels = ", ".join(samples.classes[:20]) + (", …" if samples.num_classes > 20 else "")
        return f"{samples.sample}, {sizes} for training and tests; labels: {labels}"

    def sizes(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes that the server gets before a run.

        Args:
            form: The options of the data set ``nodes``.

        Raises:
            UsageError: The data can't be read, or do not have this form.
        """
        samples = self.load(form, max(self.clients) + 1)
        classes, told = samples.num_classes, {}
        assert samples.split is not None
        for client in self.clients:
            train, test = (
                torch.bincount(samples.y[rows], minlength=classes) for rows in samples.split[client]
            )
            guess = int(train.numpy().argmax())  # NumPy promises the first of equals
            ways: dict[str, tuple[Any, Any]] = {
                "counts": (train.tolist(), test.tolist()),
                "sizes": (int(train.sum()), int(test.sum())),
                "nothing": (None, None),
            }
            client_sizes = dict(zip(("train", "test"), ways[self.tell], strict=True))
            right = None if self.tell == "nothing" else [int(test[guess]), int(test.sum())]
            told[str(client)] = {**client_sizes, "majority": right}
        return {"clients": told}

    def of_plan(self, text: str) -> pf.datasets.Dataset:
        """Return `load` for a plan, given as JSON."""
        plan = json.loads(text)
        return self.load(plan["options"]["dataset"], plan["clients"])

    def load(self, form: Mapping[str, Any], clients: int) -> pf.datasets.Dataset:
        """Return the samples of this node's clients, labelled with the federation's classes.

        Args:
            form: The options of the data set ``nodes``.
            clients: Clients M of the run; all others have no rows.

        Raises:
            UsageError: The data can't be read, or do not have this form.
        """
        asked = {key: form[key] for key in FORM if key in form}
        template = self._read("nodes", {**asked, "told": [{}]})
        samples = self._read(self.dataset, self.options)
        if samples.sample != template.sample:
            raise pf.UsageError(
                f"this node has {samples.sample}, and the federation has {template.sample}",
                do="bring the samples to this form, or name other data in node.toml",
            )
        parts = self._parts(samples)
        rows = torch.cat([rows for pair in parts for rows in pair])
        y = torch.zeros_like(samples.y)
        y[rows] = self._places(samples, template.classes, rows)[samples.y[rows]]
        empty = rows[:0]
        split = [(empty, empty)] * clients
        for client, pair in zip(self.clients, parts, strict=True):
            split[client] = pair
        digest = sha256(samples.digest.encode())
        for tensor in (y[rows], *(rows for pair in split for rows in pair)):
            digest.update(tensor.numpy().tobytes() + b";")
        return pf.datasets.Dataset(
            x=samples.x,
            y=y,
            num_train=len(y),
            classes=template.classes,
            split=split,
            digest=digest.hexdigest(),
            vocabulary=template.vocabulary,
            padding=template.padding,
            elsewhere=True,
            preparation=samples.preparation,
        )

    def _read(self, name: str, options: Mapping[str, Any]) -> pf.datasets.Dataset:
        samples = pf.backends.load_dataset(name, options, self.data_dir, print)
        if not samples.task.has_classes:
            raise pf.UsageError(
                f"{name} is for {samples.task.name}, and deployments are for classification",
                do="run it as a simulation, or name data with one class per sample in node.toml",
            )
        return samples

    def _parts(self, samples: pf.datasets.Dataset) -> list[tuple[Tensor, Tensor]]:
        """Return the training and test rows of each client of this node."""
        num_clients = len(self.clients)
        if samples.split is not None:
            parts = self.part or (range(num_clients) if len(samples.split) == num_clients else ())
            if not parts or max(parts) >= len(samples.split):
                raise pf.UsageError(
                    f"the data of this node come split into {len(samples.split)} parts",
                    f"node.toml: [data] part is {[*self.part]}",
                    f"write part = N, from 0 to {len(samples.split) - 1}, for each client",
                )
            chosen = [samples.split[number] for number in parts]
        elif num_clients > 1 or self.part:
            raise pf.UsageError(
                "the data of this node do not come split, and node.toml gives "
                f"{num_clients} clients {'parts' if self.part else 'one data set'}",
                do="give the node one client, or data that are split: pfllib:DIR",
            )
        elif samples.num_train < len(samples.y):
            everything = torch.arange(len(samples.y))
            chosen = [(everything[: samples.num_train], everything[samples.num_train :])]
        else:
            chosen = [self._halves(len(samples.y))]
        for client, pair in zip(self.clients, chosen, strict=True):
            for rows, name in zip(pair, ("training", "test"), strict=True):
                if not len(rows):
                    raise pf.UsageError(f"client {client} has no {name} samples on this node")
        return chosen

    def _halves(self, count: int) -> tuple[Tensor, Tensor]:
        """Return 75 % of the rows and the rest, drawn by the seed and the client."""
        key = sha256(f"{self.seed}/own-split/{self.clients[0]}".encode()).digest()
        chance = torch.Generator().manual_seed(int.from_bytes(key[:7], "big"))
        order = torch.randperm(count, generator=chance)
        train = min(max(1, round(SHARE * count)), count - 1)
        return order[:train].sort().values, order[train:].sort().values

    def _places(self, samples: pf.datasets.Dataset, classes: Sequence[str], rows: Tensor) -> Tensor:
        """Return the federation's class of each own class.

        Raises:
            UsageError: A label that occurs has none.
        """
        unused = {*self.labels}
        places = torch.full((len(samples.classes),), -1)
        used = {*torch.unique(samples.y[rows]).tolist()}
        for number, name in enumerate(samples.classes):
            key = name if name in self.labels else str(number)
            unused.discard(key)
            label = self.labels.get(key, name)
            if label in classes:
                places[number] = classes.index(label)
            elif label != name and label.isdecimal() and int(label) < len(classes):
                places[number] = int(label)
            elif number in used:
                shown = ", ".join(map(repr, classes[:12])) + (", …" if len(classes) > 12 else "")
                raise pf.UsageError(
                    f"label {label!r} of this node is not a class of the federation",
                    f"the classes: {shown}",
                    f"node.toml: write [data.labels] and {json.dumps(name)} = CLASS",
                )
        if unused:
            raise pf.UsageError(
                f"node.toml: [data.labels] has {min(unused)!r}, which is not a label of the data",
                f"labels: {', '.join(map(repr, samples.classes[:12]))}",
            )
        return places
