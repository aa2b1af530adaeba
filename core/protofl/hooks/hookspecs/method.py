"""Hooks of a method, in the order in which a round calls them.

A method is a class with a docstring, an optional nested ``Config``, the declarations ``terms``
(its loss terms), ``downloads`` and ``uploads`` (what travels, and what it reveals; a run refuses
other keys, and ``upload_rules`` says where the gate's rules don't hold), and the hooks that its
paper adds; `protofl.hooks.plugin.providers` has the defaults. It keeps nothing on ``self``: what it
remembers lives in ``client.state``, ``client.modules``, ``server.state`` and ``server.modules``.
One that is there for other methods alone, as a defence is, names the hooks that they may take of
it, ``donates = ("server_aggregate",)``, and is not run by itself.

The six hooks of a round have one provider each; `MERGED_HOOKS` may have further ones. The lifecycle
hooks are optional, and every method of a run may implement them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protofl.hooks.hookspecs.markers import hookspec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from protofl.hooks.views.batch import Batch, Given, Output
    from protofl.hooks.views.client import Client, Learner
    from protofl.hooks.views.run_info import Phase, RunInfo
    from protofl.hooks.views.server import Server
    from protofl.hooks.wire.payload import Payload, Uploads
    from protofl.system.options.plugin_options import Config

ROUND_HOOKS = {
    "download_payload": "server",
    "local_loss": "client",
    "upload_payload": "client",
    "server_aggregate": "server",
    "server_train": "server",
    "inference": "client",
}
"""The six hooks and the side on which each runs, in the order of a round."""

MERGED_HOOKS = ("download_payload", "upload_payload", "server_aggregate", "server_train")
"""Those that several methods may provide, as what they return is merged key by key."""

LIFECYCLE_HOOKS = {
    "run_defaults": "run",
    "requires": "run",
    "resolve": "run",
    "phases": "run",
    "setup_server": "server",
    "setup_client": "client",
    "receive": "client",
    "before_training": "client",
    "after_batch": "client",
    "after_training": "client",
    "score_client": "client",
    "global_models": "server",
    "receive_uploads": "server",
    "end_round": "server",
}
"""The optional hooks and the side on which each runs."""


class MethodSpec:
    """The hooks of a method."""

    # --- before the run -------------------------------------------------------------------

    @hookspec
    def run_defaults(self, config: Config) -> dict[str, Any]:
        """Return defaults of the run's options that the paper, or the variant, asks for.

        None: no defaults.
        """

    @hookspec
    def requires(self, run: RunInfo, config: Config) -> list[str]:
        """Return reasons why the method can't work with this run, each with what would work.

        None or an empty list: the method can work.
        """

    @hookspec
    def resolve(self, run: RunInfo, config: Config) -> dict[str, Any]:
        """Return options whose default depends on the run (λ₂ of FedSA); they are recorded.

        None: the options stay unchanged.
        """

    @hookspec
    def phases(self, config: Config, run: RunInfo) -> list[Phase]:
        """Return the phases of local training.

        None: one phase, on private data, before the upload.
        """

    @hookspec
    def setup_server(self, server: Server) -> Mapping[str, Tensor]:
        """Prepare the server's state and modules; return the knowledge to start with.

        None: the knowledge starts empty.
        """

    @hookspec
    def setup_client(self, client: Client) -> None:
        """Prepare a client's state and modules on first use; returns None."""

    # --- a round, in order ------------------------------------------------------------------

    @hookspec(firstresult=True)
    def download_payload(self, server: Server, client_id: int) -> Payload:
        """Return what this client downloads, drawn from ``server.knowledge``.

        Called any number of times, for any client; writes nothing. An empty payload has 0 bytes and
        is not counted. None: an error.
        """

    @hookspec
    def receive(self, client: Client) -> None:
        """Install ``client.received``, such as a head or a model; returns None.

        Evaluation calls this hook, too.
        """

    @hookspec
    def before_training(self, client: Client) -> Given:
        """Return what ``local_loss`` needs besides the batch and the model, for a whole phase.

        A mapping of names to tensors, numbers and strings, or to mappings, lists and tuples of
        them. ``pf.per_step(tensor)`` stands for a tensor with a leading axis over the
        ``client.steps`` steps; each step receives its row. None: an empty mapping.
        """

    @hookspec(firstresult=True)
    def local_loss(
        self, client: Learner, batch: Batch, output: Output, given: Given
    ) -> Mapping[str, Tensor]:
        """Return named scalar terms, already weighted; the engine sums them.

        ``given`` is what the same method's ``before_training`` returned. A loss can read the
        client's model, options and sizes. Tensors in and out: no ``.item()``, no Python branch on a
        tensor's value, no random draw. Weights are reached only through ``client.features``,
        ``head``, ``module(name)`` and ``parameters()``. Leave out a term whose inputs have not been
        received yet, instead of returning zero. None: an error.
        """

    @hookspec
    def after_batch(self, client: Client, batch: Batch, output: Output) -> None:
        """Collect values from the detached output of a step, before the update; returns None.

        Do not synchronise with the device.
        """

    @hookspec
    def after_training(self, client: Client) -> None:
        """Finish a phase of local training (FedSA's local margin); returns None."""

    @hookspec(firstresult=True)
    def upload_payload(self, client: Client) -> Payload:
        """Return what the client sends; possibly empty (0 bytes). None: an error."""

    @hookspec
    def receive_uploads(self, server: Server, uploads: Uploads) -> Uploads:
        """Return the uploads for this round's server hooks.

        For defences, which leave out or replace uploads that they don't trust. Runs after
        `protofl.hooks.hookspecs.method.WrapperSpec.receive_uploads`. None: an error.
        """

    @hookspec(firstresult=True)
    def server_aggregate(
        self, server: Server, uploads: Mapping[int, Payload]
    ) -> Mapping[str, Tensor]:
        """Return the keys of ``server.knowledge`` that aggregation changes.

        ``uploads`` is in ascending client id. Class-indexed tensors come with ``classes``
        (see `protofl.class_rows`). An empty mapping changes nothing. None: an error.
        """

    @hookspec(firstresult=True)
    def server_train(self, server: Server, uploads: Mapping[int, Payload]) -> Mapping[str, Tensor]:
        """Return the keys of ``server.knowledge`` that training on the server changes.

        Loop over ``server.epochs(n)``, which a dry step cuts to one. An empty mapping changes
        nothing. None: an error.
        """

    @hookspec(firstresult=True)
    def inference(self, client: Client, x: Tensor) -> Tensor:
        """Return class scores B×C of samples ``x``; writes nothing. None: an error."""

    @hookspec
    def score_client(self, client: Client, scores: Tensor, labels: Tensor) -> Mapping[str, float]:
        """Return further figures of a client at its evaluation; writes nothing.

        They are recorded as ``metrics``, ``METHOD.NAME``: the mean over test samples, over clients,
        and each client's. ``scores`` [n, C] are what ``inference`` gave for the client's test
        samples, ``labels`` [n] their classes. Clients without test samples are skipped. Figures of
        scores only are metrics, a kind of plugin for all methods. None: no figures.
        """

    @hookspec
    def global_models(self, server: Server) -> Mapping[str, Module]:
        """Return the models that the server holds for all, {name: model from samples to scores}.

        They are scored on the global test samples, which a run with public data has, in the rounds
        that are evaluated: ``server_test_accuracy`` in the record's ``extra``, the mean where there
        are several. They are not trained and not kept; ``server.build`` makes one to load weights
        into. None or {}: there are no such models.
        """

    @hookspec
    def end_round(self, server: Server) -> Mapping[str, float]:
        """Return further scalars for the record's ``extra``. None: no scalars."""


