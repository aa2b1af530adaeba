"""Tests that the source follows the rules of the architecture."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import protofl
from protofl.hooks.discovery import satellites
from protofl.system.files.tables import parse_toml

ROOT = Path(__file__).parents[2]
SATELLITES = ("protofl_flower", "protofl_ray", "protofl_privacy")
"""Packages of distributions in ``plugins``, which import public names only."""
PACKAGES = {
    "protofl": ROOT / "core/protofl",
    "protofl_plugins": ROOT / "plugins/protofl_plugins",
    "protofl_cli": ROOT / "cli/protofl_cli",
    **{name: ROOT / "plugins" / name / "src" / name for name in SATELLITES},
}
FILES = {
    path: package for package, folder in PACKAGES.items() for path in sorted(folder.rglob("*.py"))
}
PLUGINS = ("protofl_plugins", *SATELLITES)
WORKBENCH = sorted((ROOT / "core/protofl_workbench").rglob("*.py"))


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes(path):
    return [*ast.walk(tree(path))]


def of(package):
    return [path for path, owner in FILES.items() if owner == package]


def imports(path):
    """Yield (module, name) of every import. The name is "" for ``import MODULE``."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def tops(path):
    return {module.split(".")[0] for module, _ in imports(path)}


def text_of(path):
    return path.relative_to(ROOT)


def test_there_is_something_to_look_at():
    assert all(len(of(package)) >= 3 for package in PACKAGES)


def test_the_core_imports_neither_plugins_nor_the_cli():
    for path in of("protofl"):
        assert not tops(path) & {*PLUGINS, "protofl_cli"}, text_of(path)


def test_the_cli_reaches_plugins_through_entry_points_alone():
    for path in of("protofl_cli"):
        assert not tops(path) & {*PLUGINS}, text_of(path)


def test_only_entry_points_lead_to_the_satellites():
    for path, package in FILES.items():
        assert not tops(path) & {*SATELLITES} - {package}, text_of(path)


def test_plugins_import_public_names_only():
    """Check it for the satellites' commands too, which use the door of the command line."""
    doors = ("protofl", "protofl.testing", "protofl_cli.public")
    public = {module: importlib.import_module(module) for module in doors}
    for path in [path for package in PLUGINS for path in of(package)]:
        for module, name in imports(path):
            top = module.split(".")[0]
            if top == FILES[path] or not top.startswith("protofl"):
                continue
            assert module in public, f"{text_of(path)} imports {module}: not public"
            if name:
                assert name in public[module].__all__, f"{text_of(path)}: {module}.{name}"


def test_errors_name_the_satellite_of_each_plugin():
    for package in SATELLITES:
        entries = project(ROOT / "plugins" / package)["entry-points"]
        entries.pop("protofl.report_sections", None)  # nobody types their names
        names = [name for group in entries.values() for name in group]
        extra = package.removeprefix("protofl_")
        assert sorted(names) == sorted(satellites.SATELLITES[extra])
        assert f"./plugins/{package}; " in satellites.how_to_install(names[0])


# --- dependencies ---------------------------------------------------------------------------------

DISTRIBUTIONS = {
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "mlflow": "mlflow-skinny",
}
"""{imported name: distribution} where they differ by more than hyphens."""


