"""The plan of a run: every option resolved, every plugin loaded, data and split at hand.

The federation loop and every host build the same plan from the same settings, wherever they are.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch

from protofl import __version__
from protofl.cores import usable_cores
from protofl.data import split
from protofl.data.batches import Samples
from protofl.data.dataset import Dataset
from protofl.data.generators import ImageSource
from protofl.data.preparation import Preparation
from protofl.errors import Refused, UsageError
from protofl.hookspecs.config import Config
from protofl.hosts.groups import trains_groups
from protofl.plan.inputs import (
    image_source,
    load_data,
    partition_with,
    preparation_for,
    public_data,
)
from protofl.plan.settings import KINDS_BY_PART, Settings, build
from protofl.plugin.choice import Choice, choose
from protofl.plugin.composition import Composition
from protofl.plugin.registry import Registry
from protofl.randomness import global_stream
from protofl.views.architecture import Architecture, SplitModel, cost, profile
from protofl.views.run import RunInfo

Extra = Mapping[tuple[str, str], type]


@dataclass
class Plan:
    """A run that is ready to start.

    Attributes:
        settings: All options, resolved.
        composition: The method, donors and wrappers.
        parts: The other plugins, by kind.
        data: The data.
        info: What the hooks may know of the run.
        notes: Lines to print before the start.
    """

    settings: Settings
    registry: Registry
    composition: Composition
    choices: dict[str, Choice]
    data: Dataset
    info: RunInfo
    server_architectures: tuple[Architecture, ...]
    preparation: Preparation
    device: torch.device
    public_data: Dataset | None = None
    notes: list[str] = field(default_factory=list)
    _profiles: dict[str, tuple[int, int]] = field(default_factory=dict)
    _costs: dict[str, float] = field(default_factory=dict)

    # --- making one ---------------------------------------------------------------------------

    @classmethod
    def make(
        cls,
        given: Mapping[str, Any],
        extra: Extra | None = None,
        report: Any = None,  # noqa: ANN401 - a callable or None
        registry: Registry | None = None,
    ) -> Plan:
        """Resolve what was given with the defaults of the method, the data set and the list.

        Args:
            given: Options by their long names; what is None counts as not given.
            extra: Plugin classes that are not installed, {(kind, name): class}.
            report: Called with a line when something takes long (a download).
            registry: Where plugins are found, instead of a registry of the plan's own; then
                ``extra`` and blocked plugins are those of this one.

        Raises:
            UsageError: Anything is unknown, out of range, or does not fit together.
        """
        given = {k: v for k, v in given.items() if v is not None}
        early = build({"method": given.get("method", ""), "models": "?", **given})
        if not given.get("method"):
            build({k: v for k, v in given.items() if k != "method"})
        if not given.get("models"):
            build({k: v for k, v in given.items() if k != "models"})
        registry = registry or Registry(early.block, extra)
        extra = registry.extra
        options = {k: dict(v) for k, v in early.options.items()}
        composition = Composition(
            registry,
            early.method,
            options={k: v for k, v in options.items() if k not in KINDS_BY_PART},
            use=early.use,
            add=early.add,
            drop=early.drop,
            wrappers=early.wrappers,
        )
        parts = {
            "dataset": choose(registry, "dataset", early.dataset, options.get("dataset")),
            "model-group": choose(registry, "model-group", early.models, options.get("models")),
        }
        method_defaults = composition.run_defaults()
        data_defaults = getattr(parts["dataset"].plugin, "defaults", {})
        group = parts["model-group"].plugin
        group_defaults = {"feature_dim": getattr(group, "feature_dim", 512)}
        values = group_defaults | data_defaults | method_defaults | given
        settings = build(values)
        data_dir = settings.data_dir.expanduser().absolute()
        parts["partitioner"] = choose(
            registry, "partitioner", settings.partition, options.get("partition")
        )
        parts["engine"] = choose(registry, "engine", settings.engine, options.get("engine"))
        if composition.needs_generator:
            parts["generator"] = choose(
                registry, "generator", settings.generator, options.get("generator")
            )
        elif "generator" in options:
            raise UsageError(
                "--set generator.…: this method has no generator",
                do="leave it out, or choose a method with one (fedktl)",
            )
        device = _device(settings.device)
        if settings.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        if settings.backend == "auto":
            grouped = trains_groups(parts["engine"])  # a worker trains one client at a time
            alone = device.type != "cpu" or len(usable_cores()) == 1 or bool(extra) or grouped
            settings = settings.model_copy(update={"backend": "local" if alone else "process"})
        elif extra and settings.backend != "local":
            raise UsageError(
                f"backend {settings.backend!r} can't see a plugin that is not installed",
                do="use --backend local, or install the plugin (protofl finds entry points)",
            )
        parts["backend"] = choose(registry, "backend", settings.backend, options.get("backend"))

        data = load_data(parts["dataset"], data_dir, report)
        needs_public = getattr(composition.members[early.method].instance, "needs_public", False)
        public, own_public = public_data(
            settings, "public" in given, needs_public, data, registry, data_dir, report
        )
        notes = [data.note] if data.note else []
        clients = settings.clients
        if data.split is not None:
            if "clients" not in given:
                clients = len(data.split)
            if "partition" in given and settings.partition != "given":
                notes.append("the data come already split over clients: that split is kept")
        preparation, lines = preparation_for(data, group, parts["model-group"].text, registry)
        notes += lines
        architectures = tuple(parts["model-group"].call("architectures"))
        servers = parts["model-group"].call("server_architectures")
        info = RunInfo(
            group=settings.models,
            architectures=architectures[:clients],
            num_clients=clients,
            participants=max(1, round(settings.participation * clients)),
            num_classes=data.num_classes,
            feature_dim=settings.feature_dim,
            sample=preparation.seen(data.sample),
            public=len(own_public.y) if own_public else int(public),
            rounds=settings.rounds,
            batch_size=settings.batch_size,
            local_epochs=settings.local_epochs,
            server_architectures=tuple(servers or ()),
            server_architecture=getattr(group, "server_architecture", "resnet56"),
        )
        reasons = composition.reasons_against(info)
        if reasons:
            raise Refused(
                f"{early.method} can't run with {settings.models} on {settings.dataset}",
                *("; ".join(reasons).partition("\n")[::2]),
                lacks="requirement",
                name="; ".join(reasons),
            )
        composition.resolve(info)
        composition.check_phases(info)
        resolved = {name: _dump(config) for name, config in composition.configs.items()}
        words = {kind: word for word, kind in KINDS_BY_PART.items()}
        resolved |= {
            words[kind]: _dump(part.config, skip=getattr(part.plugin, "argument", None))
            for kind, part in parts.items()
        }
        settings = settings.model_copy(
            update={
                "options": {name: values for name, values in resolved.items() if values},
                "clients": clients,
                "dataset": parts["dataset"].text,
                "public": public if own_public is None else f"npz:{public}",
                "device": str(device),
                "data_dir": data_dir,
            }
        )
        return cls(
            settings,
            registry,
            composition,
            parts,
            data,
            info,
            tuple(servers or ()),
            preparation,
            device,
            own_public,
            notes,
        )

    def to_json(self) -> str:
        """All that is needed to make the same plan elsewhere."""
        return self.settings.model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote down."""
        values = json.loads(text)
        return cls.make(values)

    # --- what hosts and the loop read from it ---------------------------------------------------

    def seed(self, trial: int) -> int:
        """The effective seed of a trial: trial k of seed s equals a run with seed s + k."""
        return self.settings.seed + trial

    def split(self, trial: int) -> split.Split:
        """Which rows each client trains and is tested on in a trial."""
        seed = self.settings.seed if self.settings.hold_split else self.seed(trial)
        found: split.Split = self._split(seed)
        return found

    @cached_property
    def _split(self) -> Any:  # noqa: ANN401 - a cached function
        part = self.choices["partitioner"]

        @lru_cache(maxsize=2)
        def made(seed: int) -> split.Split:
            return split.make_split(
                self.data,
                partition_with(part),
                self.info.num_clients,
                self.settings.batch_size,
                seed,
                public=0 if self.public_data else self.info.public,
                partitioner=part.name,
            )

        return made

    @cached_property
    def stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All samples and labels on the device."""
        return self.data.x.to(self.device), self.data.y.to(self.device)

    def samples(self, rows: torch.Tensor, channels_last: bool, *, labelled: bool = True) -> Samples:
        """Rows of the data as a model sees them."""
        x, y = self.stored
        return Samples(x, y if labelled else None, rows, self.preparation, channels_last)

    def public_samples(self, trial: int, channels_last: bool) -> Samples | None:
        """The public samples, unlabelled; None where the run has none."""
        if self.public_data is not None:
            x, rows = self._public_stored
            return Samples(x, None, rows, self.preparation, channels_last)
        rows_or_none = self.split(trial).public
        if rows_or_none is None:
            return None
        return self.samples(rows_or_none, channels_last, labelled=False)

    @cached_property
    def _public_stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Public samples of their own on the device, and their rows."""
        assert self.public_data is not None
        x = self.public_data.x.to(self.device)
        return x, torch.arange(len(x), device=self.device)

    def initial_model(self, client_id: int, trial: int) -> SplitModel:
        """A client's model with its initial weights."""
        info, architecture = self.info, self.info.architecture_of(client_id)
        who = architecture.name if self.settings.same_init else client_id
        with global_stream(self.seed(trial), "initial-weights", who):
            model = architecture.build(info.sample, info.num_classes, info.feature_dim)
        layout = torch.channels_last if architecture.channels_last else torch.contiguous_format
        return model.to(self.device).to(memory_format=layout)

    def image_source(self, *, dry: bool = False) -> ImageSource | None:
        """The server's image generator; None where no method needs one."""
        part = self.choices.get("generator")
        if part is None or not dry:
            return self._image_source
        return image_source(part, self.data, self.device, self.settings.data_dir, dry=True)

    @cached_property
    def _image_source(self) -> ImageSource | None:
        part = self.choices.get("generator")
        if part is None:
            return None
        return image_source(part, self.data, self.device, self.settings.data_dir)

    def costs(self) -> dict[str, float]:
        """`cost` of every architecture."""
        return {a.name: self.cost(a) for a in self.info.architectures}

    def cost(self, architecture: Architecture) -> float:
        """What a sample costs in a forward pass, relative to others; by it work is dealt out."""
        info = self.info
        if len(info.architectures) == 1:
            return 1.0
        found = self._costs.get(architecture.name)
        if found is None:
            found = self._costs[architecture.name] = cost(
                architecture, info.sample, info.num_classes, info.feature_dim
            )
        return found

    def profile(self, architecture: Architecture) -> tuple[int, int]:
        """Parameters, and forward FLOPs of one sample, of an architecture in this run."""
        found = self._profiles.get(architecture.name)
        if found is None:
            info = self.info
            found = self._profiles[architecture.name] = profile(
                architecture, info.sample, info.num_classes, info.feature_dim
            )
        return found

    def record(self) -> dict[str, Any]:
        """The run's config.json: all options, and what they stood for here."""
        from protofl.plan.settings import UNRECORDED

        values = json.loads(self.settings.model_dump_json(exclude=UNRECORDED))
        plugins = [
            self.registry.find("wrapper" if m.role == "wrapper" else "method", m.name)
            for m in self.composition.members.values()
        ] + [self.registry.find(kind, p.name) for kind, p in self.choices.items()]
        values["options"] = {k: v for k, v in values["options"].items() if k not in UNRECORDED}
        if not values["recipe"]:
            del values["recipe"]
        record: dict[str, Any] = values | {
            "plugins": [
                {k: getattr(p, k) for k in ("kind", "name", "version", "distribution")}
                for p in plugins
                if p.kind != "backend"
            ],
            "versions": {
                "protofl": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "data": {
                "digest": self.data.digest,
                "samples": len(self.data.y),
                "shape": list(self.data.x.shape[1:]),
                "classes": self.data.num_classes,
            },
            "layout": {
                a.name: {"channels_last": a.channels_last, "eval_batch": a.eval_batch}
                for a in self.info.architectures
            },
        }
        return record


def _dump(config: Config, skip: str | None = None) -> dict[str, Any]:
    values = config.model_dump(mode="json", by_alias=True)
    values.pop(skip or "", None)
    return values


def _device(text: str) -> torch.device:
    if text == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(text)
    except RuntimeError:
        raise UsageError(
            f"--device {text} is no device", do="use auto, cpu, cuda or cuda:N"
        ) from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"--device {text}: no CUDA device is at hand", do="use --device cpu")
    return device
