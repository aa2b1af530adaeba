"""Initial weights (``--init``): the models of a finished run, or a safetensors file."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from protofl.errors import UsageError, unknown
from protofl.hooks.views.run_info import RunInfo
from protofl.records.checkpoint import Commit
from protofl.records.layout import architectures_in
from protofl.records.reading import Reading
from protofl.records.weights import kept_commit, require_here
from protofl.system.files.atomic import LARGEST_DATA, regular_file
from protofl.system.files.checksums import sha256_of
from protofl.system.files.tensors import opened_tensors, read_tensors

PICKLES = (b"PK", b"\x80")
"""First bytes of a pickle, and of the archive in which ``torch.save`` writes one."""

WRAPPERS = {
    "module.": "DataParallel",
    "_orig_mod.": "torch.compile",
}
"""{start of tensors' names: what wraps a module and adds it}."""


class InitialWeights(ABC):
    """A source of initial weights.

    Args:
        path: A run folder, or a safetensors file.
        info: The run in which clients start.
    """

    def __init__(self, path: Path, info: RunInfo) -> None:
        self.path, self._info, self.where = path, info, f"--init {path}"

    @property
    @abstractmethod
    def digest(self) -> str:
        """A digest of the source."""

    @abstractmethod
    def tensors(self, client: int, seed: int) -> dict[str, Tensor]:
        """Return a client's tensors by their names in the model; empty if its seed draws them.

        Raises:
            UsageError: The source has no model for the client.
        """

    @abstractmethod
    def clients(self) -> list[int]:
        """Return clients whose weights `check` tries, in addition to the first ones."""

    @abstractmethod
    def __str__(self) -> str:
        """Describe the source and the clients that start from it."""

    def check(self, seeds: Iterable[int]) -> str:
        """Check before training that the weights fit; return a line about them.

        Args:
            seeds: The seeds of the run's trials.

        Raises:
            UsageError: A model, a tensor, a shape or a trial is missing or another.
        """
        info = self._info
        clients = [*info.examples, *self.clients()]
        for seed in seeds:
            for client in clients:
                self.load(info.unset_model(info.architecture_of(client)), client, seed)
            clients = [0]
        return f"initial weights: {self}"

    @torch.no_grad()
    def load(self, model: nn.Module, client: int, seed: int) -> list[str]:
        """Copy a client's initial weights into its model; buffers without values stay unchanged.

        Returns:
            The names of the copied tensors.

        Raises:
            UsageError: A tensor is unknown or missing, or has another shape or type.
        """
        tensors = self.tensors(client, seed)
        if not tensors:
            return []
        parameters = dict(model.named_parameters())
        targets = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
        whose = f"{self.where}, client {client}"
        for name in tensors:
            if name not in targets:
                if start := next((p for p in WRAPPERS if name.startswith(p)), ""):
                    raise UsageError(
                        f"{whose}: names begin with {start!r}, which {WRAPPERS[start]} adds",
                        do=f"strip it: save_file({{k.removeprefix({start!r}): t for k, t in "
                        "state_dict.items()}, FILE)",
                    )
                raise unknown(f"tensor in {whose}:", name, targets)
        for name in parameters:
            if name not in tensors:
                known = ", ".join(sorted(tensors))
                raise UsageError(f"{whose}: {name} is missing", f"given: {known}", "add it")
        for name, tensor in tensors.items():
            target = targets[name]
            if tensor.shape != target.shape:
                raise UsageError(
                    f"{whose}: {name} has the shape {list(tensor.shape)}, "
                    f"and the model has {list(target.shape)}",
                    do="give the same --models, --feature-dim and classes as the weights have",
                )
            if tensor.is_floating_point() != target.is_floating_point():
                raise UsageError(
                    f"{whose}: {name} is {tensor.dtype}, and the model has {target.dtype}"
                )
            target.copy_(tensor)
        return [*tensors]


def initial_weights(path: Path, info: RunInfo) -> InitialWeights:
    """Open the source of initial weights.

    Args:
        path: A run folder, or a safetensors file.
        info: The run in which clients start.

    Raises:
        UsageError: The path is neither, or its content does not fit the run.
    """
    kind = _KeptRun if path.is_dir() else _WeightsFile
    return kind(path, info)


class _KeptRun(InitialWeights):
    """The models of a finished run at the end of a trial's last round.

    A trial starts from the trial with the same seed, which has the same split: another trial's
    model may have been trained on test samples of this one.
    """

    def __init__(self, path: Path, info: RunInfo) -> None:
        super().__init__(path, info)
        try:
            run = Reading.of(path)
        except UsageError as problem:
            raise UsageError(f"--init: {problem.what}", problem.near, problem.do) from None
        if not run.finished:
            do = f"finish it: protofl run --resume --out {path}"
            raise UsageError(f"{self.where}: the run is not finished", do=do)
        config = run.config
        self._seeds = range(config["seed"], config["seed"] + config["trials"])
        self._clients, self._names = config["clients"], architectures_in(config)
        self._kept = lru_cache(maxsize=8)(self._read)

    def _read(self, seed: int) -> tuple[Path, Commit, dict[str, int]]:
        """Return the folder and files of a trial's last round, and a client per architecture."""
        if seed not in self._seeds:
            known = ", ".join(map(str, self._seeds[:10]))
            raise UsageError(
                f"{self.where}: that run has no trial with seed {seed}",
                f"its seeds: {known}",
                "a trial starts from the trial with the same seed, because of its split",
            )
        folder, commit = kept_commit(self.path, "last", seed - self._seeds.start)
        require_here(self.path, commit)
        clients = sorted(commit.client_files, reverse=True)
        return folder, commit, {self._name(client): client for client in clients}

    def _name(self, client: int) -> str:
        return self._names[client % len(self._names)] if self._names else ""

    @property
    def digest(self) -> str:
        """A digest of the sizes and checksums of all clients' files."""
        about: list[object] = [self._names, self._clients]
        for seed in self._seeds:
            clients = self._kept(seed)[1].client_files
            about.append([[c, *check.values] for c, (_, check) in sorted(clients.items())])
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()

    def tensors(self, client: int, seed: int) -> dict[str, Tensor]:
        """See `InitialWeights`."""
        folder, commit, others = self._kept(seed)
        name = self._info.architecture_of(client).name
        if client >= self._clients or self._name(client) != name:
            if name not in others:
                raise unknown("architecture in " + self.where + ":", name, {*self._names})
            client = others[name]
        if client not in commit.client_files:
            return {}  # it never trained
        file, check = commit.client_files[client]
        check.require(folder / file)
        start = "model/"
        return {
            key.removeprefix(start).removeprefix("buffer/"): tensor
            for key, tensor in read_tensors(folder / file)[0].items()
            if key.startswith(start)
        }

    def clients(self) -> list[int]:
        """Return clients of all architectures that the run does not have, if there are some."""
        more = range(self._clients, self._info.num_clients)
        return [*(more if self._info.places else more[: len(self._info.architectures)])]

    def __str__(self) -> str:
        clients = range(min(self._clients, self._info.num_clients))
        same = all(self._name(c) == self._info.architecture_of(c).name for c in clients)
        text = f"{self.path}, last round, client by client"
        if same and self._clients >= self._info.num_clients:
            return text
        return f"{text}; clients that it lacks start from one of the same architecture"


class _WeightsFile(InitialWeights):
    """A safetensors file with the weights of architectures or clients.

    Names are ``ARCHITECTURE/TENSOR``, ``client-N/TENSOR``, or ``TENSOR`` in a file for one
    architecture, which is the only one of the run or the metadata's ``architecture``. A file of
    ``protofl export`` is one for its client's architecture.
    """

    def __init__(self, path: Path, info: RunInfo) -> None:
        super().__init__(path, info)
        tensors, about = self._read()
        exported = {
            k.removeprefix(_EXPORTED): t for k, t in tensors.items() if k.startswith(_EXPORTED)
        }
        self._architectures: dict[str, dict[str, Tensor]] = {}
        self._numbered: dict[int, dict[str, Tensor]] = {}
        names = [architecture.name for architecture in info.architectures]
        for key, tensor in (exported or tensors).items():
            owner, slash, name = key.partition("/")
            if not slash:
                owner, name = self._only(about, names), key
            if owner in names:
                self._architectures.setdefault(owner, {})[name] = tensor
            else:
                self._numbered.setdefault(self._number(owner, names), {})[name] = tensor

    def _read(self) -> tuple[dict[str, Tensor], Mapping[str, str]]:
        try:
            with safetensors.safe_open(regular_file(self.path, LARGEST_DATA), "pt") as file:
                return opened_tensors(file, file.keys()), file.metadata() or {}
        except OSError as error:
            raise UsageError(
                f"{self.where} cannot be read: {error.strerror or error}",
                do="give the folder of a finished run, or a safetensors file",
            ) from None
        except safetensors.SafetensorError as error:
            with self.path.open("rb") as file:
                pickle = file.read(2).startswith(PICKLES)
            raise UsageError(
                f"{self.where} is a pickle, which can run code" if pickle
                else f"{self.where} is not a safetensors file: {error}",
                do="write one: safetensors.torch.save_file(model.state_dict(), FILE)",
            ) from None  # fmt: skip

    def _only(self, about: Mapping[str, str], names: list[str]) -> str:
        if (result := about.get("architecture", "")) in names:
            return result
        if result:
            raise unknown(f"architecture in {self.where}:", result, names)
        if len(names) > 1:
            raise UsageError(
                f"{self.where} does not say for which architecture it is",
                f"the run has: {', '.join(names)}",
                "name its tensors ARCHITECTURE/TENSOR or client-N/TENSOR",
            )
        return names[0]

    def _number(self, owner: str, names: list[str]) -> int:
        word, _, digits = owner.rpartition("-")
        if word != "client" or not digits.isdecimal():
            raise unknown(f"architecture in {self.where}:", owner, [*names, "client-N"])
        if int(digits) >= self._info.num_clients:
            raise UsageError(
                f"{self.where}: the run has no client {digits}",
                f"clients are 0 to {self._info.num_clients - 1}",
            )
        return int(digits)

    @property
    def digest(self) -> str:
        """The SHA-256 of the file."""
        return sha256_of(self.path)

    def tensors(self, client: int, seed: int) -> dict[str, Tensor]:
        """See `InitialWeights`."""
        name = self._info.architecture_of(client).name
        return self._numbered.get(client) or self._architectures.get(name, {})

    def clients(self) -> list[int]:
        """Return the clients that the file names."""
        return [*self._numbered]

    def __str__(self) -> str:
        rest = [a.name for a in self._info.architectures if a.name not in self._architectures]
        text = f"{self.path}, for {', '.join(self._architectures) or 'single clients'}"
        return f"{text}; others are drawn from the seed" if rest else text


_EXPORTED = "weights/model."
