"""Hooks of model groups, partitioners, data sets, generators, encoders, engines and backends.

`protofl.hooks.hookspecs.rounds` has the hooks of client samplers, device models, metrics and
trackers.

Every plugin is a class with a docstring (its first line is shown in ``list-plugins``), an
optional nested ``Config`` and no state on ``self``. A plugin that takes an argument after its name
(``npz:PATH``, ``torchvision:resnet18,vgg11``) names the Config field for it in ``argument``.

Every plugin, methods and transforms too, may declare ``check_options`` and ``check_argument``, the
options and the argument under which ``protofl check`` runs it.

Each of these hooks has one provider. Returning None is an error unless the hook says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from protofl.hooks.hookspecs import hookspec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from protofl import backends
    from protofl.data.dataset import Dataset
    from protofl.data.generators import Generator, Outline
    from protofl.hooks.models.architecture import Architecture
    from protofl.system.options.plugin_options import Config


class ReproductionSpec:
    """Reproductions have no hooks: they are TOML files (docs/how-to/write-a-reproduction.md)."""


class CommandSpec:
    """Commands have no hooks: they are functions or Typer apps (docs/how-to/plugins/command.md)."""


class ModelGroupSpec:
    """A model group.

    A group may declare these attributes; the last value in brackets is the default: ``kinds`` (the
    samples of its models: ``image``, ``series``, ``tokens``, ``table``; images), ``feature_dim``
    (K; 512), ``lr`` (the learning rate of SGD; 0.01), ``server_architecture`` (``resnet56``),
    ``auxiliary_architecture`` (the small model that clients share in FML and FedKD; its first
    architecture), and for images ``min_side`` (smaller images are enlarged; 32; an option of this
    name goes before) and ``channels`` (input channels, None for the data's; None). ``tasks`` are
    the tasks of its nets (all but ``language-model``), and ``own_ids`` is True if its nets know the
    token ids of their own tokenizer (False). A method ``folders(config)`` returns {architecture:
    folder} of nets that are read from folders; digests of their weights become part of a run's
    identity.
    """

    @hookspec(firstresult=True)
    def architectures(self, config: Config) -> list[Architecture]:
        """Return the architectures in order: client i gets number i mod X."""

    @hookspec(firstresult=True)
    def server_architectures(self, config: Config) -> list[Architecture]:
        """Return further architectures for a server (optional). None: no further ones."""


class PartitionerSpec:
    """A partitioner splits the samples of a data set over clients.

    A partitioner may declare ``leaves_out`` (a description of the samples that no client gets;
    without it every sample goes to a client) and ``deterministic = True`` (every seed gives the
    same split).
    """

    @hookspec(firstresult=True)
    def partition(
        self,
        labels: np.ndarray,
        num_classes: int,
        class_names: list[str],
        num_clients: int,
        min_samples: int,
        num_train: int,
        columns: Mapping[str, np.ndarray],
        generator: np.random.Generator,
        config: Config,
        notes: list[str],
    ) -> list[np.ndarray] | list[tuple[np.ndarray, np.ndarray]]:
        """Return one int64 array of row numbers per client, no row twice.

        A client's rows are then shuffled and split 75/25. For another division, return pairs
        (training rows, test rows). A client without training rows is unseen (``--unseen``).

        Args:
            labels: Labels [N] in 0…C-1.
            num_classes: C.
            class_names: Names of the C classes.
            num_clients: M.
            min_samples: Minimum number of samples per client: the option ``min_samples`` of the
                partitioner if it declares one and a user gave it; otherwise 14, or half the mean
                share if the data are too few. No option of training changes it.
            num_train: The first ``num_train`` samples are the data set's own training part, the
                rest its own test part.
            columns: {name: values [N]}, further facts about each sample (see
                `protofl.datasets.Dataset`).
            generator: The only source of randomness.
            config: The partitioner's options.
            notes: Append lines for the user about unusual results.

        Raises:
            UsageError: The options can't be met by these data.
        """

    @hookspec(firstresult=True)
    def count_clients(
        self, labels: np.ndarray, columns: Mapping[str, np.ndarray], config: Config
    ) -> int:
        """Return the number of clients if the data determine it (optional).

        Without this hook, ``--clients`` or its default is the number.

        Args:
            labels: Labels [N] in 0…C-1.
            columns: {name: values [N]}, further facts about each sample.
            config: The partitioner's options.

        Raises:
            UsageError: The options can't be met by these data.
        """


class DatasetSpec:
    """A data set. The runtime caches the result of ``decode`` as memory-mapped tensors.

    A data set whose preparation is fitted to the training rows of each client
    (`protofl.datasets.Fitted`) names in ``fitting`` the class that does it
    (`protofl.datasets.Fitting`).
    """

    @hookspec(firstresult=True)
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """Return a file name ([a-z0-9-]) for the decoded data; changed data need another name.

        Data that should not be cached have an empty name, and a ``digest`` of their own.
        """

    @hookspec(firstresult=True)
    def decode(self, config: Config, data_dir: Path) -> Dataset:
        """Download (if needed), decode and return the data; called if the cache lacks them.

        Raises:
            UsageError: The data can't be found, read or trusted.
        """


class GeneratorSpec:
    """An image generator on the server (FedKTL).

    A method that needs it declares ``needs_generator = True`` and uses ``server.sample_latents``
    and ``server.generate``.
    """

    @hookspec(firstresult=True)
    def outline(self, config: Config, data_dir: Path) -> Outline:
        """Return the generator's sizes without loading it, after cheap checks.

        The dry run calls it in place of ``open_generator``. Without this hook the dry run assumes
        the usual sizes.

        Raises:
            UsageError: The generator can't be loaded: a file or a consent is missing.
        """

    @hookspec(firstresult=True)
    def open_generator(self, config: Config, device: torch.device, data_dir: Path) -> Generator:
        """Load the generator, frozen, and return it; called once in a process, on the server.

        Raises:
            UsageError: The generator can't be loaded.
        """

    @hookspec(firstresult=True)
    def train_generator(
        self, config: Config, images: Dataset, report: Callable[[str], None], out: Path
    ) -> dict[str, str]:
        """Train a generator on the training part of a data set and write it to ``out`` (optional).

        Args:
            config: The plugin's options.
            images: The data; the first ``num_train`` rows are the training part.
            report: Takes a line about the progress.
            out: The file to write; it gets the user's name when the hook has returned.

        Returns:
            Facts about the training to print, {name: value}.

        Raises:
            UsageError: The data are not suitable.
        """


class EngineSpec:
    """An engine runs local training inside a host.

    ``eager`` is the reference: other engines fall back to it for jobs that they can't run, and give
    the reason in ``job.notes``. An engine may keep compiled or captured steps and buffers on
    ``self``, as they do not change results. An engine that replays recorded steps declares
    ``replays = True`` and checks its steps where ``job.checks`` is true (`StepTrace`).
    """

    @hookspec(firstresult=True)
    def train(self, job: backends.TrainJob, config: Config) -> dict[str, float]:
        """Run the phase of local training of one client, inside ``job.stream()``.

        Returns:
            {label: sum over samples} of every loss term: the mean of each batch times its samples.
        """

    @hookspec(firstresult=True)
    def train_group(self, jobs: list[backends.TrainJob], config: Config) -> list[dict[str, float]]:
        """Run the phases of several clients, chosen by `choose_groups` (optional).

        All clients of a group are in memory at once. Code that uses torch's global generators must
        run inside the ``stream()`` of its job.

        Returns:
            The result of `train` for each job in order.
        """

    @hookspec(firstresult=True)
    def choose_groups(self, architectures: list[str], config: Config) -> list[list[int]]:
        """Return the clients to train together; required with `train_group`.

        Args:
            architectures: The name of each client's architecture, costly clients first.
            config: The engine's options.

        Returns:
            Lists of positions, every position once.
        """


class BackendSpec:
    """A backend places hosts and carries jobs to them.

    A backend whose pool is an `AsynchronousPool` declares ``real_time = True``: runs with a
    schedule then need no devices. If each of its hosts has a secret that the server does not know
    (`Host(plan, secret=…)`), it declares ``has_secrets = True``: otherwise the record calls ε
    simulated.
    """

    @hookspec(firstresult=True)
    def open_pool(
        self, plan: backends.Plan, config: Config, workers: int, idle: backends.Idle | None
    ) -> backends.Pool:
        """Start the hosts and return the pool that carries jobs to them.

        Args:
            plan: The run; ``plan.to_json()`` is enough to build it elsewhere.
            config: The backend's options.
            workers: Hosts to start; 0 for the backend's own choice.
            idle: In a sweep the hosts of earlier runs, which may be used instead of new ones; the
                pool adds its own hosts when it is closed.
        """
