"""Resolution of settings: plugins and values of a run, before any data is loaded."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import torch

from protofl.errors import ProtoflError, UsageError
from protofl.federation.plan.run_data import own_partition
from protofl.hooks.discovery.kinds import hooks_of
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.models.optimisers import training_options
from protofl.hooks.plugin.composition import Composition
from protofl.hooks.plugin.members import Choice, choose, choose_several, donation, plugins_of_kinds
from protofl.system.device import devices_of, precision_on, prepare_deterministic
from protofl.system.files.home import expand_user
from protofl.system.machine import usable_cores
from protofl.system.options.plugin_options import Config, check_consent, from_data
from protofl.system.options.settings import Settings
from protofl.system.options.table import (
    CHOOSING,
    OWNERS,
    SEVERAL,
    UPDATES,
    check_names,
    validated_defaults,
)
from protofl.system.transfers import has_streams

FIRST_ENGINE = "eager"
"""The engine of ``auto`` on a GPU until the steps have been checked."""


@dataclass(frozen=True)
class Resolution:
    """The resolved options of a run, and its plugins.

    Attributes:
        settings: All options, with the defaults of the method, the data set and the models.
        composition: The method, donors and transforms.
        choices: The other plugins, by kind; metrics and trackers, of which there may be several,
            by ``metric/NAME``.
        devices: Where the run computes: the server on the first, clients on all.
        set_by: {option: who set it}: ``models``, ``data set`` or ``method`` with the name, or
            ``user``. Options of a schedule have a name with a dot.
    """

    settings: Settings
    composition: Composition
    choices: dict[str, Choice]
    devices: tuple[torch.device, ...]
    set_by: dict[str, str]


def resolve(
    settings: Settings,
    registry: Registry,
    said: Mapping[str, Container[str]] | None = None,
    home: Path = Path(),
    *,
    recorded: bool = False,
) -> Resolution:
    """Resolve settings with the defaults of the method, the data set and the models.

    Args:
        settings: The options that were given, validated.
        registry: Where plugins are found.
        said: {plugin: its options that the user gave, not a file}; None where that is all.
        home: The folder of the file that gave the others.
        recorded: True if the options are those of a recorded run.

    Raises:
        UsageError: An option is unknown, out of range, or does not fit another one.
    """
    # 1. The method with its donors and transforms, the data set and the models: they have defaults.
    composition = _composed(registry, settings)
    dataset = choose(registry, "dataset", settings.dataset, settings.options.get("dataset"))
    group = registry.load("model-group", settings.models.partition(":")[0])
    settings, set_by = _with_defaults(settings, composition, dataset, group)
    # 2. What depends on this machine.
    devices = devices_of(settings.device)
    if settings.deterministic:
        prepare_deterministic(devices[0])
    settings = _placed(settings, registry, devices, recorded=recorded)
    # 3. All other plugins, with their options.
    choices = {"dataset": dataset, **_chosen(registry, settings, composition)}
    if settings.feature_dim == "native":
        _check_native_widths(registry, composition, group)
    if said is not None:
        for owner, plugin in parts_of(composition, choices).items():
            check_consent(plugin.config, owner, said.get(owner, ()), home)
    return Resolution(settings, composition, choices, devices, set_by)


def _composed(registry: Registry, settings: Settings) -> Composition:
    """Return the method, donors and transforms, with their options."""
    several = [name for option in SEVERAL for name in getattr(settings, option)]
    others = {*OWNERS, *several}
    composition = Composition(
        registry,
        settings.method,
        options={k: v for k, v in settings.options.items() if k not in others},
        use=settings.use,
        add=settings.add,
        drop=settings.drop,
        transforms=settings.transforms,
    )
    for hook, name in composition.providers.items():
        plugin = composition.members[name].plugin
        donated = getattr(plugin, "donates", (hook,))
        if hook not in donated:
            raise UsageError(
                f"{name} provides {' and '.join(donated)} for other methods, and no {hook}",
                do=f"give it to a method: protofl run METHOD {donation(plugin, name, donated[0])}",
            )
    return composition


def _check_native_widths(registry: Registry, composition: Composition, group: type) -> None:
    """Check that all methods of a run take features of several widths.

    Raises:
        UsageError: A method needs features of one width.
    """
    for method in composition.methods:
        if not getattr(method.plugin, "native_widths", False):
            able = [p.name for p in registry.plugins("method") if _takes_widths(registry, p.name)]
            raise UsageError(
                f"{method.name} needs features of one width, and --feature-dim native keeps each "
                "architecture's own",
                f"methods that take native widths: {', '.join(able)}",
                f"give a number: --feature-dim {getattr(group, 'feature_dim', 512)}",
            )


def _takes_widths(registry: Registry, method: str) -> bool:
    try:
        return bool(getattr(registry.load("method", method), "native_widths", False))
    except ProtoflError:
        return False


def _with_defaults(
    settings: Settings, composition: Composition, dataset: Choice, group: type
) -> tuple[Settings, dict[str, str]]:
    """Return settings with defaults of method, data set and models, and who set each option."""
    given_names, user_options = settings.model_fields_set, settings.options
    main, data = composition.main, f"data set {dataset.name}"
    names = ["feature_dim"] + ["lr"] * (settings.optimizer == "sgd")  # a group's rate is for SGD
    of_models = {name: getattr(group, name) for name in names if hasattr(group, name)}
    of_data = _defaults_of_data(dataset, group, user_options.get("models", ()))
    of_plugins = of_data.pop("options", {})
    if own := own_partition(dataset, settings.partition if "partition" in given_names else None):
        of_data["partition"] = own
    asked = composition.members[main].run_defaults()
    check_names(asked, f"option in run_defaults of {main}:")
    defaults, set_by = dict[str, Any](), {"clients": data}
    models = f"models {settings.models.partition(':')[0]}"
    for who, values in ((models, of_models), (data, of_data), (f"method {main}", asked)):
        defaults |= values
        set_by |= dict.fromkeys(values, who)
    set_by |= dict.fromkeys(given_names, "user")
    options = dict(user_options)
    for owner, values in of_plugins.items():
        chosen = "lr_schedule" if owner == "schedule" else owner
        if chosen == "models" or chosen not in {*asked, *given_names}:
            options[owner] = {**values, **user_options.get(owner, {})}
            set_by |= {
                f"{owner}.{key}": data for key in values if key not in user_options.get(owner, {})
            }
    free = {key: value for key, value in defaults.items() if key not in given_names}
    return settings.model_copy(update={**validated_defaults(free), "options": options}), set_by


def _defaults_of_data(dataset: Choice, group: type, user_options: Container[str]) -> dict[str, Any]:
    """Return the run defaults of a data set, those of plugins under ``options``.

    ``resized`` in a data set's ``defaults`` replaces some of them where ``resized["options"]
    ["models"]`` has defaults for options that the group marks with ``from_data=True``, and the user
    gives none of these options.

    Args:
        dataset: The data set.
        group: The models.
        user_options: The options of the models that the user gives.
    """
    defaults = dict(getattr(dataset.plugin, "defaults", {}))
    options, resized = dict(defaults.pop("options", {})), dict(defaults.pop("resized", {}))
    further = dict(resized.pop("options", {}))
    options.pop("models", None)  # the models are the user's choice, and so are their options
    names = {*further.get("models", {})}
    free = {
        name for name in from_data(getattr(group, "Config", Config)) if name not in user_options
    }
    if names and names <= free:
        defaults |= resized
        options |= further
    return {**defaults, "options": options}


def _chosen(registry: Registry, settings: Settings, composition: Composition) -> dict[str, Choice]:
    """Return the plugins of a run beside its method, by kind, with their options.

    There is no backend while it is ``auto``.
    """
    options = ["models", "partition", "sampling", "timing", "engine"]
    options += ["backend"] if settings.backend != "auto" else []
    if settings.devices is not None:
        options.append("devices")
    elif "devices" in settings.options:
        raise UsageError(
            "--set devices.…: this run has no device model", do="choose one with --devices"
        )
    if composition.needs_generator:
        options.append("generator")
    elif "generator" in settings.options:
        raise UsageError(
            "--set generator.…: this method has no generator",
            do="leave it out, or choose a method with one (fedktl)",
        )
    else:
        registry.find("generator", settings.generator.partition(":")[0])
    names = {option: getattr(settings, option) for option in options}
    if settings.engine == "auto":
        names["engine"] = FIRST_ENGINE
    choices = {
        CHOOSING[option]: choose(registry, CHOOSING[option], name, settings.options.get(option))
        for option, name in names.items()
    }
    return choices | choose_several(registry, vars(settings), composition.members)


def parts_of(composition: Composition, choices: Mapping[str, Choice]) -> dict[str, Choice]:
    """Return all plugins of a run by the names under which ``--set`` has their options."""
    several = plugins_of_kinds(choices, *SEVERAL.values())
    parts: dict[str, Choice] = {**composition.members, **{one.name: one for one in several}}
    return parts | {option: choices[kind] for option, kind in CHOOSING.items() if kind in choices}


def _placed(
    settings: Settings, registry: Registry, devices: Sequence[torch.device], *, recorded: bool
) -> Settings:
    """Resolve ``auto`` as far as the machine decides, and make the data folder absolute.

    On a GPU the engine, and where the work decides the backend, stay ``auto`` until the run
    chooses them (`protofl.runs.lifecycle`). The precision becomes the device's own if not set.

    Args:
        settings: The settings.
        registry: Has classes that this program gave; those without a place are its own.
        devices: Where clients train.
        recorded: See `resolve`.

    Raises:
        UsageError: The engine or the backend can't use these devices.
    """
    engine, backend, device = settings.engine, settings.backend, devices[0]
    if device.type == "mps" and engine.partition(":")[0] not in ("auto", FIRST_ENGINE):
        raise UsageError(
            f"--engine {engine}: on {device} clients train with {FIRST_ENGINE} only",
            do=f"use --engine {FIRST_ENGINE}",
        )
    if engine == "auto" and not has_streams(device):
        engine = "eager"
    labels = [f"{kind}/{name}" for kind, name in registry.extra if kind != "tracker"]
    hidden = [label for label in labels if not settings.classes.get(label)]
    if len(devices) > 1:
        backend = "process" if backend == "auto" else backend
        if not getattr(registry.load("backend", backend.partition(":")[0]), "uses_devices", False):
            raise UsageError(
                f"--device {settings.device}: the backend {backend} does not divide clients among "
                "several GPUs",
                do="use --backend process, or name one GPU",
            )
    if backend == "auto":
        alone = device.type != "cpu" or len(usable_cores()) == 1 or _trains_groups(registry, engine)
        here = alone or hidden or (labels and not settings.workers)
        said = settings.workers or "backend" in settings.options
        backend = "local" if here else "process" if said else "auto"
    elif hidden and backend != "local":
        raise UsageError(
            f"backend {backend!r} cannot see {', '.join(hidden)}, a class of this program alone",
            "other processes find what is installed, and classes of modules and files",
            "write it into a file of its own, or use --backend local",
        )
    folder = expand_user(settings.data_dir).absolute()
    update: dict[str, Any] = {"engine": engine, "backend": backend, "data_dir": folder}
    if settings.client_store == "auto" and not has_streams(device):
        update["client_store"] = "memory"
    asked = settings.precision if "precision" in settings.model_fields_set else None
    update["precision"] = precision_on(device, asked, recorded=recorded)
    options = settings.options | training_options(vars(settings))
    names = ",".join(map(str, devices))
    return settings.model_copy(update=update | {"device": names, "options": options})


TUNING = 10
"""Default of ``--fine-tune``, as a multiple of ``--local-epochs``."""


def _trains_groups(registry: Registry, engine: str) -> bool:
    """Return True if an engine trains several clients at once, for which one host has them all."""
    name = FIRST_ENGINE if engine == "auto" else engine.partition(":")[0]
    return "train_group" in hooks_of("engine", registry.load("engine", name))


def resolved(
    settings: Settings, composition: Composition, choices: Mapping[str, Choice]
) -> Settings:
    """Return the settings with the resolved options of all plugins."""
    options = {owner: settings.options[owner] for owner in UPDATES}
    options |= {name: plugin.dump() for name, plugin in parts_of(composition, choices).items()}
    usual = ceil(TUNING * settings.local_epochs) if settings.unseen else None
    update: dict[str, Any] = {
        "options": {name: values for name, values in options.items() if values},
        "fine_tune": usual if settings.fine_tune is None else settings.fine_tune,
    }
    placed = {o: CHOOSING[o] for o in ("dataset", "models", "sampling", "devices")}
    update |= {o: choices[kind].text for o, kind in placed.items() if kind in choices}
    for name in ("participants_from", "init"):
        if (path := getattr(settings, name)) is not None:
            update[name] = expand_user(path).absolute()
    return settings.model_copy(update=update)
