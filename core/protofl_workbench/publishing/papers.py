"""Papers of plugins: BibTeX entries that packages declare beside their plugins.

A package declares the papers of its plugins in a file ``papers.bib``, in the folder of a plugin's
module or in a folder above it. The field ``protofl`` of an entry names the plugins of the paper::

    @inproceedings{tan2022fedproto,
      title = {{FedProto}: Federated Prototype Learning across Heterogeneous Clients},
      year = {2022},
      protofl = {method/fedproto}
    }

Any other field is free. A class ``FILE.py:CLASS`` has its papers in the file's folder. A method
without an entry has the paper that its docstring cites::

    Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from protofl.errors import UsageError
from protofl.hooks.discovery.registry import Registry
from protofl.system.files.home import expand_user

FILE = "papers.bib"
"""The file in which a package declares the papers of its plugins."""

FIELD = "protofl"
"""The field that names the plugins of a paper; it is left out of a bibliography."""


@dataclass(frozen=True)
class Paper:
    """A BibTeX entry.

    Attributes:
        kind: ``inproceedings``, ``article``, ``misc``, ….
        key: Key of the entry.
        fields: {name in small letters: value as it stands between the braces}.
    """

    kind: str
    key: str
    fields: Mapping[str, str]

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plugins of the paper, as ``KIND/NAME``."""
        return tuple(name.strip() for name in self.fields.get(FIELD, "").split(",") if name.strip())

    def text(self) -> str:
        """Return the entry as BibTeX, without the plugins."""
        fields = [f"  {name} = {{{value}}}" for name, value in self.fields.items() if name != FIELD]
        return f"@{self.kind}{{{self.key},\n" + ",\n".join(fields) + "\n}\n"


_HEAD = re.compile(r"@(\w+)\s*\{\s*([^\s,{}]+)\s*,")
_FIELD = re.compile(r"([\w-]+)\s*=\s*\{(.*)\},?")


def read_bibtex(text: str, file: str) -> list[Paper]:
    """Return the entries of a BibTeX file with a field in each line; ``%`` begins a comment.

    Args:
        text: The content.
        file: The file, for errors.

    Raises:
        UsageError: A line of an entry has another form.
    """
    found: list[Paper] = []
    for block in re.split(r"^(?=@)", text, flags=re.MULTILINE)[1:]:
        lines = [line.strip() for line in block.splitlines()]
        head, *inner = [line for line in lines if line and not line.startswith("%")]
        begins, fields = _HEAD.fullmatch(head), [*map(_FIELD.fullmatch, inner[:-1])]
        if begins is None or not all(fields) or inner[-1:] != ["}"]:
            raise UsageError(
                f"{file}: the entry {head} cannot be read",
                "an entry is @KIND{KEY, then a line NAME = {VALUE}, for each field, then a line }",
            )
        named = {field[1].lower(): field[2] for field in fields if field}
        found.append(Paper(begins[1].lower(), begins[2], named))
    return found


# --- the papers of plugins ------------------------------------------------------------------------


def papers_of(registry: Registry, plugins: Iterable[tuple[str, str]]) -> dict[str, list[Paper]]:
    """Return the papers of plugins: {KIND/NAME: entries}, an empty list if none is known.

    No plugin is imported.

    Args:
        registry: The installed plugins.
        plugins: Kind and name of each plugin.

    Raises:
        UsageError: A file of papers is damaged.
    """
    found: dict[str, list[Paper]] = {}
    for kind, name in plugins:
        label = f"{kind}/{name}"
        papers = (paper for file in _files_of(registry, kind, name) for paper in declared(file))
        found[label] = [paper for paper in papers if label in paper.plugins]
        if kind == "method" and not found[label]:
            found[label] = [*_of_docstring(registry, name)]
    return found


CITATION = re.compile(
    r"(?P<author>[A-Z][\w'-]+(?:(?:, | and )[A-Z][\w'-]+)*)(?P<others> et al\.)?, "
    r"\"(?P<title>[^\"]+)\", "
    r"(?P<venue>[^\";(]*?),? ?(?P<year>(?:19|20)\d\d)(?: \(arXiv[: ](?P<eprint>\d{4}\.\d{5}))?"
)


def cited(name: str, text: str) -> Paper | None:
    """Return the paper that a method's docstring cites first; None if it cites none.

    Args:
        name: The method.
        text: The docstring.
    """
    found = CITATION.search(re.sub(r"\s+", " ", text))
    if found is None:
        return None
    authors = found["author"].replace(", ", " and ")
    fields = {
        "title": f"{{{found['title']}}}",  # braces keep capitals
        "author": authors + (" and others" if found["others"] else ""),
        "year": found["year"],
    }
    if found["eprint"]:
        fields |= {"eprint": found["eprint"], "archiveprefix": "arXiv"}
    if found["venue"]:
        fields["booktitle"] = found["venue"]
    kind = "inproceedings" if found["venue"] else "misc"
    key = re.sub(r"\W", "", f"{authors.split()[0].lower()}{found['year']}{Path(name).stem}")
    return Paper(kind, key, fields)


def _of_docstring(registry: Registry, method: str) -> Iterator[Paper]:
    """Yield the paper that the docstring of a method's class or module cites, from its source."""
    try:
        module, _, class_name = registry.find("method", method).target.rpartition(":")
    except UsageError:
        return
    if module.endswith(".py"):
        path = expand_user(module)
    else:
        spec = importlib.util.find_spec(module)
        path = Path((spec.origin if spec else None) or "")
    if not path.is_file():
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == class_name]
    texts = [*map(ast.get_docstring, classes), ast.get_docstring(tree)]
    papers = (cited(method, text or "") for text in texts)
    if (paper := next(filter(None, papers), None)) is not None:
        yield paper


@lru_cache
def declared(file: Path) -> tuple[Paper, ...]:
    """Return the entries of a file of papers.

    Raises:
        UsageError: The file is damaged.
    """
    return tuple(read_bibtex(file.read_text(encoding="utf-8"), str(file)))


def _files_of(registry: Registry, kind: str, name: str) -> Iterator[Path]:
    """Yield the files of papers for a plugin: of its module's folder, then of those above it."""
    try:
        target = registry.find(kind, name).target
    except UsageError:  # not installed here, or a class of another program
        return
    module = target.rpartition(":")[0] or target
    if module.endswith(".py"):
        folders = [expand_user(module).parent]
    else:
        top, *inside = module.split(".")
        spec = importlib.util.find_spec(top) if top else None
        if spec is None:
            return
        if spec.submodule_search_locations:
            root = Path(next(iter(spec.submodule_search_locations)))
            folders = [root.joinpath(*inside[:n]) for n in range(len(inside), -1, -1)]
        else:
            folders = [Path(spec.origin or "").parent]
    yield from (folder / FILE for folder in folders if (folder / FILE).is_file())


def own_paper(version: str) -> Paper:
    """Return the entry of protofl.

    Args:
        version: Its version.
    """
    fields = {
        "title": "protofl: prototype-based heterogeneous federated learning",
        "author": "{protofl contributors}",
        "note": f"version {version}",
    }
    return Paper("misc", "protofl", fields)


def bibliography(papers: Iterable[Paper]) -> str:
    """Return a BibTeX file of papers, each once, sorted by key."""
    unique = {paper.key: paper for paper in papers}
    return "\n".join(unique[key].text() for key in sorted(unique))
