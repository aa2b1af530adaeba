"""The options that a node takes from a plan, and the policy of its operator.

A plan comes from elsewhere, and says which code to import, which files to read and where to
compute. A node takes the options that training needs, sets those of its own machine itself, and
leaves the server's at their defaults.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import protofl as pf
from protofl_flower.node.local_data import LocalData

TAKEN = (
    "method models architectures dataset subset train_size partition clients participation "
    "sampling unseen fine_tune generator rounds patience local_epochs batch_size optimizer lr "
    "lr_schedule momentum weight_decay clip feature_dim drop_last shuffle augment precision "
    "public options use add drop transforms seed trials hold_split same_init deterministic engine "
    "job_limit validation eval_every eval_clients on_bad_upload upload_limit upload_bound "
    "on_lost_client measure metrics observe observe_samples record_predictions malicious classes"
).split()
"""Options that a node takes as they are, if no rule refuses them."""

OWN = "data_dir cache device client_store server_threads backend workers".split()
"""Options of the node's machine, which its ``node.toml`` sets."""

SERVERS = (
    "participants_from join_round devices timing deadline over_select block "
    "eval_server checkpoint_every keep keep_weights min_clients wait_for_clients dry_run "
    "observe_every record_uploads track profile init"
).split()
"""Options that only the server reads; a node leaves them at their defaults."""

NO_FILES = ("column", "published")
"""Plugins whose argument is not a file: the name of a column, of a setting."""

COUNTING = ("confusion", "macro-f1", "balanced-accuracy", "recall-by-class")
"""Metrics whose counts tell how many test samples a client has of each class."""


@dataclass(frozen=True)
class Policy:
    """Rules of a node's operator; see ``node.toml``.

    Attributes:
        methods: Methods and donors that may run; empty for all installed ones.
        transforms: Transforms that may be used; empty for all installed ones.
        models: Model groups that may run; empty for all installed ones.
        required: Transforms that every run must use, {name: {option: value}}.
        upload_limit: Largest upload in MiB.
        longest_job: Seconds that a job may take.
        classes: Allow code of files and modules that is not installed.
        malicious: Allow attacks by this node's clients, for experiments.
        observe: Allow features, images, and true and predicted classes of samples to leave the
            node.
        class_counts: Allow metrics that count test samples by class.
        paths: Allow plugins that read a file which the plan names.
        most_clients: Largest number of clients in a run; a node builds the split of all of them.
        most_evaluations: Evaluations of a client in a round, at most. Each one tells how many test
            samples a model that the server chooses predicts rightly.
        losses: Tell sums of loss terms. Without them ``train_loss`` leaves the client out.
    """

    methods: Collection[str] = ()
    transforms: Collection[str] = ()
    models: Collection[str] = ()
    required: Mapping[str, Mapping[str, Any]] | None = None
    upload_limit: float = 4096.0
    longest_job: float = 86_400.0
    classes: bool = False
    malicious: bool = False
    observe: bool = False
    class_counts: bool = False
    paths: bool = False
    most_clients: int = 100_000
    most_evaluations: int = 3
    losses: bool = True

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> Policy:
        """Return the policy of a table of ``node.toml``.

        Raises:
            UsageError: A rule is unknown, or its value has another type.
        """
        usual = cls()
        for name, value in table.items():
            if name not in [f.name for f in fields(cls)]:
                known = ", ".join(f.name for f in fields(cls))
                raise pf.UsageError(f"node.toml: unknown rule [policy] {name}", f"rules: {known}")
            expected = {"required": dict}.get(name, type(getattr(usual, name)))
            expected = list if expected is tuple else expected
            fits = type(value) is expected or (expected is float and type(value) is int)
            if not fits:
                raise pf.UsageError(
                    f"node.toml: [policy] {name} is {value!r}", do=f"write a {expected.__name__}"
                )
        return cls(**table)


def refused(rule: str, what: str) -> pf.UsageError:
    """Return the error for a plan outside the policy."""
    return pf.UsageError(
        f"the node refuses the plan: {what}",
        f"rule: [policy] {rule}",
        "leave it out of the run, or ask the node's operator to allow it",
    )


