"""Configuration of a run as ``protofl run`` prints it, and texts that tables share."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl.system.files.home import expand_user
from protofl.system.formatting import count, round_word, size_text
from protofl.system.options.parsing import kept_rounds
from protofl.system.options.value_text import value_text

if TYPE_CHECKING:
    from protofl.federation.plan.plan import Plan
    from protofl.hooks.plugin.composition import Composition
    from protofl.records.run_folder import RunFolder

MEASURED = "by measured steps, on this machine with its present load"
"""The condition of an estimated time."""

_MUCH = 250_000_000
"""Bytes of weights from which a run says what it keeps."""


def providers(composition: Composition) -> dict[str, str]:
    """Return {hook: providers}, and the terms of the loss."""
    texts = {
        hook: " + ".join(
            [owner if composition.provider(hook) == owner else f"{owner} (default)", *added]
        )
        for hook, (owner, *added) in (
            (hook, composition.makers(hook)) for hook in composition.providers
        )
    }
    return texts | {"local_loss": " + ".join(term.label for term in composition.terms)}


def composition_rows(plan: Plan, folder: RunFolder | None = None) -> list[tuple[str, str]]:
    """Return the providers of hooks, the data, the training and the place of a run, if any."""
    from protofl.hooks.malicious import malicious_clients  # it imports torch

    s, info, composition = plan.settings, plan.info, plan.composition
    rows = list(providers(composition).items())
    transforms = [m.name for m in composition.members.values() if m.kind == "payload-transform"]
    if transforms:
        rows.append(("transforms", ", then ".join(transforms)))
    rows += [
        (f"{name} options", changes)
        for name, config in composition.configs.items()
        if (changes := _changed(config))
    ]
    rows += [*_data_rows(plan), *_training_rows(plan), *_set_by(plan)]
    if "device-model" in plan.choices:
        rows.append(("devices", _device_model(plan)))
    if s.timing != "rounds":
        schedule = plan.choices["schedule"]
        rows.append(("schedule", _called(schedule.text, schedule.config)))
    trials = f", {s.trials} trials" if s.trials > 1 else ""
    malicious = sorted(malicious_clients(plan.seed(0), info.num_clients, s.malicious))
    if malicious:
        rows.append(("malicious", f"{count(len(malicious), 'client')}, {_which(malicious, plan)}"))
    rows += _arrivals(plan)
    rows.append(("seed", f"{s.seed}{trials}"))
    workers = ""
    if s.backend not in ("local", "auto"):
        workers = f" with {count(s.workers, 'worker')}" if s.workers else ", a worker per core"
    where = f"{s.device}, engine {s.engine}, backend {s.backend}{workers}"
    if s.client_store == "disk":
        where += ", clients on disk"
    elif s.client_store == "memory" and s.device != "cpu":
        where += ", clients in host memory"
    rows.append(("runs on", where))
    rows += _weights(plan)
    if plan.trackers:
        rows.append(("tracked by", ", ".join(tracker.name for tracker in plan.trackers)))
    if folder is not None:
        rows.append(("run folder", shown_path(folder.path)))
    return rows


def _weights(plan: Plan) -> list[tuple[str, str]]:
    """Return the weights that stay in the run folder, unless they are few or lie elsewhere."""
    from protofl.federation.plan.store_choice import client_sizes  # it imports torch

    s = plan.settings
    if plan.data.elsewhere or not s.checkpoint_every:
        return []
    of_trial = {"best": 2, "last": 1, "current": 0}[s.keep]
    of_trial += len(kept_rounds(s.keep_weights, s.rounds))
    # The checkpoint has the weights of two rounds; the newer one is also the last of its trial.
    rounds = min(s.rounds * s.trials, of_trial * s.trials + (2 if s.keep == "current" else 1))
    each = sum(client_sizes(plan.info, s.clients, 0))
    if rounds * each < _MUCH:
        return []
    weights = f"weights of {count(rounds, 'round')} (--keep, --keep-weights)"
    return [("keeps on disk", f"up to {size_text(rounds * each)}: {weights}")]


def _data_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the data set, its split, and the public samples."""
    s, split, data = plan.settings, plan.split(0), plan.data
    sizes, choice = split.train_sizes, plan.choices["partitioner"]
    how = "of the data set" if split.partitioner == "own" else _called(choice.text, choice.config)
    rows = [
        ("data", f"{s.dataset}: {len(data.y):,} {data.sample}, {data.about_outputs()}"),
        (
            "split",
            f"{how}: {plan.info.num_clients} clients with {int(sizes.min()):,} … "
            f"{int(sizes.max()):,} training samples, hash {split.hash[:12]}",
        ),
    ]
    if split.public is not None:
        rows.append(("public", f"{len(split.public):,} unlabelled samples"))
    elif plan.public_data is not None:
        rows.append(("public", f"{len(plan.public_data.y):,} unlabelled samples, {s.public}"))
    return rows


