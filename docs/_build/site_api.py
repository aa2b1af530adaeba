"""The Python reference, from signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cached_property, partial
from types import FunctionType, ModuleType
from typing import Any

import protofl
from markdown_tables import code
from site_hook_texts import signature
from site_text import prose

PAGE = "python.md"
ALIASES = {
    "LossData": (
        "The type that `before_training` returns and `local_loss` receives: a mapping of "
        "names to tensors, numbers, strings, None, or mappings, lists and tuples of them."
    ),
    "Terms": "The return type of `local_loss`: a mapping of names to weighted scalars.",
    "Uploads": "The uploads of a round, `{client id: payload}`, in ascending client id.",
    "Runs": (
        "Input of plots and comparisons: a run, a result of [`run`](#protofl.run), a run "
        "folder or a folder of runs; a list of these; or a mapping of labels to these. "
        "Runs without labels are grouped by the options in which they differ."
    ),
    "RunLike": "A run, a result of [`run`](#protofl.run), or the folder of a run.",
    "Labels": "New names of groups: {group: label}, or texts `GROUP=LABEL`.",
    "Trial": "A trial of a recorded run, with its lines.",
    "Row": (
        "A line of [the record](record.md): the figures of a round, as attributes and as a mapping."
    ),
    "StyleOptions": (
        'Keyword arguments of all figures: `width`, `"column"` (3.3 in), `"page"` (6.9 in) or '
        'inches, and `font`, `"serif"` or `"sans"`.'
    ),
    "Follow": (
        "A function that receives every event of a batch of runs, in the thread that "
        "waits for them."
    ),
    "Features": (
        "A function from samples B×… to features B×K′, for `train_features` and `class_prototypes`."
    ),
    "ConfigT": "The type of the options of a method, `Config` in `pf.Client[Config]`.",
    "LossName": 'The loss of a regression: `"mse"` or `"huber"`.',
    "TaskName": 'A task: `"classification"`, `"multilabel"` or `"regression"`.',
    "Kind": 'The kind of a sample: `"image"`, `"series"`, `"tokens"` or `"table"`.',
    "Progress": (
        "A function that receives every event of a run ([`events`](#protofl.events)), in "
        "the thread of the run."
    ),
    "Distance": (
        'The distance of features to prototypes: `"l2"` (Euclidean) or `"mse"` (mean '
        "squared difference)."
    ),
    "Rows": (
        'The rows of a loss term: the class means of the batch (`"class"`) or every '
        'sample (`"sample"`).'
    ),
    "Closable": "An object with `close()`.",
    "Extra": "Plugin classes that are not installed, `{(kind, name): class}`.",
    "Report": "A function that receives a line of text for the user.",
    "ClientState": (
        "The data of a client behind [`Client`](#protofl.Client): model, modules, "
        "samples, state. It lives in a host and may change in any release."
    ),
    "Plugin": (
        "An installed plugin that has not been imported: `kind`, `name`, `version`, "
        "`distribution`, `target`."
    ),
    "Preparation": "A function from stored samples to the input of a model.",
    "Handle": (
        "A backend's reference to a host: `do(job)` returns the reply, `close()` ends the host."
    ),
    "Read": "A function that turns received bytes into a download for hooks.",
    "StreamKey": "A number or a word of the name of a random stream ([seeds](seeds.md)).",
    "Field": """\
