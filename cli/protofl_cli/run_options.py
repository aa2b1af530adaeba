"""The options of ``protofl run``: those of `protofl.plan.settings`, read from there.

They are read when the command is called: pydantic, which holds them, takes a third of the time in
which the other commands are done.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from protofl_cli.options import number, plain_type, value_range, value_text

PANELS: dict[str, tuple[str, ...]] = {
    "Federation": (
        "models",
        "dataset",
        "subset",
        "partition",
        "clients",
        "participation",
        "selection",
        "participants_from",
        "unseen",
        "fine_tune",
        "join_round",
        "malicious",
        "world",
        "deadline",
        "over_select",
        "rounds",
        "generator",
    ),
    "Local training": (
        "local_epochs",
        "batch_size",
        "optimizer",
        "lr",
        "lr_schedule",
        "momentum",
        "weight_decay",
        "clip",
        "feature_dim",
        "drop_last",
        "shuffle",
        "augment",
        "precision",
        "public",
    ),
    "Composition": ("options", "use", "add", "drop", "wrappers", "block", "classes"),
    "Repetition": ("seed", "trials", "hold_split", "same_init", "deterministic"),
    "Machine": (
        "device",
        "engine",
        "backend",
        "workers",
        "client_store",
        "server_threads",
        "job_limit",
        "data_dir",
    ),
    "Record and screen": (
        "validation",
        "eval_every",
        "eval_clients",
        "checkpoint_every",
        "keep",
        "on_bad_upload",
        "upload_limit",
        "upload_bound",
        "on_lost_client",
        "min_clients",
        "dry_step",
        "measure",
        "metrics",
        "observe",
        "observe_every",
        "observe_samples",
        "observe_limit",
        "record_uploads",
        "track",
        "track_group",
        "track_wait",
        "profile",
    ),
}
"""Where each option stands in the help; a test holds it against `Settings`."""

OTHER_NAMES = {"options": "set", "wrappers": "with", "classes": "class"}
"""Settings whose option has another name."""

METAVAR = {
    "models": "GROUP",
    "dataset": "NAME[:PATH]",
    "subset": "N|1/N",
    "validation": "SHARE",
    "unseen": "SHARE|N",
    "join_round": "N[:SHARE][,…]",
    "partition": "NAME",
    "optimizer": "NAME",
    "lr_schedule": "NAME",
    "precision": "NAME",
    "public": "N|npz:PATH|none",
    "options": "[NAME.]KEY=VALUE",
    "use": "HOOK=METHOD",
    "add": "local_loss=METHOD.TERM|HOOK=METHOD",
    "drop": "local_loss.TERM",
    "wrappers": "WRAPPER",
    "block": "NAME",
    "classes": "[KIND/]FILE.py:CLASS",
    "device": "DEVICE",
    "generator": "NAME[:PATH]",
    "engine": "NAME",
    "backend": "NAME",
    "data_dir": "DIR",
    "checkpoint_every": "N|off",
    "keep": "best|last|current",
    "on_bad_upload": "stop|skip",
    "on_lost_client": "stop|skip",
    "participants_from": "RUN",
    "selection": "NAME[:PATH]",
    "world": "NAME[:PATH]",
    "deadline": "SECONDS",
    "client_store": "memory|disk",
    "eval_clients": "all|participants",
    "measure": "NAME[,NAME…]",
    "metrics": "NAME[,NAME…]",
    "track": "NAME[,NAME…]",
    "track_group": "TEXT",
    "observe": "NAME[,NAME…]",
    "observe_limit": "MB",
}

REPEATABLE = {
    "options": "An option of the method, of NAME (a donor, wrapper, metric or tracker), or of the "
    "chosen dataset, partition, models, selection, world, engine or backend, the optimizer or the "
    "schedule",
    "use": "Take a hook from another method, as that one alone would run it",
    "add": "Add a loss term of another method, or what its hook sends (upload_payload, "
    "download_payload) or gives to the server's knowledge (server_aggregate, server_train)",
    "drop": "Leave a loss term out",
    "wrappers": "Wrap what is sent, in the order given",
    "block": "Leave a plugin out: NAME or KIND/NAME, either with @DISTRIBUTION",
    "classes": "Make a class known that is not installed, under its own name (my-method of "
    "MyMethod); where a plugin is named, FILE.py:CLASS may stand too",
}

CHOICES = (
    "lr_schedule",
    "precision",
    "on_bad_upload",
    "on_lost_client",
    "client_store",
    "eval_clients",
    "keep",
)
"""Options whose values are listed."""

WORDS = REPEATABLE | {
    "dataset": "The data set",
    "optimizer": "Local optimiser, fresh each round: sgd, adam, or another of torch.optim, with "
    "--set optimizer.KEY=VALUE",
    "lr_schedule": "How the learning rate falls from round to round, with --set schedule.KEY=VALUE",
    "weight_decay": "Weight decay",
    "subset": "Class-balanced part of the samples for the clients: a share (1/20) or a number",
    "public": "Public samples to hold out, public images in a file, or none",
    "feature_dim": "Feature width K",
    "workers": "Hosts",
    "device": "Where to compute: auto, cpu, cuda or cuda:N",
    "backend": "Where hosts live: auto, local, process or another installed one",
    "on_bad_upload": "What to do about an upload that is not as it should be",
    "checkpoint_every": "Rounds between checkpoints",
    "profile": "Print where the time went, and write profile/trace.json for Perfetto or Chrome",
}
"""Descriptions, where the one in `Settings` says what the brackets say too."""

DEFAULTS = {
    "weight_decay": "the optimiser's own, mostly 0",
    "measure": "none",
    "metrics": "none",
    "track": "none",
    "track_group": "none",
    "observe": "none",
    "participants_from": "as --selection says",
    "world": "none: no virtual time",
    "deadline": "none",
    "validation": "none",
    "unseen": "none",
    "fine_tune": "10 times --local-epochs",
    "join_round": "all from the beginning",
    "clients": "the data set's, otherwise 20",
    "malicious": "none",
    "rounds": "the data set's, otherwise 100",
    "subset": "all",
    "feature_dim": "the group's, mostly 512",
    "public": "none, or what the method needs",
    "workers": "one per core",
    "data_dir": "PROTOFL_DATA_DIR, otherwise ~/.cache/protofl",
}
"""Defaults that depend on something, in words."""


def with_options(
    command: Callable[..., None], made: Sequence[inspect.Parameter] = ()
) -> Callable[..., None]:
    """The command with options in place of its ``**given``."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]

    @functools.wraps(command)
    def run(**given: Any) -> None:  # noqa: ANN401 - options of many types
        command(**given)

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]  # inspect reads it
        parameters=[own[0], *made, *own[1:]]
    )
    return run


