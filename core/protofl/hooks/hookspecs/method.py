"""Hooks of a method, in the order in which a round calls them.

A method is a class with a docstring, an optional nested ``Config``, the declarations ``terms``
(its loss terms), ``downloads`` and ``uploads`` (the keys that are sent: texts that say what they
reveal, or `Key` with the shape too; a run refuses other keys, and ``upload_rules`` and
``download_rules`` list exemptions from the rules of payload validation), and the hooks that its
paper adds; `protofl.hooks.plugin.providers` has the defaults. State lives in ``client.state``,
``client.modules``, ``server.state`` and ``server.modules``, never on ``self``. A method that only
provides hooks for others, such as a defence, lists them: ``donates = ("server_aggregate",)``.
``native_widths = True`` declares that it takes features of several widths (``--feature-dim
native``).
``after_batch_if = {"collect": "online"}``, in the class that defines ``after_batch``, declares the
options with which the hook has something to do; with others it is not called, so an engine may
launch several steps at once.
``asynchronous`` declares how it runs without rounds (``--schedule``): ``True`` if the
server can act on the uploads of any clients, of any version; ``"versions"`` if an upload counts as
an update of the version that its client downloaded, such as weights; ``False``, or a text that says
why, if it needs all participants at once. A server reads ``uploads[client].version`` and
``.staleness``.

The six hooks of a round have one provider each; `MERGED_HOOKS` may have further ones. The lifecycle
hooks are optional, and every method of a run may implement them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protofl.hooks.hookspecs import hookspec

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from protofl import backends
    from protofl.hooks.views.batch import Batch, LossData, Output
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
"""Hooks that several methods may provide; their results are merged key by key."""

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
    "global_models": "server",
    "check_upload": "server",
    "receive_uploads": "server",
    "end_round": "server",
    "end_trial": "server",
}
"""The optional hooks and the side on which each runs."""

SHARED_HOOKS = ("requires", "end_round", "end_trial")
"""Optional hooks that payload transforms may have, too."""


class MethodSpec:
    """The hooks of a method."""

    # --- before the run -------------------------------------------------------------------

    @hookspec
    def run_defaults(self, config: Config) -> dict[str, Any]:
        """Return defaults of the run's options, as the paper or the variant requires.

        None: no defaults.
        """

    @hookspec
    def requires(self, run: RunInfo, config: Config) -> list[str]:
        """Return reasons why the method can't work with this run, each with an alternative.

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
        """Prepare the server's state and modules; return the global state to start with.

        None: the global state starts empty.
        """

    @hookspec
    def setup_client(self, client: Client) -> None:
        """Prepare a client's state and modules on first use; returns None."""

    # --- a round, in order ------------------------------------------------------------------

    @hookspec(firstresult=True)
    def download_payload(self, server: Server, client_id: int) -> Payload:
        """Return what this client downloads, drawn from ``server.global_state``.

        Called any number of times, for any client; writes nothing. An empty payload has 0 bytes and
        is not counted. None: an error.
        """

    @hookspec
    def receive(self, client: Client) -> None:
        """Install ``client.received``, such as a head or a model; returns None.

        Evaluation calls this hook, too.
        """

    @hookspec
    def before_training(self, client: Client) -> LossData:
        """Return what ``local_loss`` needs besides the batch and the model, for a whole phase.

        A mapping of names to tensors, numbers and strings, or to mappings, lists and tuples of
        them. ``pf.per_step(tensor)`` stands for a tensor with a leading axis over the
        ``client.steps`` steps; each step receives its row. The runtime moves all tensors to the
        client's device. None: an empty mapping.
        """

    @hookspec(firstresult=True)
    def local_loss(
        self, client: Learner, batch: Batch, output: Output, constants: LossData
    ) -> Mapping[str, Tensor]:
        """Return named scalar terms, already weighted; the engine sums them.

        ``constants`` is the return value of the same method's ``before_training``. A loss can read
        the client's model, options and sizes. It must not use ``.item()``, Python branches on a
        tensor's value, or random draws; nor a number or tensor from elsewhere that changes, as an
        engine may record the step and replay it. It reads weights only through ``client.features``,
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
        """Return the client's upload; possibly empty (0 bytes). None: an error."""

    @hookspec
    def check_upload(self, server: Server, client_id: int, upload: Payload) -> str:
        """Return the fault of a validated upload, after "client 3 sent".

        None or empty: accepted.
        """

    @hookspec
    def receive_uploads(self, server: Server, uploads: Uploads) -> Uploads:
        """Return the uploads for this round's server hooks.

        For defences, which remove or replace suspicious uploads. Runs after
        `protofl.hooks.hookspecs.method.PayloadTransformSpec.receive_uploads`. None: an error.
        """

    @hookspec(firstresult=True)
    def server_aggregate(
        self, server: Server, uploads: Mapping[int, Payload]
    ) -> Mapping[str, Tensor]:
        """Return the keys of ``server.global_state`` that aggregation changes.

        ``uploads`` is in ascending client id. Class-indexed tensors come with ``classes``
        (see `protofl.class_rows`). An empty mapping changes nothing. None: an error.
        """

    @hookspec(firstresult=True)
    def server_train(self, server: Server, uploads: Mapping[int, Payload]) -> Mapping[str, Tensor]:
        """Return the keys of ``server.global_state`` that training on the server changes.

        Loop over ``server.epochs(n)``, which a dry run cuts to one. An empty mapping changes
        nothing. None: an error.
        """

    @hookspec(firstresult=True)
    def inference(self, client: Client, x: Tensor) -> Tensor:
        """Return class scores B×C of samples ``x``; writes nothing. None: an error."""

    @hookspec
    def global_models(self, server: Server) -> Mapping[str, Module]:
        """Return the server's global models, {name: model from samples to scores}.

        In evaluated rounds they are scored on the global test samples of a run with public data:
        ``server_test_accuracy`` in the record's ``extra``, the mean of several models. They are
        not trained and not kept; ``server.build`` builds a model to load weights into. Not called
        with ``--no-eval-server``. None or {}: no models.
        """

    @hookspec
    def end_round(self, server: Server) -> Mapping[str, float]:
        """Return further scalars for the record's ``extra``. None: no scalars."""

    @hookspec
    def end_trial(self, server: Server) -> str:
        """Return why the trial ends after this round, which the record says as ``ended``.

        Called after the server's step. The round is evaluated, and a resumed run does not continue
        the trial. None or empty: the trial goes on.
        """


