"""Models of ``list-plugins``, ``show``, ``check`` and ``card``."""

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


# --- card -----------------------------------------------------------------------------------------


class CardKey(Output):
    """A declared key of a payload and its measured bytes."""

    direction: Literal["up", "down"]
    """Direction: to the server, or to a client."""
    name: str
    """Key, as declared."""
    shape: str
    """Declared shape; empty if nothing declares one."""
    meaning: str
    """Content."""
    formula: str
    """Bytes as a formula of the sizes of the shape."""
    measured: list[int | None]
    """Measured bytes in one payload, by sizes (C, K); null where the key was not sent."""


class CardPayload(Output):
    """The size of one payload at one pair (C, K)."""

    direction: Literal["up", "down"]
    """Direction."""
    classes: int
    """Number of classes C."""
    width: int
    """Feature width K."""
    bytes: int
    """Bytes of all tensors."""
    recorded_bytes: int
    """Bytes in the record of a run, with the header of the file format."""
    recorded_floats: int
    """Floats in the record of a run."""


class Spent(Output):
    """The cost of a round."""

    client_seconds: float
    """Processor seconds of the clients' training."""
    server_seconds: float
    """Processor seconds of the rest of the round, without evaluation."""
    client_calls: int
    """Calls of ATen in the clients' training."""
    server_calls: int
    """Calls of ATen of the server."""
    client_multiply_adds: int
    """Multiply-adds of the clients' training."""
    server_multiply_adds: int
    """Multiply-adds of the server."""


class Cost(Output):
    """The cost of a method beside that of `local`."""

    method: Spent
    """One round of the method."""
    baseline: Spent
    """One round of `local`."""
    ratios: list[float]
    """Processor time of the clients' training, method / local, of each pair of rounds."""
    server_seconds: float
    """Median processor seconds of the server in a round."""
    models: str
    """Model group of both."""


class Measured(Output):
    """Sizes and costs of a method, measured on toy problems."""

    keys: list[CardKey]
    """Declared keys."""
    payloads: list[CardPayload]
    """Sizes of payloads."""
    cost: Cost | None
    """Cost; null if it could not be measured."""
    not_measured: dict[str, str]
    """Reasons why `payloads` or `cost` could not be measured."""
    versions: dict[str, str]
    """Versions of protofl and torch, and the processor."""


class BenchmarkFigure(Output):
    """The method in a setting of the benchmark."""

    setting: str
    """Name of the setting."""
    label: str
    """Description of the setting."""
    seeds: int
    """Number of finished seeds."""
    accuracy: float | None
    """Mean accuracy, 0 to 1; null without a run."""
    low: float | None
    """Lower end of the 95 % interval over seeds."""
    high: float | None
    """Upper end."""
    local: float | None
    """Accuracy of `local`."""
    against_local: str
    """`better`, `worse` or `no significant difference`; may be empty."""
    baseline: str
    """Why comparisons with `local` may flatter other methods; may be empty."""
    rank: int | None
    """Place by the mean rank; null for methods that are not ranked."""
    ranked: int
    """Number of ranked methods."""
    upload: float | None
    """Bytes uploaded by all clients up to the chosen round."""
    download: float | None
    """Bytes downloaded."""
    reason: str
    """Why the method does not fit, or why its runs failed; may be empty."""


class PublishedFigure(Output):
    """Figures that a paper prints for the method."""

    reproduction: str
    """Name, as `protofl reproduce` takes it."""
    paper: str
    """Authors and year."""
    place: str
    """Table or figure."""
    title: str
    """Title of the table or figure."""
    row: str
    """Label of the row."""
    figures: dict[str, str]
    """Figures as printed, by the label of the column."""
    derived: bool
    """True if the figures are computed from others that the paper prints."""


class Reveal(Output):
    """Information that a key of the uploads reveals."""

    key: str
    """Key, as declared."""
    reveals: str
    """Information that a curious server learns about the client's data."""


class CardOption(Output):
    """An option of a method."""

    option: str
    """Name, as Markdown."""
    default: str
    """Default as text."""
    range: str
    """Accepted values as text."""
    meaning: str
    """Effect."""


class Card(Output):
    """The card of a method."""

    method: str
    """Name."""
    distribution: str
    """Package; `this program` for a class that is not installed."""
    version: str
    """Version of the package."""
    target: str
    """MODULE:CLASS."""
    shares: str | None
    """Parts that clients share, as the page says."""
    has_page: bool
    """True if the method has a hand-written page."""
    page: str
    """The page as Markdown: equations, choices, weak points."""
    options: list[CardOption]
    """Options."""
    reveals: list[Reveal]
    """Information that a curious server learns from each key of the uploads."""
    measured: Measured
    """Payload sizes and costs."""
    benchmark: list[BenchmarkFigure]
    """Own figures in the benchmark."""
    published: list[PublishedFigure]
    """Published figures."""
