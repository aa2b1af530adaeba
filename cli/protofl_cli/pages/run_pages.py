"""Pages of ``protofl runs show`` and ``protofl runs diff``, from records only."""

from __future__ import annotations

import math
import shlex
import statistics
from typing import TYPE_CHECKING, Any

from protofl.system.formatting import count, round_word, shape_text, size_text
from protofl.system.options.value_text import value_text
from protofl_cli.screens import render
from protofl_cli.screens.last_table import traffic_rows
from protofl_cli.screens.tables import clock, shown_path

if TYPE_CHECKING:
    from pathlib import Path

    from protofl_workbench.comparing.run_difference import RunDifference
    from protofl_workbench.recorded.recorded_run import Run


def run_values(run: Run) -> dict[str, Any]:
    """Return options and results of a run as JSON values."""
    return {
        "folder": str(run.folder),
        "state": run.state,
        "config": run.config,
        "summary": run.summary,
        "clients": run.clients,
    }


def page_rows(run: Run) -> list[tuple[str, str]]:
    """Return names and values: options, state, cost, and the command that repeats the run."""
    config = run.config
    seeds = f"{config['seed']}"
    if config["trials"] > 1:
        seeds += f" … {config['seed'] + config['trials'] - 1}, {config['trials']} trials"
    rows = [("folder", shown_path(run.folder)), ("identity", run.identity or "not recorded")]
    rows += [("method", config["method"]), ("seed", seeds), (f"{_word(run)}s", _rounds(run))]
    rows += [(f"{'options' if n == 0 else ''}", line) for n, line in enumerate(_options(run))]
    rows += _data_rows(run)
    rows.append(("plugins", ", ".join(dict.fromkeys(map(_plugin, config.get("plugins", ()))))))
    for key in ("versions", "machine"):
        facts = [f"{name.replace('_', ' ')} {value}" for name, value in config.get(key, {}).items()]
        rows += [(key, ", ".join(facts))] * bool(facts)
    if run.rows:
        rows += _cost_rows(run)
    if run.problem:
        rows.append(("damaged", run.problem))
    if why := run.why_it_ended:
        rows.append(("ended", why))
    rows.append(("resume" if not run.finished else "repeat", _command(run)))
    return rows


def show_difference(difference: RunDifference, a: Path, b: Path) -> None:
    """Print how two runs differ, as a table of both with a heading for each group of rows."""
    names = ("A", "B")
    render.pairs([("A", shown_path(a)), ("B", shown_path(b))])
    groups = {
        "options": difference.options,
        "data": difference.data,
        "software and machine": difference.software,
    }
    for title, pairs in groups.items():
        if pairs:
            rows = [(name, _value(one), _value(two)) for name, one, two in pairs]
            render.table((title, *names), rows)
    same = [title for title, pairs in groups.items() if not pairs]
    if same:
        render.text(f"equal: {', '.join(same)}", "dim")
    rows = [(name, _result(name, one), _result(name, two)) for name, one, two in difference.results]
    render.table(("results", *names), rows, right=names)
    if difference.first_round is None:
        render.text(f"All {count(difference.shared_rounds, 'shared round')} are equal to the bit.")
        return
    trial, round = difference.first_round
    where = f"round {round + 1}" + (f" of trial {trial}" if trial else "")
    figures = [f"{name} {_value(one)} and {_value(two)}" for name, one, two in difference.first]
    more = f" and {len(figures) - 3} more" if len(figures) > 3 else ""
    render.text(f"First difference in {where}: {'; '.join(figures[:3])}{more}.")


def _value(value: Any) -> str:  # noqa: ANN401 - a value of a record
    return "–" if value is None else value_text(value) if not isinstance(value, str) else value


