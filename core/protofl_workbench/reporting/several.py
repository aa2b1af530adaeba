"""The page of several runs: compared where they can be, and each by itself."""

from __future__ import annotations

from collections.abc import Sequence

from protofl.runs.reuse.run import Run
from protofl_workbench.comparing.run_groups import (
    Group,
    divergence,
    grouped,
    progress,
    without_copies,
)
from protofl_workbench.comparing.run_labels import data_key, data_name, titles_of
from protofl_workbench.comparing.trials import trials_of
from protofl_workbench.reporting.about import facts, notes, sentence, state
from protofl_workbench.reporting.choices import departures, differences_table, options_section
from protofl_workbench.reporting.commands import commands, shown
from protofl_workbench.reporting.drawing import Drawings
from protofl_workbench.reporting.numbers import count, day, duration, listed, points, spread, whole
from protofl_workbench.reporting.one import costs
from protofl_workbench.reporting.parts import Command, Fact, Page, Part, Section
from protofl_workbench.reporting.pictures import Pictures
from protofl_workbench.reporting.results import BARS, ahead, final_of, results
from protofl_workbench.reporting.told import Moments, Told


def page_of_all(runs: Sequence[Run], drawings: Drawings, foot: str) -> Page:
    """The page of several runs.

    Args:
        runs: The runs.
        drawings: Takes their figures.
        foot: The last line.
    """
    copies: list[str] = []
    told = _told(runs, copies)
    settings = _by_setting(told)
    sections = []
    for name, own in settings.items():
        title = f"Results on {name}" if len(settings) > 1 else "Results"
        sections.append(results(title, own, drawings))
    sections[:1] = [Section(s.title, [*s.parts, *_listed(copies)]) for s in sections[:1]]
    every = Pictures(ahead(told, BARS), drawings)
    if told:
        sections.append(Section("Traffic and time", [*costs(every, over=len(settings) == 1)]))
    sections += [_differences(runs), *_departures(told)]
    sections.append(_each(runs, told, drawings))
    return Page(
        _title(runs, settings),
        f"protofl · {count(len(runs), 'run')}",
        _lead(runs, told, settings),
        _state(runs),
        _facts(runs, told, settings),
        [section for section in sections if section],
        foot,
    )


def _by_setting(told: Sequence[Told]) -> dict[str, list[Told]]:
    """Groups by the data that they are on and the samples that they are scored on.

    There their names don't say what all have in common.
    """
    found: dict[str, list[Told]] = {}
    for own in told:
        found.setdefault(data_key(own.run), []).append(own)
    names = titles_of([own[0].run for own in found.values()])
    if len(found) == 1:
        return dict(zip(names, found.values(), strict=True))
    return {
        name: _told([run for one in own for run in one.group.runs], [], settings=False)
        for name, own in zip(names, found.values(), strict=True)
    }


def _told(runs: Sequence[Run], notes: list[str], *, settings: bool = True) -> list[Told]:
    """Runs as groups that have a round; trials that repeat another one are left out and noted."""
    found = without_copies(grouped(list(runs), settings=settings), notes)
    return [Told(group) for group in found if group.trials]


def _facts(
    runs: Sequence[Run], told: Sequence[Told], settings: dict[str, list[Told]]
) -> list[Fact]:
    """Who is ahead, by how much, and what all of it took."""
    found = []
    if len(settings) == 1:
        ranked = sorted((own for own in told if own.ends), key=final_of, reverse=True)
        if ranked:
            first = ranked[0]
            final = first.end("final_test_accuracy") or Moments(float("nan"), None)
            note, level = f"final test accuracy of {first.group.label}", False
            if len(ranked) > 1:
                ahead = points(final_of(first) - final_of(ranked[1])).strip("+−")
                level = final_of(first) == final_of(ranked[1])
                note += ", level with " if level else f", {ahead} points ahead of "
                note += ranked[1].group.label
            value = spread(final.mean, final.std)
            title = "Level at the end" if level else "Ahead at the end"
            found.append(Fact(title, value, note, lead=True))
            guess = first.end("majority_accuracy")
            if guess is not None and guess.mean == guess.mean:
                value = spread(guess.mean, guess.std)
                found.append(Fact("Majority guess", value, "always each client's commonest class"))
    trials = sum(len(own.group.trials) for own in told)
    rounds = sum(len(own.rows) for own in told)
    found.append(Fact("Trials", whole(trials), f"{count(rounds, 'round')} in all"))
    seconds = sum(row.seconds["total"] for run in runs for row in run.rows)
    found.append(Fact("Time", duration(seconds), "of all runs together"))
    return found