class PayloadTransformSpec:
    """A transform changes payloads between clients and server, for any method.

    The payload hooks are pluggy wrappers (``@pf.hookimpl(wrapper=True)``, one ``yield``) that
    change what is sent. The other hooks take the value that they change as an argument. A pair of
    encoding and decoding hooks replaces the payload on the wire. All hooks see the client or server
    bound to the transform, with its own config, state and generators.

    Several transforms first all change the payload, then all encode, both in the order of
    ``--with``; decoding is in reverse. ``encodes`` declares names that an encoding adds to the
    payload's: ``{"scale": "…"}`` for ``NAME.scale`` or ``scale``.

    An attack declares ``attack = True``: it requires ``--malicious``, and changes only the payloads
    of clients with ``client.malicious``. A transform that sends other ``counts`` than the client
    has, such as noisy ones, declares ``changes_counts = True``: the server does not compare them
    with the split. One that draws from `Client.secret_stream` declares ``draws_secretly = True``,
    or the name of the option that turns it on: a simulation says that its noise hides nothing.
    One whose upload does not depend on the payload that it gets declares
    ``replaces_uploads = True``: a transform of uploads can't be named before it.

    A transform that bounds what a payload reveals may hide the clients' samples from all other
    plugins: ``hides_samples = "why"``. A hook that reads `Client.train`, features, class counts,
    the number of steps or the domain fails with that reason, and ``client.num_samples`` is 1, so
    that clients have equal weights in means. A loss still gets batches. With
    ``hides_samples_later = "why"`` it hides them from the transforms that ``--with`` names after
    it, which would change its result again.
    """

    @hookspec
    def upload_payload(self, client: Client) -> Payload:
        """Yield for the client's upload and return what is sent instead. None: an error."""

    @hookspec
    def download_payload(self, server: Server, client_id: int) -> Payload:
        """Yield for the client's download and return what is sent instead. None: an error."""

    @hookspec
    def requires(self, run: RunInfo, config: Config) -> list[str]:
        """Return reasons why the transform can't work with this run; see `MethodSpec.requires`."""

    @hookspec
    def end_round(self, server: Server) -> Mapping[str, float]:
        """Return further scalars for the record's ``extra``; see `MethodSpec.end_round`."""

    @hookspec
    def end_trial(self, server: Server) -> str:
        """Return why the trial ends after this round; see `MethodSpec.end_trial`."""

    @hookspec
    def train(self, client: Client, job: backends.TrainJob) -> dict[str, float]:
        """Run a phase of a client's local training in place of the engine, inside ``job.stream()``.

        One transform of a run may have this hook. It returns what `EngineSpec.train` returns. None:
        the engine runs the phase.
        """

    @hookspec
    def encode_upload(self, client: Client, payload: Payload) -> Payload:
        """Return the encoded upload, which is sent and counted. None or an empty payload: an error.

        Called once per upload. Its ``client.state`` (error feedback) survives ``--resume``, and is
        undone if the upload is refused.
        """

    @hookspec
    def decode_upload(
        self, server: Server, client_id: int, payload: Payload, form: Payload
    ) -> Payload:
        """Return the decoded upload for the server; writes nothing. None: the upload is refused.

        ``form`` has the names, types and shapes of the result, as tensors without content (device
        ``meta``), checked by the run's rules and ``--upload-limit``. The payload itself is not
        trustworthy: raise any exception if ``encode_upload`` can't have made it, and the upload is
        refused.
        """

    @hookspec
    def encode_download(self, server: Server, client_id: int, payload: Payload) -> Payload:
        """Return the encoded download, which is sent and counted; writes nothing. None: an error.

        Called any number of times. Without the argument ``client_id`` it is called once for all
        clients with the same download, as for a broadcast.
        """

    @hookspec
    def decode_download(self, client: Client, payload: Payload, form: Payload) -> Payload:
        """Return the decoded download for the client; writes nothing. None: an error."""

    @hookspec
    def loss_factors(self, client: Client, terms: tuple[str, ...]) -> Mapping[str, float]:
        """Return factors of loss terms in a phase of a client's local training.

        ``terms`` has the labels of all terms of the run, such as ``align`` and a donor's
        ``fedsa.mcl``. Factors of several transforms are multiplied. None or {}: all stay as they
        are, as do terms that are left out.
        """

    @hookspec
    def train_labels(self, client: Client, labels: Tensor) -> Tensor:
        """Return training labels [n] that replace the client's own, when it is first needed.

        Test labels stay unchanged. The round is -1, as at every set-up. None: an error.
        """

    @hookspec
    def receive_uploads(self, server: Server, uploads: Uploads) -> Uploads:
        """Return uploads that replace the accepted ones, with the same clients.

        Only this hook sees several uploads together, before any method does: it simulates that the
        clients in ``server.malicious`` agree on their uploads. Traffic has been counted before, so
        replace tensors by others of the same shape. None: an error.
        """
