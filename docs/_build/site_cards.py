"""The measured part of the methods' pages: the sections that ``protofl card`` prints below a page.

Payload sizes and costs take some seconds for each method, so they are measured once and stored;
``tests/update.py`` measures a new method.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from protofl.hooks.discovery.registry import Registry
from protofl_cli.pages.method_cards import make_card, measured_sections
from protofl_workbench.reproductions.benchmark.standings import BenchmarkSetting
from protofl_workbench.cards.benchmark_figures import BENCHMARK, record_folders, settings_of
from protofl_workbench.cards.measurements import Measurements, measure
from protofl_workbench.cards.published_figures import installed_reproductions

STORED = Path(__file__).with_name("measured.json")
"""{method: its measurements}, a line for each method."""

FOLDER = "reference/methods"
UPDATE = "python tests/update.py"


def read_measured(path: Path = STORED) -> dict[str, Measurements]:
    """Return the stored measurements by method."""
    if not path.exists():
        return {}
    values = json.loads(path.read_text(encoding="utf-8"))
    return {name: Measurements.from_values(stored) for name, stored in values.items()}


def write_measured(measured: Mapping[str, Measurements], path: Path = STORED) -> None:
    """Store measurements, a line for each method."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(measured[name].to_values(), ensure_ascii=False)}"
        for name in sorted(measured)
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def update_measured(
    methods: Iterable[str], changed: Iterable[str], path: Path = STORED
) -> list[str]:
    """Measure changed and missing methods, and remove those that no longer exist.

    Returns:
        The methods that were measured.
    """
    known, changed = read_measured(path), {*changed}
    todo = [name for name in methods if name in changed or name not in known]
    kept = {name: known[name] for name in methods if name in known}
    measured = kept | {name: measure(name) for name in todo}
    if measured != known:
        write_measured(measured, path)
    return todo


def card_sections(name: str) -> str:
    """Return the sections below the page of a method."""
    registry, stored = Registry(), _stored().get(name)
    if stored is None:
        return f"Payload sizes and cost are not measured yet: `{UPDATE} {name}`."
    method = registry.load("method", name)
    plugin = registry.find("method", name)
    about = {
        "distribution": plugin.distribution,
        "version": plugin.version,
        "target": plugin.target,
    }
    return measured_sections(make_card(name, method, about, stored, _settings(), _reproductions()))


_stored = lru_cache(read_measured)
_reproductions = lru_cache(installed_reproductions)


@lru_cache(maxsize=1)
def _settings() -> list[BenchmarkSetting]:
    """Return the standings of the committed records."""
    (benchmark,) = (one for one in _reproductions() if one.name == BENCHMARK)
    return settings_of(benchmark, record_folders(benchmark))


def method_of(place: str) -> str:
    """Return the method of a page of the site; empty if it is another page."""
    folder, _, file = place.rpartition("/")
    return Path(file).stem if folder == FOLDER and file != "index.md" else ""