def option_parameters() -> list[inspect.Parameter]:
    """An option for every field of `Settings`.

    None stands for "not given", so that ``--config`` and the plugins' defaults have their turn.
    """
    return [_option(name, panel) for panel, names in PANELS.items() for name in names]


def _option(name: str, panel: str) -> inspect.Parameter:
    """The option of one field: its type, and its description, range and default in words."""
    from protofl.plan.settings import Settings

    field = Settings.model_fields[name]
    long = OTHER_NAMES.get(name, name).replace("_", "-")
    types = plain_type(field.annotation)
    kind = types[0] if len(types) == 1 and types[0] in (int, float, bool, Path) else str
    if name in ("checkpoint_every", "subset", "unseen", "validation"):
        kind = str  # it may be off; it may be a fraction
    annotation: Any = list[str] | None if name in REPEATABLE else kind | None
    description = WORDS.get(name, field.description or "")
    option = typer.Option(
        f"--{long}/--no-{long}" if kind is bool else f"--{long}",
        help=f"{description[:1].upper()}{description[1:]} ({_aside(name, kind)})",
        metavar=METAVAR.get(name),
        show_default=False,
        rich_help_panel=panel,
    )
    return inspect.Parameter(
        f"{long}_".replace("-", "_"),
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=None,
        annotation=Annotated[annotation, option],
    )


def _aside(name: str, kind: type) -> str:
    """What stands in brackets: the range, and the default."""
    from protofl.plan.settings import Settings

    field = Settings.model_fields[name]
    if name in REPEATABLE:
        return "repeatable"
    limits = value_range(field)
    parts = [limits] if kind in (int, float) or (" | " in limits and name in CHOICES) else []
    if field.is_required():
        return "; ".join([*parts, "needed"])
    value = field.get_default()
    if kind is bool:
        usual = "yes" if value else "no"
    else:
        usual = number(value) if isinstance(value, (int, float)) else value_text(value)
    return "; ".join([*parts, f"default: {DEFAULTS.get(name, usual)}"])
