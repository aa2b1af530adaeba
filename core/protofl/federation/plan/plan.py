"""The plan of a run: resolved options, loaded plugins, data and split.

The federation loop and every host build the same plan from the same settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ValidationError

from protofl.data.batches import Samples
from protofl.data.cache import to_stderr
from protofl.data.dataset import Dataset
from protofl.data.partition import number_of_clients
from protofl.data.preparation import Preparation
from protofl.data.resident import Resident
from protofl.data.spec import ModelInput
from protofl.data.split import (
    Split,
    balanced_test,
    client_domains,
    majority_guess,
    samples_per_class,
    tested_variance,
)
from protofl.errors import UsageError
from protofl.federation.plan import run_data
from protofl.federation.plan.resolution import resolve, resolved
from protofl.federation.plan.run_description import (
    about_noise,
    checked,
    run_info,
    settle,
    with_phases,
)
from protofl.federation.plan.task_checks import check_task, imbalance, with_usual_metrics
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.models.architecture import Architecture, SplitModel
from protofl.hooks.models.flops import cost
from protofl.hooks.models.optimisers import LearningRateSchedule, schedule_of
from protofl.hooks.plugin.composition import Composition
from protofl.hooks.plugin.members import Choice, choose, plugins_of_kinds
from protofl.hooks.views.run_info import RunInfo
from protofl.system.consent import allow
from protofl.system.device import arithmetic, deterministic_kernels
from protofl.system.options.settings import Settings
from protofl.system.options.table import CHOOSING, build, untracked
from protofl.system.randomness import global_stream
from protofl.system.torch_state import standard_torch

if TYPE_CHECKING:
    from protofl.data.fitting import FittedSamples
    from protofl.data.generators import ImageSource
    from protofl.federation.plan.initial_weights import InitialWeights


@dataclass(frozen=True)
class Plan:
    """A planned run: settings, plugins, data and split. It never changes; `replace` makes others.

    Attributes:
        settings: All options, resolved. ``auto`` remains where only a measurement can decide
            (`protofl.runs.lifecycle`).
        registry: Where its plugins were found.
        composition: The method, donors and transforms.
        choices: The other plugins, by kind; metrics and trackers, of which there may be several,
            by ``metric/NAME``.
        data: The data.
        public_data: Public samples of their own, where the run has them.
        splits: Makes the split of a seed.
        fits: Fits the preparation of the data to the training rows of the split of a seed; None for
            data that are prepared already.
        images: The server's image generator; None where no method needs one.
        info: What the hooks may know of the run.
        model_input: Prepares stored samples for the models.
        devices: Where clients train; the GPUs of ``--device``. A host computes on one of them.
        notes: Lines to print before the start.
        dry: Whether this is the dry run's: every phase has one epoch, all clients take part, no
            time passes, and payload validation learns what is sent.
        checks_steps: Whether an engine that replays steps checks that it can; see `TrainJob`.
        built: Initial models on the CPU, {client: model}, for plans of trials that are all alike:
            the first trial puts them there. None if each host builds its own.
        set_by: {option: who set it}, see `Resolution`, or ``file NAME``.
        resident: The samples on the device, which all plans that are made of this one share.
    """

    settings: Settings
    registry: Registry
    composition: Composition
    choices: Mapping[str, Choice]
    data: Dataset
    public_data: Dataset | None
    splits: Callable[[int], Split]
    fits: Callable[[int], FittedSamples] | None
    images: ImageSource | None
    info: RunInfo
    model_input: ModelInput
    devices: Sequence[torch.device]
    notes: Sequence[str]
    dry: bool = False
    checks_steps: bool = False
    built: dict[int, SplitModel] | None = field(default=None, compare=False, repr=False)
    set_by: Mapping[str, str] = field(default_factory=dict)
    resident: Resident = field(default_factory=Resident, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("choices", "set_by"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        object.__setattr__(self, "notes", tuple(self.notes))
        object.__setattr__(self, "devices", tuple(self.devices))

    # --- making one ---------------------------------------------------------------------------

    @classmethod
    @standard_torch()
    def make(
        cls,
        options: Mapping[str, Any] | Settings,
        extra: Mapping[tuple[str, str], type] | None = None,
        report: run_data.Report = to_stderr,
        registry: Registry | None = None,
        said: Mapping[str, Container[str]] | None = None,
        home: Path = Path(),
        data: Dataset | None = None,
        *,
        set_by: Mapping[str, str] | None = None,
        recorded: bool = False,
    ) -> Plan:
        """Resolve what was given with the defaults of the method, the data set and the list.

        Args:
            options: Validated settings; or options by the names of
                `protofl.system.options.settings`, where None means not given.
            extra: Plugin classes that are not installed, {(kind, name): class}.
            report: Takes a line when something takes long (a download).
            registry: Used with its extra and blocked plugins, instead of a new registry.
            said: See `resolve`.
            home: See `resolve`.
            data: Data to use instead of loading the data set.
            set_by: {option: who set it} of given options that the user did not type; empty for
                those that were not set.
            recorded: See `resolve`.

        Raises:
            UsageError: Anything is unknown, out of range, or does not fit together.
        """
        if not isinstance(options, Settings):
            options = build({key: value for key, value in options.items() if value is not None})
        names, registry = options.model_fields_set, registry or Registry.of(vars(options), extra)
        # 1. The options, and the plugins that they choose.
        resolution = resolve(options, registry, said, home, recorded=recorded)
        settings, composition, choices = (
            resolution.settings,
            resolution.composition,
            resolution.choices,
        )
        # 2. The data, the public data, and what they become for the models.
        choices, data, read_as = run_data.load_for_group(choices, registry, settings, report, data)
        if not recorded or not data.task.has_classes:
            settings, choices = with_usual_metrics(settings, choices, data, registry)
        check_task(settings, composition, choices, data, registry)
        public, own_public = run_data.public_data(
            settings, composition, data, registry, report, is_given="public" in names
        )
        clients = number_of_clients(
            data,
            options.clients if "clients" in names else None,
            settings.clients,
            partial(choices["partitioner"].call, "count_clients"),
        )
        who = dict(resolution.set_by)
        if data.split is None and clients != settings.clients:
            who["clients"] = f"partition {choices['partitioner'].name}"
        settings = settings.model_copy(update={"clients": clients, "public": public})
        model_input, notes = run_data.model_input_for(
            data.sample, choices["model-group"], registry, augment=settings.augment
        )
        # 3. What hooks may know of the run; what they ask of it; options that depend on it.
        generator = choices.get("generator")
        info = run_info(settings, choices, data, model_input, own_public, registry)
        split = run_data.splitter(settings, data, choices["partitioner"])
        sizes = partial(_train_sizes, data, split, settings.seed)
        settle(composition, settings, replace(info, sizes=sizes))
        info = with_phases(info, composition)
        settings = checked(settings, info, data, choices["client-sampler"].plugin)
        splits = run_data.splitter(settings, data, choices["partitioner"])
        return cls(
            settings=resolved(settings, composition, choices),
            registry=registry,
            composition=composition,
            choices=choices,
            data=data,
            public_data=own_public,
            splits=splits,
            fits=run_data.fitter(settings, data, splits, registry),
            images=run_data.image_source(generator, data, resolution.devices[0], settings.data_dir),
            info=info,
            model_input=model_input,
            devices=resolution.devices,
            notes=[
                *run_data.about(data, names, settings),
                *filter(None, [imbalance(data)] * ("balanced-accuracy" in settings.metrics)),
                *run_data.about_ids(choices["model-group"], data),
                *([] if info.has_secrets else map(about_noise, composition.secretive)),
                *read_as,
                *notes,
            ],
            set_by={name: by for name, by in {**who, **(set_by or {})}.items() if by},
        )

    def choosing(
        self, option: str, name: str, plugin_options: Mapping[str, Any] | None = None
    ) -> Plan:
        """Return the plan with another plugin of ``engine`` or ``backend``.

        Args:
            option: The option that names the plugin.
            name: The plugin's name.
            plugin_options: The plugin's options; by default its defaults.
        """
        kind = CHOOSING[option]
        choice = choose(self.registry, kind, name, plugin_options)
        options = {key: value for key, value in self.settings.options.items() if key != option}
        if dumped := choice.dump():
            options[option] = dumped
        settings = self.settings.model_copy(update={option: name, "options": options})
        return replace(self, settings=settings, choices={**self.choices, kind: choice})

    @property
    def device(self) -> torch.device:
        """The first device, on which this process computes."""
        return self.devices[0]

    @cached_property
    def metrics(self) -> list[Choice]:
        """Metrics of the test samples' scores in addition to accuracy."""
        return plugins_of_kinds(self.choices, "metric")

    @property
    def trackers(self) -> list[Choice]:
        """Trackers of the run."""
        return plugins_of_kinds(self.choices, "tracker")

    def to_json(self, device: str | None = None) -> str:
        """Return a text from which the same plan is made elsewhere, without trackers.

        Args:
            device: Where that plan computes; None for the devices of this one.
        """
        settings = untracked(self.settings)
        if device is not None:
            settings = settings.model_copy(update={"device": device})
        return settings.model_dump_json()

    @classmethod
    def from_json(cls, text: str, data: Dataset | None = None) -> Plan:
        """Make the plan that `to_json` wrote, whose code was checked there, perhaps of own data."""
        options = json.loads(text)
        allow(options["classes"].values())
        return cls.make(options, data=data, recorded=True)

    @staticmethod
    def options_of(options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a plan from elsewhere as JSON values, with defaults.

        A rule about a plan must judge what the options become: a list that is given as one text
        becomes a list, and a rule for lists may not see it.

        Args:
            options: Options as `to_json` writes them; some may be missing.

        Raises:
            UsageError: A value is out of range, or is not in the form in which `to_json` writes it.
        """
        try:
            settings = Settings.model_validate(dict(options))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0]) if first["loc"] else "an option"
            raise UsageError(f"the plan has a wrong {name}: {first['msg']}") from None
        result: dict[str, Any] = json.loads(settings.model_dump_json())
        for name, value in options.items():
            if not _same(result[name], value):
                raise UsageError(
                    f"the plan has {name} as {str(value)[:80]!r} ({type(value).__name__})",
                    f"a plan has {result[name]!r} there",
                    "install the same version of protofl on the server and on all nodes",
                )
        return result

    # --- what hosts and the loop read from it ---------------------------------------------------

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute in a block with the run's precision, and deterministically if it is asked for."""
        deterministic = deterministic_kernels(self.settings.deterministic)
        with deterministic, arithmetic(self.settings.precision, self.device):
            yield

    def is_due(self, round: int, every: int) -> bool:
        """Return True in every n-th round and in the last one."""
        return (round + 1) % every == 0 or round + 1 == self.settings.rounds

    def seed(self, trial: int) -> int:
        """Return the seed of a trial: trial k of seed s equals a run with seed s + k."""
        return self.settings.seed + trial

    @cached_property
    def schedule(self) -> LearningRateSchedule:
        """Schedule of the learning rate over rounds."""
        return schedule_of(self.settings.lr_schedule, self.settings.options.get("schedule", {}))

    @cached_property
    def scheduled(self) -> bool:
        """True if the learning rate changes between rounds."""
        return self.schedule != LearningRateSchedule()

    def rate(self, round: int) -> float:
        """Return the factor of all learning rates in a round."""
        return self.schedule.factor(round, self.settings.rounds)

    def split(self, trial: int) -> Split:
        """Return the training and test rows of each client in a trial."""
        return self.splits(self._split_seed(trial))

    @property
    def all_notes(self) -> list[str]:
        """Lines to print before the start, with those about the split and its statistics."""
        lines = [*self.notes, *self.split(0).notes]
        if self.fits is not None and not self.data.elsewhere:
            lines += self.fits(self.seed(0)).notes
        return [*dict.fromkeys(lines)]

    @property
    def split_trials(self) -> range:
        """The trials that have a split of their own."""
        return range(1 if self.settings.hold_split else self.settings.trials)

    def preparation(self, trials: Sequence[int]) -> Preparation | None:
        """Return what is done to raw samples, with the clients' statistics in some trials."""
        known = self.data.preparation
        if self.fits is None or known is None or known.fitted is None:
            return known
        scalings = [tuple(self.fits(self._split_seed(trial)).scalings) for trial in trials]
        plugin = self.registry.find("dataset", known.fitted.dataset)
        package = plugin.distribution if plugin.loaded is None else ""
        fitted = replace(known.fitted, package=package)
        return replace(known, fitted=fitted, clients=tuple(scalings))

    def domains(self, trial: int) -> Sequence[str]:
        """Return the domain of each client; nothing unless every client has samples of one alone.

        The partitioner's ``column`` names the domains, or the column ``domain`` of the data.
        """
        return self._domains(self._split_seed(trial))

    def domain_of(self, client: int, trial: int) -> int | None:
        """Return the number of a client's domain in the order of names; None without `domains`."""
        names = self.domains(trial)
        return sorted({*names}).index(names[client]) if names else None

    @cached_property
    def _domains(self) -> Callable[[int], Sequence[str]]:
        column = getattr(self.choices["partitioner"].config, "column", "domain")
        values = self.data.columns.get(column)
        splits = self.splits  # not the plan, which would keep itself alive
        return lru_cache(maxsize=2)(lambda seed: client_domains(splits(seed), values))

    def _split_seed(self, trial: int) -> int:
        return self.settings.seed if self.settings.hold_split else self.seed(trial)

    def majority_accuracy(self, trial: int, clients: Sequence[int] | None = None) -> float:
        """Return the score of the majority guess in a trial, see `majority_guess`."""
        return majority_guess(self.split(trial), self.data, clients)

    def variance(self, trial: int) -> float:
        """Return the variance of all test numbers, to which R² refers; 1 without any."""
        return self._variances(self._split_seed(trial))

    @cached_property
    def _variances(self) -> Callable[[int], float]:
        splits, data = self.splits, self.data  # not the plan, which would keep itself alive
        return lru_cache(maxsize=2)(lambda seed: tested_variance(splits(seed), data))

    @cached_property
    def stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All samples and labels on the device; samples in host memory if they are too many."""
        return self._stored_in(0)

    def _stored_in(self, trial: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `stored` in a trial: those of a table depend on its split."""
        x = self.data.x if self.fits is None else self.fits(self._split_seed(trial)).x
        return self._placed(x, self.data.labels)

    def _placed(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return samples and labels on the device, samples only as far as there is room."""
        there = self.resident.size

        def room() -> int:
            from protofl.federation.plan.store_choice import room_for_samples  # beside a GPU

            return room_for_samples(self.info, self.settings, self.device, there)

        return self.resident.of(x, self.device, room), self.resident.of(y, self.device)

    def samples(self, rows: torch.Tensor, channels_last: bool, trial: int = 0) -> Samples:
        """Return rows of the data as a model sees them in a trial."""
        x, y = self.stored if self.fits is None else self._stored_in(trial)
        return Samples(x, y, rows, self.model_input, channels_last, self.device)

    def balanced_samples(self, trial: int, channels_last: bool) -> Samples | None:
        """Return equally many test samples of each class of all clients; None if not measured."""
        if "global-accuracy" not in self.settings.measure:
            return None
        return self.samples(self._balanced_rows(trial), channels_last, trial)

    def balanced_per_class(self, trial: int) -> int:
        """Return the number of samples of each class on which global accuracy is measured; or 0."""
        if "global-accuracy" not in self.settings.measure:
            return 0
        return samples_per_class(self._balanced_rows(trial), self.data.y)

    def _balanced_rows(self, trial: int) -> torch.Tensor:
        return balanced_test(self.split(trial), self.data.y, self.seed(trial))

    def public_samples(self, trial: int, channels_last: bool) -> Samples | None:
        """Return the public samples without labels; None without public data."""
        if self.public_data is not None:
            x, rows = self._public_stored
            return Samples(x, None, rows, self.model_input, channels_last, self.device)
        held = self.split(trial).public
        if held is None:
            return None
        x = self.stored[0] if self.fits is None else self._stored_in(trial)[0]
        return Samples(x, None, held, self.model_input, channels_last, self.device)

    def public_labels(self, trial: int) -> torch.Tensor | None:
        """Return the labels of the public samples, which no hook sees; None if not known."""
        rows = self.split(trial).public
        if self.public_data is not None:
            same = self.public_data.num_classes == self.data.num_classes
            data = self.public_data
            return self._placed(data.x, data.y)[1] if same else None
        if rows is None:
            return None
        return self.resident.of(self.data.y, self.device)[rows.to(self.device)]

    @cached_property
    def _public_stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Samples and rows of the separate public data set, on the device if there is room."""
        assert self.public_data is not None
        x = self._placed(self.public_data.x, self.public_data.y)[0]
        return x, torch.arange(len(x), device=x.device)

    def initial_model(self, client_id: int, trial: int) -> SplitModel:
        """Return a client's model with its initial weights."""
        info, architecture = self.info, self.info.architecture_of(client_id)
        if self.built is not None and client_id in self.built:
            model = deepcopy(self.built[client_id])
        else:
            who = architecture.name if self.settings.same_init else client_id
            with global_stream(self.seed(trial), "initial-weights", who):
                model = architecture.build(*info.sizes_of(architecture))
            if self._initial_weights is not None:
                self._initial_weights.load(model, client_id, self.seed(trial))
            if self.built is not None:
                self.built[client_id] = deepcopy(model)
        return model.to(self.device).to(memory_format=architecture.layout)

    def check_initial_weights(self) -> str:
        """Check that the weights of ``--init`` fit; return a line about them, empty without.

        Raises:
            UsageError: A model, a tensor, a shape or a trial is missing or another.
        """
        source, trials = self._initial_weights, range(self.settings.trials)
        return source.check(map(self.seed, trials)) if source else ""

    @property
    def initial_digest(self) -> dict[str, str]:
        """The digest of the weights of ``--init`` by its name; empty without."""
        return {"init": self._initial_weights.digest} if self._initial_weights else {}

    @cached_property
    def _initial_weights(self) -> InitialWeights | None:
        """The source of initial weights (``--init``); None if the seed draws them."""
        if self.settings.init is None:
            return None
        from protofl.federation.plan.initial_weights import initial_weights

        return initial_weights(self.settings.init, self.info)

    def cost(self, architecture: Architecture) -> float:
        """Return the relative cost of a sample in a forward pass, for the order of jobs."""
        info = self.info
        if len(info.architectures) == 1:
            return 1.0
        return cost(architecture, *info.sizes_of(architecture))


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - JSON values
    """Return True for equal JSON values; true and false are not numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _train_sizes(data: Dataset, split: Callable[[int], Split], seed: int) -> list[int]:
    """Return `RunInfo.sizes`."""
    return [] if data.elsewhere else split(seed).train_sizes.tolist()
