"""The page of the JSON that commands print, and the files with its JSON Schemas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import typer
from protofl_cli.app import app
from protofl_cli.json.json_output import schema_of
from markdown_tables import code, table
from protofl_cli.pages.schema_pages import models

FOLDER = Path(__file__).parents[1] / "reference" / "schemas"
"""The folder of the schemas, which the site has too."""

RECORD = ("Config", "Summary", "Line")
"""Models of files of a run, which the page of the record describes."""


@cache
def schemas() -> dict[str, dict[str, Any]]:
    """Return {name: JSON Schema} of all commands with ``--json``, and of events."""
    root = typer.main.get_command(app).make_context("protofl", [], resilient_parsing=True)
    return {
        name: schema_of(model, f"protofl {words}") for name, (words, model) in models(root).items()
    }


def text_of(schema: dict[str, Any]) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def update_schemas(folder: Path = FOLDER) -> list[Path]:
    """Write the schemas that changed, and remove those of commands that are gone."""
    folder.mkdir(exist_ok=True)
    files = {folder / f"{name}.json": text_of(schema) for name, schema in schemas().items()}
    changed = [path for path in sorted(folder.glob("*.json")) if path not in files]
    for path in changed:
        path.unlink()
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def json_reference() -> str:
    """A section for each command with the form of its JSON: a table for each kind of object."""
    return "\n\n".join(_section(name, schema) for name, schema in schemas().items())


def _section(name: str, schema: dict[str, Any]) -> str:
    parts = [f"## {schema['title']} {{ #{name} }}"]
    known = schema.get("$defs", {})
    kinds = {title: each for title, each in known.items() if _is_described(title, each, known)}
    if "properties" in schema:
        whole = f"An object: {_plain(schema['description'])}"
    else:
        whole = f"{_type(schema, known)}."
        whole = whole[:1].upper() + whole[1:]
    parts.append(f"{whole} Schema: [{name}.json](schemas/{name}.json).")
    if "properties" in schema:
        parts.append(_fields(schema, known))
    for title, each in kinds.items():
        anchor = f"{name}-{title.lower()}"
        parts.append(f"### {title} {{ #{anchor} }}\n\n{_plain(each['description'])}")
        parts.append(_fields(each, known))
    return "\n\n".join(parts)


def _is_described(title: str, each: dict[str, Any], known: dict[str, Any]) -> bool:
    of_record = title in RECORD or title.startswith("_") or "description" not in each
    return "properties" in each and not of_record


def _fields(schema: dict[str, Any], known: dict[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        (
            code(key),
            _type(each, known) + ("" if key in needed else "; may be missing"),
            _plain(each.get("description", "")).rstrip("."),
        )
        for key, each in schema["properties"].items()
    ]
    return table(("key", "type", "meaning"), rows)


def _plain(text: str) -> str:
    return " ".join(text.split())


def _type(schema: dict[str, Any], known: dict[str, Any]) -> str:
    """Return a type in words: ``number or null``, ``list of ListedRun``."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        target = known[name]
        if name in RECORD:
            return f"{name}, see [the record](record.md)"
        return name if "properties" in target else _type(target, known)
    if "const" in schema:
        return code(json.dumps(schema["const"]))
    if "enum" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema["enum"])
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        texts = [_type(each, known) for each in choices]
        return (
            " or ".join(dict.fromkeys(texts)) if len(texts) < 7 or "oneOf" in schema else "any type"
        )
    kind = schema.get("type")
    if kind == "array":
        if "prefixItems" in schema:
            return f"list of {', '.join(_type(each, known) for each in schema['prefixItems'])}"
        inner = _type(schema["items"], known) if schema.get("items") else "any type"
        return f"list of {f'({inner})' if ' or ' in inner else inner}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        of = _type(inner, known) if isinstance(inner, dict) and inner else "any type"
        return f"object of {f'({of})' if ' or ' in of else of}"
    return str(kind) if kind else "any type"