# --- how they are told of -------------------------------------------------------------------------


def _title(runs: Sequence[Run], settings: dict[str, list[Told]]) -> str:
    names = list(dict.fromkeys(run.name for run in runs))
    data = list(dict.fromkeys(data_name(run.config) for run in runs))
    who = listed(names, 4) if len(names) <= 4 else count(len(names), "method")
    return f"{who} on {listed(data, 3) if len(data) <= 3 else count(len(data), 'data set')}"


def _lead(runs: Sequence[Run], told: Sequence[Told], settings: dict[str, list[Told]]) -> str:
    first = runs[0].config
    text = count(len(runs), "run")
    if len(told) == 1:
        text += " that differ in seeds alone"
    elif len(told) < len(runs):
        text += f" in {len(told)} groups, within which they differ in seeds alone"
    if len(settings) > 1:
        text += f", on {len(settings)} data sets or splits, which are not compared with each other"
    clients = {run.config["clients"] for run in runs}
    if len(clients) == 1:
        text += f". {count(first['clients'], 'client')}"
        models = list(dict.fromkeys(str(run.config["models"]) for run in runs))
        text += f" with models of {listed(models, 3)}"
    stamps = [str(own.rows[-1].time) for own in told]
    if stamps and (when := day(max(stamps))):
        text += f". {when}"
    return text + "."


def _state(runs: Sequence[Run]) -> str:
    counts = {
        "not finished": sum(bool(progress(run)) for run in runs),
        "diverged": sum(bool(divergence(run)) for run in runs),
    }
    return ", ".join(f"{n} of {len(runs)} {what}" for what, n in counts.items() if n)


def _listed(notes: Sequence[str]) -> list[Part]:
    """Notes as a paragraph; of many the first, and how many more."""
    more = [f"And {len(notes) - 6} trials more"] if len(notes) > 6 else []
    return [" ".join(f"{note}." for note in [*notes[:6], *more])] if notes else []


def _differences(runs: Sequence[Run]) -> Section:
    table = differences_table([run.folder.name for run in runs], [run.config for run in runs])
    return Section("What differs", [table] if table else [])


def _departures(told: Sequence[Told]) -> list[Section]:
    """What departs from papers, told once for runs that depart alike."""
    section = Section("Departures from the papers")
    for own in told:
        for part in departures(own.config).parts:
            if part not in section.parts:
                section.parts.append(part)
    section.parts.sort(key=lambda part: isinstance(part, str))
    return [section]


def _each(runs: Sequence[Run], told: Sequence[Told], drawings: Drawings) -> Section:
    """Each run by itself, and the command that makes the page again."""
    labels = {id(run): own.group.label for own in told for run in own.group.runs}
    again = " \\\n    ".join(["protofl report", *(shown(run.folder) for run in runs)])
    section = Section("The runs", [Command("Make this page again", again, folded=len(runs) > 4)])
    for run in runs:
        label = labels.get(id(run), run.name)
        title = label if label == run.folder.name else f"{run.folder.name}: {label}"
        if not run.rounds_done:
            parts: list[Part] = ["It has no finished round yet.", *commands(run)]
        else:
            own = Told(Group(run.name, tuple(trials_of(run))))
            parts = [sentence(own), *facts(own), *notes(own)]
            pictures = Pictures([own], drawings)
            parts += [p for p in (pictures.split(own), pictures.terms(own)) if p]
            parts += [*options_section(run.config).parts, *commands(run)]
        if found := state(run):
            title += f" ({found})"
        section.inner.append(Section(title, parts))
    return section