def project(folder):
    """Return the table ``project`` of a folder's ``pyproject.toml``."""
    return parse_toml((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def distribution(text):
    """Return the normalised name of a distribution: ``typing-extensions`` of its requirement."""
    return re.split(r"[\s<>=!;\[(]", text)[0].lower().replace("_", "-")


def run_time_imports(node, *, guarded=False):
    """Yield (top-level name, True if an ImportError is caught) of the imports of a tree."""
    if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from ((alias.name.split(".")[0], guarded) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield node.module.split(".")[0], guarded
    for child in ast.iter_child_nodes(node):
        catches = isinstance(node, ast.Try) and child in node.body
        catches = catches and "ImportError" in "".join(map(ast.unparse, node.handlers))
        yield from run_time_imports(child, guarded=guarded or catches)


@pytest.mark.parametrize("package", ["protofl", *SATELLITES])
def test_dependencies_are_what_is_imported(package):
    """Check the files of a distribution. An extra may have what its plugins alone import."""
    whole = package == "protofl"
    about = project(ROOT if whole else ROOT / "plugins" / package)
    needed = {*map(distribution, about["dependencies"])} - {"protofl"}
    extras = about.get("optional-dependencies", {}).items()
    lines = [line for extra, each in extras if extra not in ("dev", "docs") for line in each]
    optional = needed.union(map(distribution, lines))
    used = set()
    ours = [path for path, owner in FILES.items() if owner not in SATELLITES]
    for path in [*ours, *WORKBENCH] if whole else of(package):
        for top, guarded in run_time_imports(tree(path)):
            if top.startswith("protofl") or top in sys.stdlib_module_names:
                continue
            used.add(found := distribution(DISTRIBUTIONS.get(top, top)))
            known = optional if guarded or FILES.get(path) == "protofl_plugins" else needed
            assert found in known, f"{text_of(path)} imports {top}: not a dependency"
    assert needed - used == set(), "dependencies that nothing imports"


def test_plugins_read_public_names_only():
    spaces = {f"pf.{name}": getattr(protofl, name) for name in protofl._MODULES}
    for path in [path for package in PLUGINS for path in of(package)]:
        names = {"pf": protofl, **spaces}
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module == "protofl":
                names |= {
                    alias.asname or alias.name: getattr(protofl, alias.name)
                    for alias in node.names
                    if alias.name in protofl._MODULES
                }
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in names:
                space = names[ast.unparse(node.value)]
                assert node.attr in space.__all__, f"{text_of(path)}: {ast.unparse(node)}"


def test_a_method_imports_no_other_method():
    for path in of("protofl_plugins"):
        for module, name in imports(path):
            whole = f"{module}.{name}"
            assert not whole.startswith("protofl_plugins.methods"), f"{text_of(path)}: {whole}"


def test_plugin_managers_live_in_one_file():
    found = set()
    for path in FILES:
        if "pluggy" in tops(path):
            found.add(text_of(path).as_posix())
        mentioned = {getattr(n, "attr", getattr(n, "id", "")) for n in nodes(path)}
        if "PluginManager" in mentioned:
            assert path.name == "composition.py", text_of(path)
    assert found == {
        "core/protofl/hooks/plugin/composition.py",
        "core/protofl/hooks/hookspecs/__init__.py",
    }


def test_home_folders_are_asked_for_in_one_file():
    """`protofl.expand_user` says what is wrong where pathlib raises a RuntimeError."""
    for path in [*sorted((ROOT / "benchmarks").rglob("*.py")), *WORKBENCH, *FILES]:
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and path.name != "home.py":
                asks = node.attr == "expanduser" or ast.unparse(node) == "Path.home"
                assert not asks, f"{text_of(path)}:{node.lineno}: use protofl.expand_user"


def test_rich_is_imported_by_one_file():
    found = [path.name for path in FILES if "rich" in tops(path)]
    assert set(found) <= {"render.py"}


@pytest.mark.parametrize(
    "code",
    [
        "import protofl",
        "import protofl; protofl.hookimpl; protofl.Config; protofl.UsageError",
        "from protofl.hooks.discovery.registry import Registry; assert Registry().plugins()",
    ],
)
def test_names_are_listed_without_torch(code):
    code += "; import sys; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def names_for_type_checkers(path):
    """Return {name: module} of the imports under ``if TYPE_CHECKING``."""
    (block,) = (
        node
        for node in tree(path).body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    imported = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module for node in imported for alias in node.names}


@pytest.mark.parametrize("space", ["", "backends", "datasets", "functional", "models"])
def test_type_checkers_see_the_public_names(space):
    module = getattr(protofl, space) if space else protofl
    homes = names_for_type_checkers(Path(module.__file__))
    assert dir(module) == sorted(homes) == sorted({*module.__all__} - {"__version__"})
    for name, home in homes.items():
        value = getattr(module, name)
        assert inspect.getdoc(value), name
        assert value is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="no_such_name"):
        module.no_such_name  # noqa: B018
    assert protofl.__version__ == importlib.metadata.version("protofl")


def public(body, outer=""):
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if node.name.startswith("_"):
                continue
            yield f"{outer}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{outer}{node.name}.")


def overload(node):
    return any(getattr(d, "id", getattr(d, "attr", "")) == "overload" for d in node.decorator_list)


def test_everything_public_has_a_docstring():
    missing = []
    for path in FILES:
        if not ast.get_docstring(tree(path)):
            missing.append(str(text_of(path)))
        for name, node in public(tree(path).body):
            if not ast.get_docstring(node) and not overload(node):
                missing.append(f"{text_of(path)}: {name}")
    assert not missing


def test_plugins_keep_nothing_on_themselves():
    for path in of("protofl_plugins"):
        if path.parent.name not in ("methods", "payload_transforms"):
            continue
        inside = {  # networks keep their layers as attributes; plugins keep nothing
            part
            for node in nodes(path)
            if isinstance(node, ast.ClassDef)
            and any(ast.unparse(base).endswith("Module") for base in node.bases)
            for part in ast.walk(node)
        }
        for node in nodes(path):
            if node in inside:
                continue
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                assert getattr(node.value, "id", "") != "self", f"{text_of(path)}:{node.lineno}"


def test_no_public_name_hides_behind_a_module():
    """Importing a module of the same name would replace the public name."""
    modules = {path.stem for path in (ROOT / "core" / "protofl").glob("*.py")} | {
        "data",
        "functional",
        "hookspecs",
    }
    assert set(protofl.__all__) & modules == {"functional"}
