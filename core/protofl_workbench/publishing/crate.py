"""The RO-Crate of a published folder, ``ro-crate-metadata.json``: profile Process Run Crate.

RO-Crate 1.2: https://w3id.org/ro/crate/1.2. The profile is that of Workflow Run RO-Crate for runs
of a program that is not a workflow, https://w3id.org/ro/wfrun/process/0.5 (Leo et al., PLOS ONE
19(9), 2024). Each run is a ``CreateAction`` of the ``SoftwareApplication`` protofl: its objects are
the configuration and the data set, its results the files of the record.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from protofl.system.files.atomic import write_json
from protofl_workbench.publishing import layout
from protofl_workbench.publishing.papers import Paper

CONTEXT = "https://w3id.org/ro/crate/1.2/context"
SPECIFICATION = "https://w3id.org/ro/crate/1.2"
PROFILE = "https://w3id.org/ro/wfrun/process/0.5"

Entity = dict[str, Any]

NAMES = {
    layout.PUBLICATION: "What is published",
    layout.ENVIRONMENT: "Software and machines of the runs",
    layout.REQUIREMENTS: "Versions of Python packages",
    layout.README: "Contents, and how to verify them",
    layout.CITATION: "How to cite this publication",
    layout.PAGE: "Report of the runs",
    layout.PAPERS: "Papers of protofl, methods, data sets and model groups",
    "config.json": "Configuration",
    "metrics.jsonl": "Figures of every round",
    "summary.json": "Best and final figures",
    "partition.json": "Samples of each class at each client",
    "preparation.json": "Preparation of raw samples",
}
"""Descriptions of files by their names."""

TYPES = {
    ".jsonl": "application/jsonl",
    ".bib": "application/x-bibtex",
    ".cff": "application/yaml",
    ".md": "text/markdown",
    ".py": "text/x-python",
    ".safetensors": "application/octet-stream",
}
"""Media types that the standard library does not have."""


def write_crate(
    folder: Path,
    publication: Mapping[str, Any],
    times: Mapping[str, tuple[str, str, float]],
    papers: Sequence[Paper],
) -> None:
    """Write the metadata of a published folder; all other files but the digests exist already.

    Args:
        folder: The folder.
        publication: The content of ``publication.json``.
        times: {run: (time of its first line, time of its last line, seconds of the first round)}.
        papers: The papers that are cited.
    """
    files = [_file(folder, name) for name in layout.files_in(folder) if name != layout.CRATE]
    people = [_person(author) for author in publication["authors"]]
    places = [_organisation(a["affiliation"]) for a in publication["authors"] if "affiliation" in a]
    data = {run["data"]: _data_set(run) for run in publication["runs"]}
    software = _software(publication)
    actions = [
        _action(run, times[run["name"]], [f["@id"] for f in files], people, software, data)
        for run in publication["runs"]
    ]
    license_entity = _license(publication["license"])
    articles = [_article(paper) for paper in papers]
    profile = {
        "@id": PROFILE,
        "@type": ["CreativeWork", "Profile"],
        "name": "Process Run Crate",
        "version": "0.5",
    }
    root = {
        "@id": "./",
        "@type": "Dataset",
        "name": publication["title"],
        "description": publication["description"],
        "datePublished": publication["published"],
        "license": {"@id": license_entity["@id"]},
        "conformsTo": {"@id": PROFILE},
        "hasPart": _references(files),
        "mentions": _references(actions),
        **({"author": _references(people)} if people else {}),
        "citation": _references(one for one in articles if one["@id"].startswith("http")),
    }
    descriptor = {
        "@id": layout.CRATE,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": {"@id": SPECIFICATION},
    }
    next(one for one in files if one["@id"] == layout.PAPERS)["mentions"] = _references(articles)
    graph = [descriptor, root, profile, license_entity, software, *people, *places, *actions]
    graph += [*articles, *files, *data.values()]
    unique = {entity["@id"]: entity for entity in graph}
    write_json(folder / layout.CRATE, {"@context": CONTEXT, "@graph": [*unique.values()]})


def _references(entities: Iterable[Entity]) -> list[Entity]:
    return [{"@id": one} for one in dict.fromkeys(entity["@id"] for entity in entities)]


def _file(folder: Path, name: str) -> Entity:
    path = folder / name
    kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
    described = NAMES.get(path.name, "")
    for start, text in (
        (f"{layout.FIGURES}/", f"Figure {path.stem}"),
        (f"{layout.PLUGINS}/", "Source of a plugin"),
        (f"{layout.RUNS}/", f"Tensors {path.stem}" if path.suffix == ".safetensors" else path.name),
    ):
        described = described or (text if name.startswith(start) else "")
    of_run = name.split("/")[1] if name.startswith(f"{layout.RUNS}/") else ""
    return {
        "@id": quote(name),
        "@type": "File",
        "name": path.name,
        "description": described + (f" of run {of_run}" if of_run else ""),
        "encodingFormat": kind,
        "contentSize": str(path.stat().st_size),
        "sha256": layout.sha256(path),
    }


def _person(author: Mapping[str, str]) -> Entity:
    orcid = author.get("orcid", "")
    name = author["name"]
    place = author.get("affiliation", "")
    about = {"affiliation": {"@id": _organisation(place)["@id"]}} if place else {}
    address = f"https://orcid.org/{orcid}" if orcid else _anchor("author", name)
    return {"@id": address, "@type": "Person", "name": name, **about}


def _organisation(name: str) -> Entity:
    return {"@id": _anchor("organisation", name), "@type": "Organization", "name": name}


def _anchor(kind: str, name: str) -> str:
    return f"#{kind}-{quote('-'.join(name.split()))}"


def _license(given: Mapping[str, str]) -> Entity:
    about = {"name": given["name"], "description": given["description"]}
    return {"@id": given["url"] or "#license", "@type": "CreativeWork", **about}


def _data_set(run: Mapping[str, Any]) -> Entity:
    """Return the data of a run, which are not in the folder."""
    return {
        "@id": f"#data-{run['data'][:16]}",
        "@type": "CreativeWork",
        "name": f"Data set {run['dataset']}",
        "description": f"SHA-256 of its samples, as protofl reads them: {run['data']}",
        "identifier": run["data"],
    }


def _software(publication: Mapping[str, Any]) -> Entity:
    versions = publication["versions"]
    return {
        "@id": (address := f"https://pypi.org/project/protofl/{versions['protofl']}/"),
        "url": address,
        "@type": "SoftwareApplication",
        "name": "protofl",
        "version": versions["protofl"],
        "softwareRequirements": f"torch {versions['torch']}",
        "description": "Prototype-based heterogeneous federated learning",
    }


def _action(
    run: Mapping[str, Any],
    times: tuple[str, str, float],
    files: Sequence[str],
    people: Sequence[Entity],
    software: Entity,
    data: Mapping[str, Entity],
) -> Entity:
    start = f"{layout.RUNS}/{run['name']}/"
    records = [
        name for name in files if name.startswith(start) and not name.endswith("config.json")
    ]
    used: list[Entity] = [{"@id": f"{start}config.json"}, data[run["data"]]]
    used += [{"@id": source} for source in run["sources"]]
    return {
        "@id": _anchor("run", run["name"]),
        "@type": "CreateAction",
        "name": f"Run {run['name']}: {run['method']} on {run['dataset']}",
        "description": run["command"],
        "instrument": {"@id": software["@id"]},
        "startTime": _earlier(times[0], times[2]),
        "endTime": times[1],
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "object": _references(used),
        "result": [{"@id": name} for name in records],
        **({"agent": {"@id": people[0]["@id"]}} if people else {}),
    }


def _earlier(time: str, seconds: float) -> str:
    """Return the time of the first line less the seconds of its round: the start of training."""
    try:
        begun = datetime.fromisoformat(time) - timedelta(seconds=seconds)
    except ValueError:
        return time
    return begun.isoformat(timespec="seconds")


def _article(paper: Paper) -> Entity:
    people = [{"name": name} for name in paper.authors]
    year = paper.fields.get("year", "")
    return {
        "@id": paper.address or f"#paper-{paper.key}",
        "@type": "ScholarlyArticle",
        "name": paper.title,
        **({"creditText": ", ".join(p["name"] for p in people)} if people else {}),
        **({"datePublished": year} if year else {}),
    }
