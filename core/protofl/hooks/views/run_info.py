"""Facts about a run and its clients that are known before it starts, for hooks and trackers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from protofl.data.spec import SampleSpec
from protofl.errors import UsageError
from protofl.hooks.models.architecture import (
    Architecture,
    SplitModel,
    find_architecture,
    native_width,
    unset_model,
)
from protofl.system.randomness import global_stream


@dataclass(frozen=True)
class Phase:
    """A phase of local training.

    Attributes:
        name: The name of the phase, in hooks ``batch.phase``.
        data: ``private`` or ``public``.
        epochs: Passes over the data, perhaps a fraction; None for the run's ``--local-epochs``.
        when: ``before_upload``, or ``after_server``: the participants get this round's
            download, train, and are then evaluated with it.
        needs: A key of the download; without it the phase is skipped (the first round).
        rows: A key of the download, or of the method's ``client.state``, with the rows of the data
            on which the phase trains; all rows if it is None or in neither. ``batch.index`` counts
            within these rows.
        terms: The method's loss terms that the phase trains; if the composition has none of them,
            the phase is skipped. Empty: all.
        trains: The parts of the client that the phase updates: ``extractor``, ``head``, and names
            of modules (`Client.add_module`). Empty: all trained parts.
        fine_tunes: The parts that the phase updates in fine-tuning (``--fine-tune``), such as a
            head that it keeps in rounds. Empty: those of ``trains``.
    """

    name: str = "private"
    data: str = "private"
    epochs: float | None = None
    when: str = "before_upload"
    needs: str | None = None
    rows: str | None = None
    terms: tuple[str, ...] = ()
    trains: tuple[str, ...] = ()
    fine_tunes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check ``data`` and ``when``."""
        if self.data not in ("private", "public"):
            raise UsageError(
                f"phase {self.name!r}: data {self.data!r} is neither private nor public"
            )
        if self.when not in ("before_upload", "after_server"):
            do = "use before_upload or after_server"
            raise UsageError(f"phase {self.name!r}: unknown when={self.when!r}", do=do)


@dataclass(frozen=True)
class ClientCard:
    """The facts that a client registers with the server at set-up.

    Attributes:
        architecture: Name of the client's architecture.
        head: Type and shape of its head.
        feature_dim: Width of its features: K, or its architecture's own.
    """

    architecture: str
    head: str
    feature_dim: int