class WrapperSpec:
    """A wrapper changes payloads on their way, whichever method runs.

    The hooks around payloads are pluggy wrappers (``@pf.hookimpl(wrapper=True)``, one ``yield``):
    they change what is sent. The others take what they change as an argument. Those that encode and
    decode are two sides of one thing: what crosses in place of a payload, and what its receiver
    makes of that. All see the client or server bound to the wrapper: its own config, state and
    generators.

    Of several wrappers first all change the payload, then all encode, both in the order of
    ``--with``; decoding is in reverse. ``encodes`` declares what an encoding puts on the wire
    beside the names that it is given: ``{"scale": "…"}`` for ``NAME.scale`` or ``scale`` alone.

    One that attacks says ``attack = True``: a run has it together with ``--malicious``, and it acts
    for the clients that are ``client.malicious`` alone.
    """

    @hookspec
    def upload_payload(self, client: Client) -> Payload:
        """Yield for the client's upload and return what is sent instead. None: an error."""

    @hookspec
    def download_payload(self, server: Server, client_id: int) -> Payload:
        """Yield for the client's download and return what is sent instead. None: an error."""

    @hookspec
    def encode_upload(self, client: Client, payload: Payload) -> Payload:
        """Return the encoded upload, which is sent and counted. None or an empty payload: an error.

        Called once an upload. What it keeps in ``client.state`` (error feedback) is part of the
        client: it is there after ``--resume``, and undone where the upload counts for nothing.
        """

    @hookspec
    def decode_upload(
        self, server: Server, client_id: int, payload: Payload, form: Payload
    ) -> Payload:
        """Return the decoded upload for the server; writes nothing. None: the upload is refused.

        ``form`` has the names, types and shapes that are to come out, as tensors without content
        (device ``meta``), checked against the run's rules and ``--upload-limit``. What else came is
        a stranger's: raise any exception where it can't be what your ``encode_upload`` makes, and
        the upload is refused as a bad one.
        """

    @hookspec
    def encode_download(self, server: Server, client_id: int, payload: Payload) -> Payload:
        """Return the encoded download, which is sent and counted; writes nothing. None: an error.

        Called any number of times. Without the argument ``client_id`` it is called once for all
        clients that get the same, as a server that encodes what it broadcasts.
        """

    @hookspec
    def decode_download(self, client: Client, payload: Payload, form: Payload) -> Payload:
        """Return the decoded download for the client; writes nothing. None: an error."""

    @hookspec
    def train_labels(self, client: Client, labels: Tensor) -> Tensor:
        """Return training labels [n] to use in place of the client's own, when it is first needed.

        Test labels stay unchanged. The round is -1, as at every set-up. None: an error.
        """

    @hookspec
    def receive_uploads(self, server: Server, uploads: Uploads) -> Uploads:
        """Return uploads in place of those that the gate let in, with the same clients.

        The one place where several uploads are seen together, before any method sees them: it
        simulates that the clients in ``server.malicious`` have agreed on what they send. Traffic
        has been counted before, so replace tensors by others of their shapes. None: an error.
        """
