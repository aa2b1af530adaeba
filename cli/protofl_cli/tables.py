"""What ``protofl run`` prints before and after: the composition, and the last table."""

from __future__ import annotations

import os
import shlex
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofl_cli.options import value_text

if TYPE_CHECKING:
    from protofl.folder.result import Result
    from protofl.folder.run_folder import RunFolder
    from protofl.plan.plan import Plan
    from protofl.plugin.composition import Composition

TRIALS_SHOWN = 5


def run_name(plan: Plan) -> str:
    """The recipe with which the run began, otherwise the method."""
    return plan.settings.recipe.get("name", plan.settings.method)


def providers(composition: Composition) -> dict[str, str]:
    """{hook: who provides it}; of the loss, its terms."""
    words = {
        hook: " + ".join(
            [owner if composition.provider(hook) == owner else f"{owner} (default)", *added]
        )
        for hook, (owner, *added) in (
            (hook, composition.makers(hook)) for hook in composition.providers
        )
    }
    return words | {"local_loss": " + ".join(term.label for term in composition.terms)}


def composition_rows(plan: Plan, folder: RunFolder) -> list[tuple[str, str]]:
    """Who provides what, on which data, how and where."""
    from protofl.malicious import malicious_clients  # it imports torch

    s, info, composition = plan.settings, plan.info, plan.composition
    rows = list(providers(composition).items())
    if s.recipe:
        origin = "{name} of {distribution} {version}".format(**s.recipe)
        rows.insert(0, ("recipe", f"{origin}: {s.method} with what differs below"))
    wrappers = [m.name for m in composition.members.values() if m.kind == "wrapper"]
    if wrappers:
        rows.append(("wrappers", ", then ".join(wrappers)))
    rows += [
        (f"{name} options", words)
        for name, config in composition.configs.items()
        if (words := _changed(config))
    ]
    split = plan.split(0)
    sizes = split.train_sizes
    data = plan.data
    words = f"{s.dataset}: {len(data.y):,} {data.sample}, {data.num_classes} classes"
    rows.append(("data", words))
    choice = plan.choices["partitioner"]
    how = "as the data come" if split.partitioner == "own" else _called(choice.text, choice.config)
    rows.append(
        (
            "split",
            f"{how}: {info.num_clients} clients with {int(sizes.min()):,} … {int(sizes.max()):,} "
            f"training samples, hash {split.hash[:12]}",
        )
    )
    if split.public is not None:
        rows.append(("public", f"{len(split.public):,} unlabelled samples"))
    elif plan.public_data is not None:
        rows.append(("public", f"{len(plan.public_data.y):,} unlabelled samples, {s.public}"))
    names = [a.name for a in info.architectures]
    group = s.models if names == [s.models] else f"{s.models}: {', '.join(names)}"
    rows.append(("models", f"{group}; K = {info.feature_dim}, {info.sample}"))
    optimizer = f"{s.optimizer} with lr {s.lr:g}" + (
        f" ({_called(s.lr_schedule, plan.schedule)})" * plan.scheduled
        + f", momentum {s.momentum:g}" * bool(s.momentum)
        + f", weight decay {s.weight_decay or 0:g}" * bool(s.weight_decay)
        + "".join(f", {k}={value_text(v)}" for k, v in s.options.get("optimizer", {}).items())
        + f", clipped at {s.clip:g}" * bool(s.clip)
    )
    extras = [
        word
        for word, is_on in (
            ("last batch dropped", s.drop_last),
            ("augmented", s.augment),
            (s.precision, s.precision != "fp32"),
        )
        if is_on
    ]
    rows.append(
        (
            "training",
            ", ".join(
                [
                    _count(s.rounds, "round"),
                    _asked(plan),
                    _count(s.local_epochs, "epoch"),
                    f"batches of {s.batch_size}",
                    optimizer,
                    *extras,
                ]
            ),
        )
    )
    if "world" in plan.choices:
        rows.append(("world", _world(plan)))
    trials = f", {s.trials} trials" if s.trials > 1 else ""
    malicious = sorted(malicious_clients(plan.seed(0), info.num_clients, s.malicious))
    if malicious:
        rows.append(("malicious", f"{_count(len(malicious), 'client')}, {_numbers(malicious)}"))
    rows.append(("seed", f"{s.seed}{trials}"))
    workers = ""
    if s.backend != "local":
        workers = f" with {_count(s.workers, 'worker')}" if s.workers else ", a worker per core"
    where = f"{s.device}, engine {s.engine}, backend {s.backend}{workers}"
    if s.client_store == "disk":
        where += ", clients on disk"
    rows.append(("runs on", where))
    rows.append(("run folder", shown_path(folder.path)))
    return rows


