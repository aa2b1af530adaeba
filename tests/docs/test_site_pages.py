"""Tests that the generated parts of the site are complete and agree with the code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import site_commands
import site_hooks
import site_methods
from site_hook_texts import example
from site_plugins import own_plugins

import protofl
import protofl_workbench
from protofl import Config, functional, plots
from protofl.hooks.discovery.kinds import KINDS, spec_hooks
from protofl.hooks.discovery.registry import Registry
from protofl.hooks.views.run_info import ClientCard
from protofl.hooks.wire.keys import RUNTIME, RUNTIME_KEYS, declared_keys
from protofl.system.options.plugin_options import option_names
from protofl.system.options.table import CHOOSING, OPTIONS, flag_of
from protofl_cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HAND_WRITTEN = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
PLUGINS = [p for p in Registry().plugins() if p.distribution.startswith("protofl")]


@pytest.fixture(scope="module")
def page():
    """Return a function that reads a page with its generated parts."""
    made = {}

    def read(path):
        if path not in made:
            made[path] = site_hooks.whole((DOCS / path).read_text(encoding="utf-8"))
        return made[path]

    return read


def section(text, heading):
    """Return the text under a heading, up to the next heading of its level."""
    level = heading.partition(" ")[0]
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    end = re.search(rf"^{level} ", text[start:], re.MULTILINE)
    return text[start : start + end.start()] if end else text[start:]


def plain(code):
    """Return code without whitespace and trailing commas, to ignore line breaks."""
    return re.sub(r"\s+", "", code).replace(",)", ")")


# --- hooks ------------------------------------------------------------------------------------


def specified():
    """Yield (kind, node) of every hook, as the source defines it."""
    for kind, about in KINDS.items():
        source = ast.parse(inspect.getsource(about.spec))
        yield from ((kind, node) for node in source.body[0].body if hasattr(node, "args"))


ARCHITECTURE = (DOCS / "background/architecture.md").read_text(encoding="utf-8")
HEADINGS = {
    "method": "Method",
    "model-group": "Model group",
    "partitioner": "Partitioner",
    "dataset": "Dataset",
    "generator": "Generator",
    "payload-transform": "Payload transform",
    "metric": "Metric",
    "client-sampler": "Client sampler",
    "device-model": "Device model",
    "schedule": "Schedule",
    "tracker": "Tracker",
    "engine": "Engine",
    "backend": "Backend",
}


def test_all_kinds_are_looked_at():
    without_hooks = {"reproduction", "command"}  # files, and functions
    assert set(HEADINGS) == set(KINDS) - without_hooks
    assert not [hook for kind in without_hooks for hook in spec_hooks(kind)]
    found = {(kind, hook.name) for kind, hook in specified()}
    assert found == {(kind, name) for kind in KINDS for name in spec_hooks(kind)}


@pytest.mark.parametrize(
    ("kind", "hook"), [pytest.param(k, h, id=f"{k}-{h.name}") for k, h in specified()]
)
def test_every_hook_has_its_exact_signature(kind, hook, page):
    text = section(page("reference/hooks.md"), f"## {HEADINGS[kind]}")
    assert f'<a id="{kind}-{hook.name}"></a>' in text
    found = section(text, f"### `{hook.name}`")
    assert "**Called** " in found and f"**Returns** `{ast.unparse(hook.returns)}`" in found
    assert ("An example" in found) == bool(example(kind, hook.name)[1])
    line = f"def {hook.name}({ast.unparse(hook.args)}) -> {ast.unparse(hook.returns)}: ..."
    assert plain(line) in plain(found)
    first = ast.get_docstring(hook).splitlines()[0]
    words = [w for w in re.split(r"\W*`+[^`]*`+\W*", first) if w]
    assert words and all(word in found for word in words)


def test_the_plugin_guides_link_to_the_hooks_of_every_kind():
    text = (DOCS / "how-to/plugins/index.md").read_text(encoding="utf-8")
    assert {*re.findall(r"reference/hooks\.md#([\w-]+)\)", text)} >= {*HEADINGS}


def test_the_architecture_page_names_the_hooks_of_a_method():
    text = section(ARCHITECTURE, "## Hooks of a method")
    assert [hook for hook in spec_hooks("method") if f"`{hook}" not in text] == []


def test_the_architecture_page_has_the_same_arguments():
    rows = re.findall(r"^\| `(\w+)\(([^)]*)\)` \|", ARCHITECTURE, re.MULTILINE)
    assert len(rows) == 6
    for hook, arguments in rows:
        assert arguments.split(", ") == spec_hooks("method")[hook]


# --- the command line -------------------------------------------------------------------------


def registered(group, path=""):
    """Yield the names of all commands that the program registers."""
    for command in group.registered_commands:
        yield f"{path} {command.name}".strip()
    for inner in group.registered_groups:
        yield from registered(inner.typer_instance, f"{path} {inner.name}".strip())


def registered_by_plugins():
    """Yield the names of the commands that protofl registers as plugins."""
    for plugin in PLUGINS:
        if plugin.kind == "command":
            loaded = Registry().load("command", plugin.name)
            yield from (
                [plugin.name] if inspect.isfunction(loaded) else registered(loaded, plugin.name)
            )


CONTEXTS = {site_commands.path_of(c): c for c in site_commands.commands()}


@pytest.mark.slow
def test_every_command_is_there(page):
    known = {f"protofl {name}" for name in [*registered(app), *registered_by_plugins()]}
    assert len(known) >= 8
    headings = re.findall(r"^## (protofl .+)$", page("reference/commands.md"), re.MULTILINE)
    assert sorted(headings) == sorted(known)


@pytest.mark.parametrize("path", CONTEXTS)
def test_every_option_has_its_names_default_and_meaning(path, page):
    text = section(page("reference/commands.md"), f"## {path}")
    rows = {row.split(" | ")[0]: row for row in re.findall(r"^\| (`.*) \|$", text, re.MULTILINE)}
    for option in CONTEXTS[path].command.params:
        if option.param_type_name == "argument":
            assert any(option.metavar in key for key in rows), option.metavar
            continue
        row = rows[", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])]
        shown, meaning = option.get_help_record(CONTEXTS[path])
        metavar = re.sub(r"^(-[\w-]+|[ ,/])+", "", shown).replace("|", r"\|")
        kind = metavar.strip("<>").removesuffix(" range").lower()  # <int>, or INTEGER in Typer 0.20
        metavar = site_commands.USUAL.get(kind, metavar)
        if metavar and " \\| " not in row and not metavar.startswith("<"):
            assert metavar in row
        for default in re.findall(r"default: ([^;\])]+)", meaning):
            assert f" | {default} | " in row, (row, default)
        meaning = meaning.replace("; repeatable", "").partition(" (")[0]
        meaning = re.split(r"  \\?\[", meaning)[0]  # Typer 0.20 escapes the bracket
        assert meaning.rstrip(".") in row


def test_the_run_command_has_all_settings(page):
    text = section(page("reference/commands.md"), "## protofl run")
    for name in (name for name, option in OPTIONS.items() if option.panel):
        assert f"`{flag_of(name)}`" in text
    assert "| `--lr-schedule` | `constant` \\| `step` \\| `cosine` \\| `exponential` |" in text
    assert (
        "| `--clients` | `N`, 1 … 10,000,000 | the data set's, otherwise 20 | Clients M |" in text
    )


# --- plugins, methods, payload keys -----------------------------------------------------------


@pytest.mark.parametrize("plugin", [pytest.param(p, id=p.label) for p in PLUGINS])
def test_every_plugin_has_its_options(plugin, page):
    found = Registry().load(plugin.kind, plugin.name)
    if plugin.kind == "method" and not hasattr(found, "donates"):
        assert f"[{plugin.name}]({plugin.name}.md)" in page("reference/methods/index.md")
        return
    if plugin.kind == "command":
        assert re.search(rf"\n## protofl {plugin.name}\b", page("reference/commands.md"))
        return
    text = page("reference/plugins.md")
    kind = "defence" if plugin.kind == "method" else plugin.kind
    (heading,) = re.findall(rf"^### `.*` {{ #{kind}-{plugin.name} }}$", text, re.MULTILINE)
    text = section(text, heading)
    assert found.__doc__.strip().splitlines()[0].rstrip(".") in text
    word = {k: w for w, k in CHOOSING.items()}.get(plugin.kind, plugin.name)
    for option in option_names(getattr(found, "Config", Config)):
        if option == getattr(found, "argument", None):
            assert f"{plugin.name}:{option.upper()}" in heading
        else:
            assert f"| `{word}.{option}` |" in text


@pytest.mark.parametrize("name", [p.name for p in PLUGINS if p.kind == "method"])
def test_what_a_method_sends_is_on_the_page_of_the_wire(name, page):
    method = Registry().load("method", name)
    link = rf"\[{name}\]\(methods/{name}\.md\)&nbsp;([↑↓]+)"
    rows = {
        row.split("`")[1]: row
        for row in page("reference/wire.md").splitlines()
        if row.startswith("| `")
    }
    assert [*rows][: len(RUNTIME_KEYS)] == [*RUNTIME_KEYS]
    words = {key: name for name, key in RUNTIME_KEYS.items()}
    for direction, arrow in (("uploads", "↑"), ("downloads", "↓")):
        for declared, key in declared_keys(method, direction).items():
            row = rows[words.get(RUNTIME.find(declared), declared)]
            (arrows,) = re.findall(link, row)
            assert arrow in arrows
            shape = row.split(" | ")[1]
            assert shape, f"{name} declares {declared!r} with a text; pf.Key gives it a shape"
            assert not isinstance(key, protofl.Key) or shape == key.shape


# --- the Python pages -------------------------------------------------------------------------


ANCHOR = re.compile(r'^<a id="protofl\.([\w.]+)"></a>$', re.MULTILINE)


def test_every_public_name_is_on_its_page(page):
    public, further = page("reference/python.md").split("\n## Further types\n")
    further, errors = further.split("\n## Errors\n")
    found = ANCHOR.findall(public + errors)
    modules = ("backends", "datasets", "models", "schedules")
    names = {*protofl.__all__} - {"functional", "plots", "__version__", *modules}
    names |= {f"{m}.{name}" for m in modules for name in getattr(protofl, m).__all__}
    assert {*found} == names and len(found) == len(names)
    assert not {*ANCHOR.findall(further)} & {*found}


@pytest.mark.parametrize("module", [functional, plots])
def test_every_function_is_on_its_page(module, page):
    name = module.__name__.rpartition(".")[2]
    found = [n.removeprefix(f"{name}.") for n in ANCHOR.findall(page(f"reference/{name}.md"))]
    assert sorted(found) == sorted(module.__all__)


THEIRS = set(
    "Any BaseException Callable Collection Container DataFrame Exception Figure Hashable IO Image "
    "Iterable Iterator Mapping NDArray NoReturn None Sequence "
    "AbstractContextManager Unpack Path Module Optimizer Parameter Tensor Generator Literal".split()
)
"""Types of Python, torch, NumPy, pandas and Pillow."""


def types_in(page):
    """Return the names of types in the signatures of a page."""
    found = set()
    for block in re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if block.startswith("def "):
            function = ast.parse(block).body[0]
            notes = [a.annotation for a in ast.walk(function.args) if isinstance(a, ast.arg)]
            for note in filter(None, [*notes, function.returns]):
                found |= {*re.findall(r"\b[A-Z]\w+", ast.unparse(note))}
    for kind in re.findall(r"^- `\w+` \(`([^`]+)`\): ", page, re.MULTILINE):
        found |= {*re.findall(r"\b[A-Z]\w+", kind)}
    return found


@pytest.mark.parametrize("name", ["hooks", "python", "functional", "plots"])
def test_every_type_of_a_signature_is_documented(name, page):
    text = page(f"reference/{name}.md")
    found = types_in(text)
    assert len(found) > 2
    anchors = ANCHOR.findall(text) + ANCHOR.findall(page("reference/python.md"))
    assert found - THEIRS - {anchor.rpartition(".")[2] for anchor in anchors} == set()


def test_a_type_that_is_not_documented_is_noticed():
    page = "```py\ndef f(x: Mapping[str, Odd], *, y: int = 3) -> Odder | None: ...\n```\n"
    assert types_in(page) - THEIRS == {"Odd", "Odder"}


KEPT = (
    "README.md",
    "docs/how-to/mix-methods.md",
    pytest.param("docs/reference/commands.md", marks=pytest.mark.satellites),
    "docs/reference/wire.md",
)


@pytest.mark.parametrize("name", KEPT)
def test_the_tables_in_the_repository_agree_with_the_code(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(site_hooks.KEPT.findall(text)) == 1
    assert text == site_hooks.kept(text), "update it: python docs/_build/site_hooks.py"


def test_one_command_updates_the_kept_parts_of_all_pages(tmp_path):
    (tmp_path / "docs/reference").mkdir(parents=True)
    stale = "<!-- kept: families -->\n\nstale\n\n<!-- end -->\n"
    for name in ("README.md", "docs/reference/a.md"):
        (tmp_path / name).write_text(stale)
    (tmp_path / "docs/b.md").write_text("no kept part\n")
    changed = site_hooks.update_kept(tmp_path)
    assert changed == [tmp_path / "README.md", tmp_path / "docs/reference/a.md"]
    assert "| prototypes | " in changed[0].read_text() and "stale" not in changed[0].read_text()
    assert site_hooks.update_kept(tmp_path) == []


def test_an_outdated_table_is_updated():
    old = "# A\n\n<!-- kept: api hookimpl -->\n\nold\n\n<!-- end -->\n\nafter\n"
    now = site_hooks.kept(old)
    assert "old" not in now and "### `hookimpl`" in now and now.endswith("<!-- end -->\n\nafter\n")
    assert site_hooks.kept(now) == now


def test_public_dataclasses_describe_their_attributes():
    doors = (protofl, protofl.backends, protofl.datasets)
    public = [getattr(door, name) for door in doors for name in door.__all__] + [ClientCard]
    found = set()
    for one in filter(dataclasses.is_dataclass, public):
        for field in dataclasses.fields(one):
            about = next((c.__doc__ for c in one.__mro__ if field.name in (c.__doc__ or "")), "")
            if not field.name.startswith("_") and not about:
                found.add(f"{one.__name__}.{field.name}")
    assert not found


# --- links ------------------------------------------------------------------------------------


def test_links_lead_to_files():
    """Check relative links of all pages; mkdocs checks the anchors of headings."""
    broken = []
    for path in HAND_WRITTEN:
        text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            if "://" not in link and not (path.parent / link).exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert not broken


def test_links_to_generated_sections_lead_to_an_anchor(page):
    for path in DOCS.rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        assert "][protofl" not in text, path
        for link in re.findall(r"\]\(([^)\s]*#(?:protofl\.|\w+-\w+_)[^)\s]*)\)", text):
            place, _, anchor = link.partition("#")
            target = (path.parent / place).resolve() if place else path
            if target.suffix == ".md" and target.parent.name == "reference":
                there = page(target.relative_to(DOCS).as_posix())
                assert f'<a id="{anchor}"></a>' in there, (path.name, link)


# --- the site ---------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation():
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2].splitlines()
    listed = [m[1] for line in lines if (m := re.match(r"\s*- (?:[^#]*: )?([\w/.-]+\.md)$", line))]
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    nav = [{"Home": "index.md"}, {"Reference": [{"Methods": [site_methods.INDEX]}]}]
    site_hooks.on_config({"nav": nav})
    methods = nav[1]["Reference"][0]["Methods"]
    by_name = sorted(methods[1:], key=lambda path: path.removesuffix(".md"))
    assert nav[0] == {"Home": "index.md"} and methods[1:] == by_name
    assert sorted({*listed, *methods}) == sorted(pages)
    assert not {*listed} & {*methods[1:]}, "the hook of the site adds the pages of methods"
    assert listed.count(methods[0]) == 1


def test_the_pages_of_methods_say_what_clients_share(tmp_path):
    for name, text in {"one": "models", "two": "heads", "three": "heads"}.items():
        (tmp_path / f"{name}.md").write_text(f"---\nshares: {text}\n---\n\n# {name}\n")
    (tmp_path / "index.md").write_text("# Methods\n")
    found = site_methods.families(tmp_path)
    assert [*found.items()] == [("heads", ["three", "two"]), ("models", ["one"])]
    (tmp_path / "four.md").write_text("# four\n")
    with pytest.raises(ValueError, match=r"(?s)four\.md does not say .*shares: WHAT") as error:
        site_methods.families(tmp_path)
    assert "known: " in str(error.value)
    methods = {*own_plugins("method")}
    assert {name for names in site_methods.families().values() for name in names} == methods


def test_every_generated_part_is_known():
    for path in (ROOT / "README.md", *DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        marks = site_hooks.MARK.findall(text)
        assert len(marks) == text.count("<!-- generated:"), path
        marks += (found := [m[1:] for m in site_hooks.KEPT.findall(text)])
        assert len(found) == text.count("<!-- kept:") == text.count("<!-- end -->"), path
        assert all(name in site_hooks.PARTS for name, _ in marks), path


def test_the_landing_page_has_one_picture_and_three_commands():
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    begins = [" ".join(line.split()[:2]) for line in block.splitlines()]
    assert begins == ["pip install", "protofl run", "protofl report"]
    assert text.count("<!-- generated: figure ") + text.count("![") + text.count("<img") == 1
    assert len(re.findall(r"^### You ", text, re.MULTILINE)) == 3


def test_the_site_sorts_tables_by_the_script_of_reports(tmp_path):
    site_hooks.on_post_build({"site_dir": str(tmp_path)})
    look = Path(protofl_workbench.__file__).parent / "reporting/look/page.js"
    assert (tmp_path / site_hooks.SCRIPT).read_bytes() == look.read_bytes()
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"extra_javascript: [{site_hooks.SCRIPT}]" in settings
    for page in ("reference/benchmark.md", "reference/methods/index.md"):
        assert "\n<div data-sort markdown>\n\n" in (DOCS / page).read_text(encoding="utf-8")