def plan_here(
    text: str, machine_options: Mapping[str, Any], policy: Policy, data: LocalData | None = None
) -> str:
    """Return the plan that a node makes of the server's.

    Args:
        text: The plan, as JSON.
        machine_options: Options of this machine, which replace the server's.
        policy: What is allowed.
        data: The node's own data, if it has some.

    Raises:
        UsageError: The plan is not one, has unknown options, or breaks a rule.
    """
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError):
        plan = None
    if not isinstance(plan, dict):
        raise pf.UsageError("the plan is not a JSON object")
    if unknown := sorted(plan.keys() - {*TAKEN, *OWN, *SERVERS}):
        raise pf.UsageError(
            f"the plan has unknown options: {', '.join(map(repr, unknown[:5]))}",
            do="install the same version of protofl on the server and on all nodes",
        )
    if plan.get("init") is not None:
        raise pf.UsageError(
            "--init names a file of the server, and nodes have no copy of it", do="leave it out"
        )
    # Rules judge the parsed options, which are what the host will have.
    parsed = pf.backends.Plan.options_of({name: plan[name] for name in TAKEN if name in plan})
    taken = {name: parsed[name] for name in TAKEN if name in plan}
    if data is not None and data.public:
        taken["public"] = data.public
    _check({name: parsed[name] for name in TAKEN} | taken, policy, data)
    taken["job_limit"] = min(taken.get("job_limit") or policy.longest_job, policy.longest_job)
    others = {
        owner: v
        for owner, v in taken["options"].items()
        if owner not in ("devices", "backend", "timing")
    }
    here = {**taken, "options": others, **machine_options, "backend": "local"}
    return json.dumps(here, default=str)


def _check(plan: Mapping[str, Any], policy: Policy, data: LocalData | None) -> None:
    """Compare a plan with the policy, and its data set with the node's.

    Raises:
        UsageError: It breaks a rule, or is for other data.
    """
    if (plan["dataset"] == "nodes") != (data is not None):
        has = "no data of its own" if data is None else "data of its own"
        raise pf.UsageError(
            f"this node has {has}, and the run is on the data set {plan['dataset']}",
            do="leave --dataset out for a run on the nodes' own data, which node.toml names",
        )
    if plan["classes"] and not policy.classes:
        places = ", ".join(sorted(map(str, plan["classes"].values())))
        raise refused("classes", f"it imports code that is not installed ({places})")
    if plan["malicious"] and not policy.malicious:
        raise refused("malicious", f"--malicious {plan['malicious']:g} attacks from this node")
    if plan["observe"] and not policy.observe:
        raise refused("observe", f"--observe {','.join(plan['observe'])} sends what samples show")
    if plan["record_predictions"] and not policy.observe:
        chosen = ",".join(plan["record_predictions"])
        raise refused("observe", f"--record-predictions {chosen} sends the class of each sample")
    if plan["clients"] > policy.most_clients:
        many = f"it has {plan['clients']:,} clients, more than {policy.most_clients:,}"
        raise refused("most_clients", many)
    counting = sorted({*plan["metrics"]}.intersection(COUNTING))
    if counting and not policy.class_counts:
        raise refused("class_counts", f"--metrics {','.join(counting)} counts samples by class")
    if plan["upload_limit"] > policy.upload_limit:
        limit = f"--upload-limit {plan['upload_limit']:g} is above {policy.upload_limit:g} MiB"
        raise refused("upload_limit", limit)
    donors = [str(name).partition(".")[0] for name in plan["use"].values()]
    donors += [str(each).partition("=")[2].partition(".")[0] for each in plan["add"]]
    _among("methods", [plan["method"], *donors], policy.methods)
    _among("models", [plan["models"]], policy.models)
    _among("transforms", plan["transforms"], policy.transforms)
    for name, options in (policy.required or {}).items():
        plugin_options = plan["options"].get(name, {})
        other = {
            key: value
            for key, value in options.items()
            if plugin_options.get(key) != value
            or isinstance(plugin_options[key], bool) != isinstance(value, bool)
        }
        if name not in plan["transforms"] or other:
            more = "".join(f" with {key}={value}" for key, value in other.items())
            raise refused("required", f"it lacks the transform {name}{more}")
    set_by_node = () if data is None or not data.public else ("public",)
    naming = {"dataset", "sampling", "partition", "generator", "public"}.difference(set_by_node)
    files = [str(plan[key]) for key in sorted(naming)]
    named = [text for text in files if _names_a_file(text)]
    if named and not policy.paths:
        raise refused("paths", f"it names a file: {named[0]}")


def check_tell(data: LocalData | None, transforms: Mapping[str, type]) -> None:
    """Check that a node tells nothing of sizes beside a transform that hides samples.

    Args:
        data: The node's own data, if it has some.
        transforms: {name: plugin}.

    Raises:
        UsageError: The node would tell exact numbers.
    """
    for name, plugin in transforms.items():
        hides = any(getattr(plugin, each, "") for each in ("hides_samples", "hides_samples_later"))
        if hides and data is not None and data.tell != "nothing":
            raise pf.UsageError(
                f"{name} hides single samples, and this node tells exact numbers of samples "
                f"(tell = {json.dumps(data.tell)})",
                do='write tell = "nothing" below [data] in node.toml',
            )


def _names_a_file(text: str) -> bool:
    """Return True for ``npz:PATH``, such as ``folder:.``, which is the node's working folder."""
    kind, colon, _ = text.partition(":")
    return bool(colon) and kind not in NO_FILES


def _among(rule: str, names: Collection[str], allowed: Collection[str]) -> None:
    for name in names:
        if allowed and name not in allowed:
            raise refused(rule, f"{name} is not among: {', '.join(sorted(allowed))}")