def _asked(plan: Plan) -> str:
    """How many clients take part in a round, and who chooses them."""
    s, info = plan.settings, plan.info
    words = f"{info.participants} of {info.num_clients} clients a round"
    if s.participants_from is not None:
        return f"{words}, as in {shown_path(s.participants_from)}"
    choice = plan.choices["selection"]
    if choice.name == "uniform":
        return words
    return f"{words} by {_called(choice.text, choice.config)}"


def _world(plan: Plan) -> str:
    """On what devices clients run, and how long a round waits for them."""
    s, choice = plan.settings, plan.choices["world"]
    waits = [f"{s.deadline:g} s for a reply at most"] if s.deadline else []
    waits += [f"{s.over_select:.0%} more asked than awaited"] if s.over_select else []
    return ", ".join([_called(choice.text, choice.config), *waits])


def _changed(config: Any) -> str:  # noqa: ANN401 - a plugin's Config
    """The options that differ from their defaults."""
    try:
        usual = type(config)().model_dump(by_alias=True)
    except ValueError:  # it has options without a default
        usual = {}
    values = config.model_dump(by_alias=True)
    return " ".join(f"{k}={value_text(v)}" for k, v in values.items() if usual.get(k, ...) != v)


def _called(name: str, config: Any) -> str:  # noqa: ANN401 - a plugin's Config
    """A plugin with its options in brackets."""
    values = config.model_dump(by_alias=True)
    words = ", ".join(f"{k}={value_text(v)}" for k, v in values.items() if v is not None)
    return f"{name}({words})" if words else name


def _numbers(clients: list[int]) -> str:
    """The first ten clients' numbers."""
    more = f" and {len(clients) - 10:,} more" if len(clients) > 10 else ""
    return f"in the first trial {', '.join(map(str, clients[:10]))}{more}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def result_rows(result: Result, plan: Plan) -> tuple[list[str], list[list[str]]]:
    """The last table's headings and its rows; of several trials mean ± std and each."""
    summary = result.summary
    trials = summary["trials"]
    labels = {
        "best_test_accuracy": "best accuracy",
        "final_test_accuracy": "final accuracy",
        "majority_accuracy": "majority guess",
        "best_server_accuracy": "best server accuracy",
        "final_server_accuracy": "final server accuracy",
        "best_honest_accuracy": "best accuracy of the honest",
        "final_honest_accuracy": "final accuracy of the honest",
    }
    labels = {key: label for key, label in labels.items() if key in summary["mean"]}
    metrics = {k: k.replace("_", " ", 1) for k in summary["mean"] if k not in labels}
    if len(trials) == 1:
        rows = [[label, f"{summary[key]:.2%}"] for key, label in labels.items()]
        of = _count(summary["rounds"], "round")
        rounds = {"best_test_accuracy": "best_round", "best_server_accuracy": "best_server_round"}
        rounds["best_honest_accuracy"] = "best_honest_round"
        for row, key in zip(rows, labels, strict=True):
            if key in rounds:
                row[1] += f" after {summary[rounds[key]] + 1} of {of}"
        rows += [[label, f"{summary[key]:.4f}"] for key, label in metrics.items()]
        return [], rows
    # Trial k of seed s is a run with seed s + k, and is named by that.
    shown = trials if len(trials) <= TRIALS_SHOWN else []
    rows = [
        [
            label,
            f"{summary['mean'][key]:.2%} ± {summary['std'][key]:.2%}",
            *(f"{trial[key]:.2%}" for trial in shown),
        ]
        for key, label in labels.items()
    ]
    rows.insert(1, ["best after", "", *(_count(t["best_round"] + 1, "round") for t in shown)])
    if not shown:
        del rows[1]
    for key, label in metrics.items():
        spread = f"{summary['mean'][key]:.4f} ± {summary['std'][key]:.4f}"
        rows.append([label, spread, *(f"{trial[key]:.4f}" for trial in shown)])
    return ["mean ± std", *(f"seed {plan.seed(t['trial'])}" for t in shown)], rows


