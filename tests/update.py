"""Update what is generated from the methods: ``python tests/update.py [NAME …]``.

- Stored results (tests/golden): two rounds of each method on a toy problem.
- Outcomes of combinations (tests/contract/mixing.txt): each hook and term in each other method.
- Payload sizes and costs on the pages of methods (docs/_build/measured.json).
- Generated parts of pages: tables of README.md and docs, and docs/llms.txt.

With NAME, a method or a stored run, its results and its combinations with all methods are made
again. Without, missing ones are made; stored results that would change are listed and stay. With
``--all`` everything is made again, which takes an hour. Change stored results only if they are
meant to change, and give the reason in the commit.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs/_build"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "contract"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "golden"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "toys"))

import golden_runs
import mixing
import site_cards
import site_hooks
import torch
from safetensors.torch import save_file

import protofl
from protofl.hooks.discovery.registry import Registry
from protofl.testing.donors import methods_to_run


def main(arguments: list[str] | None = None) -> int:
    """Update what the arguments name; return 1 if stored results would change and stay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="methods or stored runs")
    parser.add_argument("--all", action="store_true", help="make everything again")
    options = parser.parse_args(arguments)
    methods = methods_to_run(Registry(), "protofl")
    for name in options.names:
        if name not in (*methods, *golden_runs.RUNS):
            parser.error(f"unknown method {name!r}; known: {', '.join(methods)}")
    stays = update_results(options.names, everything=options.all)
    update_combinations(methods, options.names, everything=options.all)
    update_cards(methods, options.names, everything=options.all)
    update_pages()
    return int(bool(stays))


def update_results(names: list[str], *, everything: bool = False) -> list[str]:
    """Store the results of the named runs and methods, and missing ones.

    Without names all stored results are compared.

    Returns:
        The runs whose results would change and were not named.
    """
    if not golden_runs.DATA.exists():
        golden_runs.make_data()
    stays = []
    for name, (method, _) in golden_runs.RUNS.items():
        named = everything or name in names or method in names
        path = golden_runs.path_of(name)
        if path.exists() and names and not named:
            continue
        with tempfile.TemporaryDirectory() as folder:
            results = golden_runs.run(name, Path(folder))
        said = golden_runs.differences(name, results) if path.exists() else {"": "new"}
        if said and path.exists() and not named:
            stays.append(name)
            print(f"golden: {name} would change, and stays: {_first(said)}")
        elif said:
            save_file(results, path, metadata=_provenance(name))
            print(f"golden: {path.name}: {_first(said)}, {len(results)} tensors")
    if stays:
        print(f"If they are meant to change: python tests/update.py {' '.join(stays)}")
    return stays


def _first(said: dict[str, str]) -> str:
    key, words = next(iter(said.items()))
    more = f" and {len(said) - 1} more" if len(said) > 1 else ""
    return f"{key} {words}{more}".strip()


def _provenance(name: str) -> dict[str, str]:
    method, options = golden_runs.RUNS[name]
    return {
        "command": f"python tests/update.py {name}",
        "run": f"{method} {dict(options)}, {golden_runs.ROUNDS} rounds on toy.npz, float64",
        "protofl": protofl.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "date": datetime.date.today().isoformat(),
    }


def update_combinations(methods: list[str], names: list[str], *, everything: bool = False) -> None:
    """Store the outcomes of combinations with the named methods, and missing ones."""
    stored = mixing.read()
    known = {main for _, main, _ in stored}
    changed = [m for m in methods if everything or m in names or m not in known]
    if not changed and known == {*methods}:
        return
    found = mixing.tried(methods, changed, stored)
    mixing.FILE.write_text(mixing.text(found), encoding="utf-8")
    gone = known - {*methods}
    for name in (*changed, *sorted(gone)):
        cells = [cell for cell in found if name in (cell[1], cell[2].partition(".")[0])]
        print(f"mixing: {name}: {len(cells)} combinations" + " (removed)" * (name in gone))


def update_cards(methods: list[str], names: list[str], *, everything: bool = False) -> None:
    """Measure the payload sizes and costs of the named methods, and of missing ones."""
    for name in site_cards.update_measured(methods, methods if everything else names):
        print(f"card: {name}: measured")


def update_pages() -> None:
    """Update what pages contain of the methods: tables, schemas and the list of all pages."""
    for page in site_hooks.update_all():
        print(f"page: {page.relative_to(site_hooks.DOCS.parent)}")


if __name__ == "__main__":
    sys.exit(main())
