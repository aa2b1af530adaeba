"""Tests of FedTGP's Table 10 on the page: its sentences are those of the records."""

from __future__ import annotations

import re
from pathlib import Path

import site_table10 as made

import protofl as pf

PAGE = Path(__file__).parents[2] / "docs/reference/published-tables.md"


def test_the_first_paragraph_has_the_figures_of_the_records():
    head = " ".join(PAGE.read_text(encoding="utf-8").split("\n\n")[1].split())
    printed = [
        float(text.split("±")[0])
        for (_, column), text in pf.reproduction("fedtgp/table-10").published.items()
        if column == "pathological"
    ]
    best = {method: max(made.accuracies(method)) for method in made.METHODS}
    furthest = max(abs(best["local"] - figure) for figure in printed)
    said = re.search(r"within ([\d.]+) points of every printed", head)
    assert said and float(said[1]) == round(furthest, 2)
    spans = re.search(r"methods lie within ([\d.]+) points, and our .* within ([\d.]+)\.", head)
    assert spans and len(printed) == 7
    for text, figures in ((spans[1], printed), (spans[2], best.values())):
        assert float(text) == round(max(figures) - min(figures), 2)


def test_records_are_runs_of_the_table_without_weights_and_paths():
    places = sorted(p for p in made.RECORDS.iterdir() if p.is_dir())
    assert [p.name for p in places] == sorted(f"{m}-pathological-s0" for m in made.METHODS)
    for place in places:
        run = pf.load_run(place)
        assert run.state == "finished" and run.config["rounds"] == 60
        assert run.config["partition"] == "published:pathological" and run.config["drop_last"]
        assert "/" not in run.config["dataset"] and not [*place.rglob("*.safetensors")]