def run_rows(result: Result) -> list[tuple[str, str]]:
    """Spread over clients, traffic and seconds."""
    rows = []
    record = result.record
    last = max(result.client_accuracies, default=None)
    spread = sorted(result.client_accuracies[last].values()) if last is not None else []
    evaluated = [r for r in record if r["test_accuracy"] is not None]
    if result.summary["eval_clients"] == "participants" and evaluated:
        count = evaluated[-1]["evaluated"]
        words = f"the clients that a round trained, {count:,} in the last; the guess is of all"
        rows.append(("accuracy of", words))
    if spread:
        rows.append(
            (
                "over clients",
                f"{spread[0]:.1%} … {spread[-1]:.1%}, median {statistics.median(spread):.1%}, "
                f"std {statistics.pstdev(spread):.1%}",
            )
        )
    elif evaluated:  # the run was finished before
        mean, std = evaluated[-1]["client_test_accuracy"], evaluated[-1]["test_accuracy_std"]
        rows.append(("over clients", f"mean {mean:.1%}, std {std:.1%}"))
    # In round 0 many methods have nothing to send down yet.
    usual = [r for r in record if r["round"] > 0] or record
    for way in ("upload", "download"):
        floats = statistics.mean(r[f"{way}_floats"] for r in usual)
        size = statistics.mean(r[f"{way}_bytes"] for r in usual)
        amount = f"{floats:,.0f} floats, {bytes_text(size)}" if size else "nothing"
        rows.append((f"{way} a round", amount))
    stages = [k for k in record[-1]["seconds"] if k != "total"]
    total = statistics.mean(r["seconds"]["total"] for r in record)
    rows.append(("seconds a round", f"{total:.2f}"))
    spent = [(k, statistics.mean(r["seconds"][k] for r in record)) for k in stages]
    parts = [f"{k} {value:.2f}" for k, value in spent if value >= 0.005]
    if "virtual" in record[-1]:
        lasted = statistics.mean(r["virtual"]["seconds"] for r in record)
        rows.append(("virtual seconds a round", f"{lasted:.4g}"))
    reasons = Counter(why for row in record for why in row.get("absent", {}).values())
    if reasons:
        each = ", ".join(f"{why} {count:,}" for why, count in reasons.most_common())
        rows.append(
            ("absent in all", f"{reasons.total():,} of {_all_asked(record):,} asked: {each}")
        )
    # Hosts work side by side, so what they spend together may exceed the round.
    rows.append(("by stage", ", ".join(parts) + (" (all hosts)" if parts else "")))
    return rows


def _all_asked(record: list[dict[str, Any]]) -> int:
    """Clients that were asked, over all rounds."""
    return sum(row["participants"] + len(row.get("absent", {})) for row in record)


def bytes_text(size: float) -> str:
    """``1.2 MB``, three digits and a unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} bytes"


def clock(seconds: float, *, exact: bool = False) -> str:
    """``1:05``, ``2:01:05``; exact ones below a minute as ``4.2 s``."""
    if exact and seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def shown_path(path: Path) -> str:
    """A path as one would type it here."""
    whole = path.expanduser().absolute()
    relative = os.path.relpath(whole)
    return shlex.quote(relative if not relative.startswith("..") else str(whole))
