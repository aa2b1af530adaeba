"""Models of ``list-plugins``, ``show`` and ``check``."""

from __future__ import annotations

from typing import Any, Literal

from protofl_cli.json.base import Output


class ListedPlugin(Output):
    """An installed plugin."""

    kind: str
    """Kind, as of `--kind`."""
    name: str
    """Name."""
    version: str
    """Version of the package."""
    distribution: str
    """Package."""
    hooks: list[str]
    """Hooks that the plugin has."""
    status: str
    """`ok`, or `broken`, `clash` or `unusable` with the reason."""


ListedPlugins = list[ListedPlugin]


class Checked(Output):
    """A check of a contract."""

    check: str
    """Name of the check."""
    words: str
    """Description of the check."""
    outcome: Literal["passed", "failed", "not reached", "skipped"]
    """Result; a check is not reached if another failed check prevents it."""
    why: str
    """Reason of the result, or a remark; may be empty."""
    seconds: float
    """Duration in seconds."""


class Check(Output):
    """The checks of a plugin."""

    plugin: str
    """KIND/NAME."""
    target: str
    """MODULE:CLASS, or the file."""
    distribution: str
    """Package; `this program` for a class that is not installed."""
    version: str
    """Version of the package."""
    passed: int
    """Number of passed checks."""
    failed: int
    """Number of failed checks; the exit code is 1 if there are any."""
    not_reached: int
    """Number of checks that could not run."""
    skipped: int
    """Number of skipped checks."""
    checks: list[Checked]
    """The checks, in their order."""


# --- show -----------------------------------------------------------------------------------------


class Option(Output):
    """An option of a plugin."""

    option: str
    """Name, as `--set` takes it."""
    default: str
    """Default as text; `required` without one."""
    range: str
    """Accepted values as text."""
    description: str
    """Effect."""


class Hook(Output):
    """A hook of a plugin."""

    hook: str
    """Name."""
    description: str
    """First line of its docstring; `(the default)` for hooks of a round that the method lacks."""


class Key(Output):
    """A declared key of payloads."""

    key: str
    """Name; `PART/*` stands for all tensors under a prefix."""
    shape: str
    """Shape of the tensor; empty if nothing declares one."""
    meaning: str
    """Content of the tensor."""
    reveals: str
    """Facts about the data of clients that the key reveals."""


class Deviation(Output):
    """A difference between a paper and its published code."""

    option: str
    """Option that chooses between both."""
    equation: str
    """Place in the paper."""
    paper: str
    """Value of the paper."""
    official: str
    """Value of the published code."""
    note: str
    """Difference from the paper, in words."""


class Architecture(Output):
    """An architecture of a model group."""

    client: int
    """Client i gets architecture i mod the number of architectures."""
    architecture: str
    """Name."""
    head: str
    """Kind of the classifier."""
    own_width: int
    """Feature width with `--feature-dim native`."""
    parameters: int
    """Number of parameters."""
    forward_flops: float
    """FLOPs of the forward pass of one sample."""


class Reproduction(Output):
    """A reproduction of a collection."""

    reproduction: str
    """Name, as `protofl reproduce` takes it."""
    place: str
    """Table or figure of the paper."""
    title: str
    """Title."""


class ShownPlugin(Output):
    """A plugin; parts that its kind lacks are null."""

    plugin: str
    """KIND/NAME."""
    distribution: str
    """Package."""
    version: str
    """Version of the package."""
    target: str
    """MODULE:CLASS."""
    text: str
    """Documentation."""
    options: list[Option] | None
    """Options of the plugin."""
    hooks: list[Hook]
    """Hooks of the plugin."""
    terms: dict[str, str] | None
    """Meaning of each loss term of a method."""
    uploads: list[Key] | None
    """Keys of the uploads of a method; null if it does not declare them."""
    downloads: list[Key] | None
    """Keys of the downloads of a method; null if it does not declare them."""
    run_defaults: dict[str, str] | None
    """Options of a run that a method sets, by the option that leads to them."""
    deviations: list[Deviation] | None
    """Differences of the published code of a method."""
    ablations: dict[str, str] | None
    """Options of each ablation of the paper of a method."""
    facts: dict[str, str] | None
    """Other facts about a model group, data set or command, by name."""
    architectures: list[Architecture] | None
    """Architectures of a model group; null if they depend on an argument."""
    reproductions: list[Reproduction] | None
    """Reproductions of a collection."""
    others: list[str]
    """Other kinds with a plugin of this name."""


class ShownHook(Output):
    """A hook of a kind of plugins."""

    hook: str
    """Name."""
    kind: str
    """Kind of plugins."""
    signature: str
    """Python signature."""
    called: str
    """When it is called."""
    returns: str
    """Return value of the hook."""
    text: str
    """Documentation."""
    example_of: str
    """Plugin from which the example is taken; empty if it is written for the page."""
    example: str
    """Example; may be empty."""
    plugins: list[str]
    """Plugins with this hook."""


class WireKey(Output):
    """A key of payloads."""

    name: str
    """Name."""
    shape: str
    """Shape of the tensor."""
    meaning: str
    """Content of the tensor."""
    reveals: str
    """Facts about the data of clients that the key reveals."""
    methods: dict[str, str]
    """Methods with this key: ↑ to the server, ↓ to a client, or both."""


class NamedSchema(Output):
    """A schema of the JSON of a command."""

    command: str
    """Words of the command."""
    name: str
    """Name of the schema, as `protofl show schema/NAME` takes it."""


ShownPage = ShownPlugin | list[ShownHook] | list[WireKey] | list[NamedSchema] | dict[str, Any]
"""`show NAME`, `show hook/NAME`, `show wire`, `show schema`; `show machine` with texts by name, and
`show schema/NAME` with a JSON Schema."""