`pf.Field(default, *, ge, gt, le, lt, alias, description, consent, from_data)` declares an option of a
[`Config`](#protofl.Config); it is [pydantic's `Field`](https://docs.pydantic.dev/latest/api/fields/).

- `description` gives the paper's symbol and says what the ends of the range do.
- `alias` is the name for users where the symbol is a Python keyword (`lambda`).
- A default of None means that the variant, another option or the hook `resolve` sets the value. The
  annotation is then the final type.
- `consent=True` marks an option that only the user may set, such as opening a pickle. The command
  line and the arguments of `pf.run` may set it; a file or a run folder may not.
- `from_data=True` marks an option of a model group for which a data set may have a default.""",
}
"""Descriptions of names that have no docstring of their own."""
TYPES = (
    "protofl_workbench.comparing.comparison.Comparison",
    "protofl_workbench.comparing.figure_table.FigureTable",
    "protofl_workbench.comparing.figure_table.GroupFigure",
    "protofl_workbench.comparing.figure_table.Difference",
    "protofl_workbench.comparing.run_groups.Group",
    "protofl_workbench.reproductions.reproduction.Reproduction",
    "protofl_workbench.reproductions.reproduction.TableLine",
    "protofl_workbench.reproductions.reproduction.PublishedFigure",
    "protofl_workbench.reproductions.reproduction.ReadFigure",
    "protofl_workbench.sweeps.sweep_results.SweepResult",
    "protofl_workbench.sweeps.sweep_results.PointResult",
    "protofl_workbench.sweeps.sweep_results.PointRun",
    "protofl_workbench.reproductions.reproduction_result.ReproductionResult",
    "protofl_workbench.reproductions.reproduction_result.CellResult",
    "protofl.data.batches.Samples",
    "protofl.data.batches.Table",
    "protofl.federation.jobs.pool_interface.ClientFiles",
    "protofl.federation.jobs.pool_interface.AsynchronousPool",
    "protofl.federation.jobs.pool_interface.Presence",
    "protofl.federation.time.virtual_clock.VirtualClock",
    "protofl.federation.time.device_model.Moment",
    "protofl.system.secret_stream.SecretStream",
    "protofl.hooks.views.run_info.ClientCard",
    "protofl.hooks.wire.payload.GlobalState",
    "protofl.hooks.views.batch.PerStep",
    "protofl.hooks.plugin.loss.Loss",
    "protofl.hooks.models.modules.CombinedModule",
    "protofl.data.split.Split",
    "protofl_workbench.recorded.recorded_split.RecordedSplit",
    "protofl.system.options.settings.Settings",
    "protofl.hooks.plugin.members.Choice",
    "protofl.hooks.discovery.registry.Registry",
    "protofl.hooks.models.optimisers.LearningRateSchedule",
    "protofl_workbench.recorded.new_data.Evaluation",
    "protofl_workbench.recorded.scorer.Scorer",
    "protofl_workbench.recorded.observed.Observed",
    "protofl_workbench.recorded.observed.Prototypes",
    "protofl_workbench.recorded.observed.Features",
    "protofl_workbench.recorded.observed.Images",
    "protofl_workbench.recorded.predicted.Predicted",
    "protofl_workbench.publishing.publication.Publication",
    "protofl_workbench.publishing.verification.Verification",
    "protofl_workbench.publishing.verification.Repeated",
    "protofl_workbench.publishing.layout.Digests",
)
"""Classes that programs receive and need not import."""


SPACES = {
    name: space
    for space in ("backends", "datasets", "models", "schedules")
    for name in getattr(protofl, space).__all__
}
"""{name: the module of `protofl` that it is in}, of types for plugins of a kind."""
NAMESPACES = (
    "protofl.functional.",
    "protofl.plots.",
    *(f"protofl.{space}." for space in {*SPACES.values()}),
)
"""Public modules; a name in one is shown with it."""


def api(*names: str) -> str:
    """Return the sections of several names: public names, or paths ``protofl.FOLDER.MODULE.NAME``."""
    return "\n\n".join(
        section(n if n.startswith(("protofl.", "protofl_workbench.")) else f"protofl.{n}")
        for n in names
    )


def types() -> str:
    """Return the sections of types that signatures name and programs need not import."""
    further = [name for name in ALIASES if name not in protofl.__all__]
    return api(*further, *TYPES)


def section(path: str) -> str:
    """Return the section of one name."""
    name = path.rpartition(".")[2]
    if path == f"protofl.{name}" and name in ALIASES:
        return f'<a id="protofl.{name}"></a>\n\n### `{name}`\n\n{ALIASES[name]}'
    found = named(path)
    head = [f'<a id="protofl.{name}"></a>', "", f"### `{name}`", "", ""]
    apart = path.startswith(NAMESPACES)
    if path.count(".") > 1 and not apart:
        head += [f"Defined in `{path.rpartition('.')[0]}`.", ""]
    elif apart:
        shown = path.removeprefix("protofl.")
        title = shown if shown.startswith(("backends.", "datasets.")) else name
        head = [f'<a id="{path}"></a>', "", f"### `{title}`", "", ""]
    return "\n".join(head) + about(name, found, PAGE if "plots" in path else "")


def members_of(package: str) -> str:
    """All public names of a package, under a heading for each module that defines them."""
    public = pkgutil.resolve_name(package)
    modules: dict[str, list[str]] = {}
    for name in public.__all__:
        modules.setdefault(getattr(public, name).__module__, []).append(name)
    parts = []
    for module in sorted(modules):
        first = (inspect.getdoc(importlib.import_module(module)) or "").partition("\n")[0]
        parts.append(f"## {module.rpartition('.')[2].replace('_', ' ').capitalize()}\n\n{first}")
        parts += [section(f"{package}.{name}") for name in modules[module]]
    return "\n\n".join(parts)


def named(path: str) -> Any:  # noqa: ANN401 - it may be anything
    """Return the object at a dotted path."""
    return pkgutil.resolve_name(path)


def about(name: str, found: Any, page: str = "") -> str:  # noqa: ANN401 - it may be anything
    """Return the body of a section; links to public names lead to the given page."""
    if isinstance(found, ModuleType):
        parts = [documented(found)]
        for inner, value in vars(found).items():
            own = isinstance(value, type) and value.__module__ == found.__name__
            if own and not inner.startswith("_"):
                parts.append(f"**`{name}.{inner}`** {documented(value)}")
        return "\n\n".join(parts)
    if isinstance(found, type):
        return "\n\n".join([*constructor(name, found), documented(found, page), *members(found)])
    return f"```py\n{signature(found, name)}\n```\n\n{documented(found, page)}"


def constructor(name: str, found: type) -> list[str]:
    """Return the signature of a class whose docstring documents its arguments."""
    made = vars(found).get("__init__")
    told = "Args:" in (inspect.getdoc(found) or "")  # others are made by the runtime
    if not (told and isinstance(made, FunctionType)):
        return []
    line = signature(made, name, bound=True).removeprefix("def ")
    return [f"```py\n{line.replace(' -> None: ...', '')}\n```"]


def members(found: type) -> list[str]:
    """Return the attributes of a class as a list, then each method."""
    ours = [c for c in found.__mro__ if c.__module__.startswith("protofl")]
    all_: dict[str, Any] = {}
    for each in ours:
        all_ = all_ | {n: v for n, v in vars(each).items() if n[0] != "_" and n not in all_}
    attributes, methods = [], []
    for name, value in all_.items():
        inner = getattr(value, "func", None) if isinstance(value, cached_property) else None
        read = getattr(value, "fget", inner)
        if read is not None and read.__doc__:
            kind = inspect.signature(read).return_annotation
            words = " ".join(documented(read).split()).replace("**Raises** - ", "Raises ")
            attributes.append(f"- {code(name)} ({code(str(kind))}): {words}")
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and function.__doc__:
            bound = not isinstance(value, staticmethod)
            line = signature(function, name, bound=bound)
            head = f"#### `{found.__name__}.{name}`"  # so that the search finds it
            methods.append(f"{head}\n\n```py\n{line}\n```\n\n{documented(function)}")
    return (["\n".join(attributes)] if attributes else []) + methods


def documented(found: object, page: str = "") -> str:
    """Return a docstring as Markdown, with public names as links to their sections."""
    return prose(inspect.getdoc(found) or "", partial(linked, page=page))


def linked(name: str, page: str = PAGE) -> str:
    """Return a name in code, with a link if it is public."""
    bare = name.removesuffix("()").removeprefix("protofl.").removeprefix("pf.")
    parts = bare.split(".")
    short = parts[1] if parts[0] in SPACES.values() and len(parts) > 1 else parts[-1]
    if short in SPACES:
        return f"[`{name}`]({page}#protofl.{SPACES[short]}.{short})"
    bare = bare.partition(".")[0]
    is_argument = name == "report"  # of a hook
    modules = {*protofl._MODULES} - {"events"}  # which has a section
    if bare in protofl.__all__ and bare not in modules and not is_argument:
        return f"[`{name}`]({page}#protofl.{bare})"
    return code(name)