def _result(name: str, value: Any) -> str:  # noqa: ANN401 - a value of a record
    """Return a result with its unit."""
    if value is None:
        return "–"
    if "accuracy" in name:
        return f"{value:.2%}"
    if "load" in name:
        return size_text(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _word(run: Run) -> str:
    return round_word(run.config["timing"])


def _rounds(run: Run) -> str:
    asked, patience = run.asked, run.config.get("patience", 0)
    each = f" ({run.config['rounds']} of each trial)" if run.config["trials"] > 1 else ""
    if patience:
        each = f" (at most {run.config['rounds']} of each trial, --patience {patience})"
    when = f", the last at {run.rows[-1].time or '?'}" if run.rows else ""
    return f"{run.rounds_done:,} of {asked:,}{each}{when}"


def _options(run: Run) -> list[str]:
    """Return the options that differ from their defaults, and the options of plugins."""
    from protofl.system.options.table import EXTENT, OPTIONS, flag_of, usual_values

    usual, elsewhere = usual_values(run.config), {*EXTENT, "options", "data_dir", "dataset"}
    changed = [
        f"{flag_of(key)} {value_text(value)}"
        for key, value in run.config.items()
        if key in OPTIONS and key not in elsewhere and value != usual.get(key, value)
    ]
    of_plugins = [
        f"{owner}: " + " ".join(f"{k}={value_text(v)}" for k, v in values.items() if v is not None)
        for owner, values in run.config.get("options", {}).items()
        if values
    ]
    return [" ".join(changed) or "all defaults", *of_plugins]


def _plugin(plugin: dict[str, str]) -> str:
    return f"{plugin['name']} ({plugin['distribution']} {plugin['version']})"


def _data_rows(run: Run) -> list[tuple[str, str]]:
    config, about = run.config, run.config.get("data", {})
    shape = shape_text(about.get("shape", ()))
    description = f"{about.get('samples', 0):,} of {shape}, {about.get('classes', '?')} classes"
    rows = [("data", f"{config['dataset']}: {description}")]
    if run.has_split:
        split = run.split(0)
        sizes = split.train_counts.sum(1)
        rows.append(
            (
                "split",
                f"{config.get('partition')}: {len(sizes)} clients with {sizes.min():,} … "
                f"{sizes.max():,} training samples, hash {split.hash[:12]}",
            )
        )
    return rows


def _cost_rows(run: Run) -> list[tuple[str, str]]:
    """Return traffic and time of a round, and the number of absent clients."""
    result = traffic_rows(run.rows, _word(run))
    whole = [row.seconds["total"] for row in run.rows]
    each = f"{statistics.mean(whole):.2f} s a {_word(run)}"
    result.append(("time", f"{each}, {clock(sum(whole))} in all"))
    if gone := sum(len(row.absent) for row in run.rows):
        result.append(("absent clients", f"{gone:,}"))
    return result


def _command(run: Run) -> str:
    folder = shown_path(run.folder)
    if run.finished:
        return f"protofl run --config {folder}/config.json"
    return f"protofl run --resume --out {shlex.quote(folder) if ' ' in folder else folder}"


def architecture_table(run: Run) -> tuple[list[str], list[list[str]]]:
    """Return a row for each architecture: the mean accuracy of its clients in each trial."""
    from protofl_workbench.comparing.trials import accuracies_by_architecture

    accuracies = accuracies_by_architecture(run)
    columns = ["architecture", *(f"trial {trial}" for trial in run.accuracies)]
    return columns, [[name, *(f"{a:.2%}" for a in each)] for name, each in accuracies.items()]


def accuracy_table(run: Run) -> tuple[list[str], list[list[str]]]:
    """Return a row for each trial: best (on test samples) and final accuracy, and over clients."""
    columns = ["trial", f"{_word(run)}s", "best", "after", "final", "guess", "worst client"]
    columns += ["over clients", "loss"]
    rows = []
    for trial in run.trials:
        trial_rows, scored = run.rows_of(trial), run.rows_of(trial, evaluated=True)
        cells = [f"{trial} (seed {run.config['seed'] + trial})", f"{len(trial_rows):,}"]
        if scored:
            best = max(scored, key=lambda row: (row.test_accuracy or 0.0, -row.round))
            last = scored[-1]
            guess = run.majority(trial) if run.has_split else math.nan
            each = sorted((share, c) for c, share in run.accuracies.get(trial, {}).items())
            names = run.client_names or [""] * run.config["clients"]
            worst = [f"{names[c]} {share:.1%}".strip() for share, c in each[:1]]
            cells += [
                f"{best.test_accuracy:.2%}",
                f"{best.round + 1}",
                f"{last.test_accuracy:.2%}",
                "" if math.isnan(guess) else f"{guess:.2%}",
                "".join(worst),
                ""
                if last.client_test_accuracy is None
                or last.test_accuracy_std is None
                or len(each) == 1
                else f"{last.client_test_accuracy:.1%} ± {last.test_accuracy_std:.1%}",
            ]
        else:
            cells += [""] * 6
        loss = trial_rows[-1].train_loss
        rows.append([*cells, "" if loss is None else f"{loss:.3f}"])
    return columns, rows