def _training_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the models, and the options of training."""
    s, info = plan.settings, plan.info
    names = [a.name for a in info.architectures]
    widths = " | ".join(map(str, info.feature_dims))
    group = s.models if names == [s.models] else f"{s.models}: {', '.join(names)}"
    optimizer = f"{s.optimizer} with lr {s.lr:g}" + (
        f" ({_called(s.lr_schedule, plan.schedule)})" * plan.scheduled
        + f", momentum {s.momentum:g}" * bool(s.momentum)
        + f", weight decay {s.weight_decay or 0:g}" * bool(s.weight_decay)
        + "".join(f", {k}={value_text(v)}" for k, v in s.options.get("optimizer", {}).items())
        + f", clipped at {s.clip:g}" * bool(s.clip)
    )
    extras = {
        "last batch dropped": s.drop_last,
        "batches not shuffled": not s.shuffle,
        "augmented": s.augment,
        s.precision: s.precision != "fp32",
    }
    parts = [count(s.rounds, round_word(s.timing)), _asked(plan), count(s.local_epochs, "epoch")]
    parts += [f"batches of {s.batch_size}", optimizer]
    parts += [word for word, is_on in extras.items() if is_on]
    return [
        ("models", f"{group}; K = {widths}, {info.sample}"),
        ("training", ", ".join(parts)),
    ]


def _set_by(plan: Plan) -> list[tuple[str, str]]:
    """Return the values that are not the general defaults, by who set them beside the user."""
    from protofl.system.options.table import OPTIONS, default_values, flag_of

    usual, by_setter = default_values(), dict[str, list[str]]()
    for name, who in plan.set_by.items():
        owner, dot, key = name.partition(".")
        value = plan.settings.options.get(owner, {}).get(key) if dot else vars(plan.settings)[name]
        plain = isinstance(value, (str, int, float))
        shown = dot or (value != usual.get(name, value) and OPTIONS[name].affects != "nothing")
        if who != "user" and plain and shown:
            flag = name if dot else flag_of(name)[2:]
            by_setter.setdefault(who, []).append(f"{flag} {value_text(value)}")
    return [(f"set by {who}", ", ".join(values)) for who, values in by_setter.items()]


def _asked(plan: Plan) -> str:
    """Return the number of clients in a round, or in training without rounds, and the sampling."""
    s, info = plan.settings, plan.info
    text = f"{info.participants} of {info.num_clients} clients a round"
    if s.timing != "rounds":
        most = getattr(plan.choices["schedule"].config, "concurrency", None) or info.participants
        text = f"up to {most} of {info.num_clients} clients in training"
    if s.participants_from is not None:
        return f"{text}, as in {shown_path(s.participants_from)}"
    choice = plan.choices["client-sampler"]
    if choice.name == "uniform":
        return text
    return f"{text} by {_called(choice.text, choice.config)}"


def _arrivals(plan: Plan) -> list[tuple[str, str]]:
    """Return held-out samples, unseen clients, and clients that join later."""
    from protofl.federation.plan.client_arrivals import NEVER, first_rounds, unseen_clients

    s, split, rows = plan.settings, plan.split(0), list[tuple[str, str]]()
    if split.validation is not None and split.validation_offsets is not None:
        held = f"{len(split.validation):,} of the clients' training samples are held out"
        none = int((split.validation_offsets.diff() == 0).sum())
        rows.append(("validation", held + (f"; none of {count(none, 'client')}" if none else "")))
    clients = (plan.seed(0), plan.info.num_clients, s.unseen)
    unseen = sorted(unseen_clients(*clients, split.untrained))
    tuned = f"for {count(s.fine_tune, 'epoch')} at the end" if s.fine_tune else ""
    if unseen:
        then = f"; fine-tuned {tuned}" if tuned else ""
        rows.append(("unseen", f"{count(len(unseen), 'client')}, {_which(unseen, plan)}{then}"))
    elif tuned:
        rows.append(("fine-tuning", f"all clients, {tuned}"))
    if s.join_round:
        first = first_rounds(*clients, s.join_round, split.untrained)
        counts = Counter(first[(first > 0) & (first < NEVER)].tolist())
        late = [f"{count(n, 'client')} from round {at + 1} on" for at, n in sorted(counts.items())]
        rows.append(("joining", ", ".join(late)))
    return rows


def _device_model(plan: Plan) -> str:
    """Return the simulated devices, the deadline and over-selection."""
    s, choice = plan.settings, plan.choices["device-model"]
    waits = [f"deadline {s.deadline:g} s"] if s.deadline else []
    waits += [f"over-selection {s.over_select:.0%}"] if s.over_select else []
    return ", ".join([_called(choice.text, choice.config), *waits])


def _changed(config: Any) -> str:  # noqa: ANN401 - a plugin's Config
    """Return the options that differ from their defaults."""
    try:
        usual = type(config)().model_dump(by_alias=True)
    except ValueError:  # options without a default
        usual = {}
    values = config.model_dump(by_alias=True)
    return " ".join(f"{k}={value_text(v)}" for k, v in values.items() if usual.get(k, ...) != v)


def _called(name: str, config: Any) -> str:  # noqa: ANN401 - a plugin's Config
    """Return a plugin with its options in brackets."""
    values = config.model_dump(by_alias=True)
    options = ", ".join(f"{k}={value_text(v)}" for k, v in values.items() if v is not None)
    return f"{name}({options})" if options else name


def _which(clients: list[int], plan: Plan) -> str:
    """Return the numbers or names of the first ten clients."""
    from protofl.data.split import client_names

    names = client_names(plan.split(0), plan.data.columns)
    shown = [names[client] if names else str(client) for client in clients[:10]]
    more = f" and {len(clients) - 10:,} more" if len(clients) > 10 else ""
    return f"in the first trial {', '.join(shown)}{more}"


def clock(seconds: float, *, exact: bool = False) -> str:
    """Return ``1:05`` or ``2:01:05``; exact times below a minute as ``4.2 s``."""
    if exact and seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shown_path(path: Path) -> str:
    """Return a path relative to the current folder if it is below, quoted for a shell."""
    whole = expand_user(path).absolute()
    relative = os.path.relpath(whole)
    return shlex.quote(relative if not relative.startswith("..") else str(whole))