@dataclass(frozen=True)
class RunInfo:
    """Facts about a run that are known before it starts.

    Attributes:
        group: The model group's name.
        architectures: The group's architectures that its clients use, in order.
        num_clients: M.
        participants: Clients in a round.
        num_classes: C.
        feature_dim: K. With native widths the group's usual K, for extractors built for any K.
        sample: The spec of a sample as models see it.
        public: Public samples; 0 for none.
        rounds: Rounds of the run.
        batch_size: Samples per mini-batch.
        local_epochs: Epochs of the private phase.
        class_names: Names of the classes.
        server_architectures: Further architectures of the group, which no client uses.
        server_architecture: The architecture of a model that the server trains.
        auxiliary_architecture: The small architecture that clients share (FML, FedKD).
        malicious: The share of malicious clients.
        unseen: Clients that never take part in a round (``--unseen``).
        optimizer: The clients' optimiser (``--optimizer``).
        momentum: Momentum of SGD.
        clip: The largest gradient norm of a module (``--clip``); 0 for none.
        native: True if features keep each architecture's own width (``--feature-dim native``).
        others: Returns the architectures of any installed group, by its name.
        places: Place of each client's architecture in ``architectures``; empty for i mod X.
        phases: The phases of local training that have a loss term, with their epochs; empty in
            ``requires``, ``resolve`` and ``phases``.
        fitted: True if samples are prepared with statistics of the clients' training samples.
        reads_reports: Options with which the course of the run depends on what clients report of
            their samples besides uploads: ``--patience``, a ``--sampling`` by sizes or losses.
        has_secrets: True if the clients' hosts have secrets, so that the server can't repeat draws
            of `Client.secret_stream`; False in a simulation.
        sends_samples: Options with which clients send what single samples show besides uploads:
            ``--observe features`` and ``images``, ``--record-predictions``.
        sizes: Returns the number of training samples of each client in the first trial, for
            ``requires``; empty if the samples lie on nodes.
        asked: Facts that hooks have read and that extending a run changes: ``rounds``.
    """

    group: str
    architectures: tuple[Architecture, ...]
    num_clients: int
    participants: int
    num_classes: int
    feature_dim: int
    sample: SampleSpec
    public: int
    rounds: int
    batch_size: int
    local_epochs: float
    class_names: tuple[str, ...] = ()
    server_architectures: tuple[Architecture, ...] = ()
    server_architecture: str = "resnet56"
    auxiliary_architecture: str = ""
    malicious: float = 0.0
    unseen: int = 0
    optimizer: str = "sgd"
    momentum: float = 0.0
    clip: float = 0.0
    native: bool = False
    others: Callable[[str], Sequence[Architecture]] = field(default=lambda group: (), repr=False)
    places: tuple[int, ...] = ()
    phases: tuple[Phase, ...] = ()
    fitted: bool = False
    reads_reports: tuple[str, ...] = ()
    has_secrets: bool = False
    sends_samples: tuple[str, ...] = ()
    sizes: Callable[[], Sequence[int]] = field(default=lambda: (), repr=False)
    asked: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def homogeneous(self) -> bool:
        """True if all clients have the same architecture."""
        return len(self.architectures) == 1

    @property
    def one_head(self) -> bool:
        """True if all clients' heads have the same layers."""
        return len({a.head for a in self.architectures}) == 1

    def architecture_of(self, client_id: int) -> Architecture:
        """Return a client's architecture."""
        return self.architectures[self.place_of(client_id)]

    def place_of(self, client_id: int) -> int:
        """Return the place of a client's architecture in ``architectures``.

        It is i mod X for client i (FedTGP, section "Setup") unless ``--architectures`` lists it.
        """
        return self.places[client_id] if self.places else client_id % len(self.architectures)

    @property
    def examples(self) -> list[int]:
        """The first client of each architecture, in the order of the architectures."""
        count = len(self.architectures)
        return [self.places.index(n) for n in range(count)] if self.places else [*range(count)]

    @property
    def names_by_client(self) -> list[str]:
        """Names of architectures: client i has the one at place i mod their number."""
        return [self.architectures[n].name for n in self.places or range(len(self.architectures))]

    def feature_dim_of(self, of: int | Architecture) -> int:
        """Return the width of a client's features, or of an architecture's: K, or its own."""
        architecture = self.architecture_of(of) if isinstance(of, int) else of
        if not self.native:
            return self.feature_dim
        return native_width(architecture, self.sample, self.num_classes, self.feature_dim)

    def sizes_of(self, architecture: Architecture) -> tuple[SampleSpec, int, int]:
        """Return the arguments of ``architecture.build`` for a client's model."""
        return self.sample, self.num_classes, self.feature_dim_of(architecture)

    def unset_model(self, architecture: Architecture) -> SplitModel:
        """Build a client's model with uninitialised weights, see `unset_model`."""
        return unset_model(architecture, *self.sizes_of(architecture))

    @property
    def feature_dims(self) -> list[int]:
        """The widths of the clients' features, ascending; K alone without native widths."""
        return sorted({*map(self.feature_dim_of, self.architectures)})

    def named(self, architecture: str | Architecture) -> Architecture:
        """Return an architecture of the run's group or of another group.

        Args:
            architecture: Its name, or ``GROUP/NAME`` of any installed group, or the architecture
                itself.

        Raises:
            UsageError: The name is unknown, or the group does not take this run's samples.
        """
        architectures = (*self.server_architectures, *self.architectures)
        return find_architecture(architecture, architectures, self.others)

    def build(
        self, architecture: str | Architecture, seed: int, feature_dim: int | None = None
    ) -> SplitModel:
        """Build a new model of a `named` architecture; server and clients draw the same weights.

        Args:
            architecture: The architecture, as in `named`.
            seed: The trial's seed.
            feature_dim: Its own width of features; None for `feature_dim_of`.
        """
        resolved = self.named(architecture)
        width = feature_dim or self.feature_dim_of(resolved)
        name = architecture if isinstance(architecture, str) else resolved.name
        with global_stream(seed, "server-model", name):
            return resolved.build(self.sample, self.num_classes, width)


class Cards(Mapping[int, ClientCard]):
    """The cards of all clients of a run, created on access."""

    def __init__(self, info: RunInfo) -> None:
        self._info = info

    def __getitem__(self, client_id: int) -> ClientCard:
        if not 0 <= client_id < len(self):
            raise KeyError(client_id)
        architecture = self._info.architecture_of(client_id)
        width = self._info.feature_dim_of(architecture)
        return ClientCard(architecture.name, architecture.head, width)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return self._info.num_clients
