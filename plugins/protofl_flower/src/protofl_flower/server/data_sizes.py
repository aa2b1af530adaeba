"""Sizes of the nodes' data: what nodes say of them before a run, and checks of these messages."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import protofl as pf
from protofl_flower.node_data import FORM
from protofl_flower.protocol import messages
from protofl_flower.protocol.messages import MalformedMessage
from protofl_flower.protocol.transport import Delivery, Deployment, RemoteNode, printed
from protofl_flower.server.node_pool import BackendOptions
from protofl_flower.server.node_reports import failure_of, one_line
from protofl_flower.server.polling import answers

LARGEST = 10_000_000
"""Samples of a client, at most."""


def ask_data_sizes(
    deployment: Deployment,
    form: Mapping[str, Any],
    config: BackendOptions,
    *,
    skip: bool,
    transforms: Sequence[str] = (),
    report: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Ask all nodes for the sizes of their data; return what each client's node tells.

    Args:
        deployment: The nodes.
        form: The options of the data set ``nodes``.
        config: Options of the backend.
        skip: Go on without nodes that do not answer, or wrongly; their sizes are not known then.
        transforms: Transforms of the run; a node tells nothing, or refuses, beside one that hides
            samples.
        report: Takes a line for the user.

    Raises:
        ProtoflError: A node's data do not fit, its answer is wrong, or it does not answer, and the
            run needs it; or no node tells anything.
    """
    report = report or to_stderr
    form = {key: form[key] for key in FORM if key in form}
    classes = len(pf.backends.load_dataset("nodes", {**form, "told": [{}]}, Path(), print).classes)
    clients = sorted(client for node in deployment.nodes for client in node.clients)
    if clients != [*range(len(clients))]:
        raise pf.UsageError(
            f"the nodes have the clients {clients}", do="number them from 0 in federation.toml"
        )
    told: dict[int, dict[str, Any]] = {client: {} for client in clients}
    question = {"run": deployment.run, "sizes": form, "transforms": [*transforms], "jobs": []}
    text = json.dumps(question)
    waiting, missing = dict[str, RemoteNode](), [*deployment.nodes]
    end = time.monotonic() + config.patience
    while missing:
        online = deployment.transport.online()
        for node in [node for node in missing if node.key in online]:
            if ticket := deployment.transport.send(online[node.key], text, [], 0, "sizes"):
                missing.remove(node)
                waiting[ticket] = node
        if time.monotonic() > end:
            break
        time.sleep(min(1.0, config.poll * 5) if missing else 0)
    if missing and not skip:
        names = ", ".join(node.name for node in missing)
        raise pf.RunFailure(
            f"not online after {config.patience:g} s: {names}",
            do="start the nodes, or go on without: --on-lost-client skip",
        )
    deployment.missing.update(node.name for node in missing)
    wrong, pace = list[pf.ProtoflError](), (config.poll, config.start_deadline)
    for node, delivery in answers(
        deployment.transport, waiting, "the question for its sizes", *pace, report
    ):
        try:
            told |= checked(node, delivery, classes)
        except pf.ProtoflError as error:
            wrong.append(error)
            if not skip:
                raise
            report(f"the sizes of {node.name} are not known: {one_line(error)}")
    if waiting:
        names = ", ".join(node.name for node in waiting.values())
        problem = f"no sizes after {config.start_deadline:g} s: {names}"
        if not skip:
            raise pf.RunFailure(
                problem,
                do="look at the nodes' logs, raise --set backend.start_deadline=SECONDS, or go on "
                "without: --on-lost-client skip",
            )
        report(problem)
    if wrong and not any(told.values()):
        raise wrong[0]
    for line in large(deployment, told):
        report(line)
    return [told[client] for client in clients]


def large(deployment: Deployment, told: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return a line for a client that tells of more than 90 % of all samples of three or more.

    The number cannot be checked, and means that are weighted by samples follow it.
    """
    sizes = {
        client: sum(train) if isinstance(train, list) else train
        for client, client_sizes in told.items()
        if (train := client_sizes.get("train")) is not None
    }
    total, names = (
        sum(sizes.values()),
        {c: node.name for node in deployment.nodes for c in node.clients},
    )
    return [
        f"{names[client]} tells of {size:,} training samples of client {client}, of {total:,} of "
        "all clients: means that are weighted by samples follow this client"
        for client, size in sizes.items()
        if len(sizes) > 2 and size > 0.9 * total
    ]


def to_stderr(line: str) -> None:
    """Print a line beside the lines of the run."""
    print(line, file=sys.stderr, flush=True)


def checked(node: RemoteNode, delivery: Delivery, classes: int) -> dict[int, dict[str, Any]]:
    """Return what a node tells of each of its clients.

    Args:
        node: The node.
        delivery: Its answer.
        classes: Classes C of the federation.

    Raises:
        ProtoflError: The node or Flower reports an error, or the answer is malformed.
    """
    if delivery.code:
        raise pf.RunFailure(f"{node.name}: {delivery.words}")
    try:
        response = messages.read(delivery.text)
        if "failure" in response:
            raise failure_of(node, response["failure"])
        sizes = _table(response, ("sizes",), "it")["sizes"]
        client_sizes = _table(sizes, ("clients",), "its sizes")["clients"]
        names = [*map(str, node.clients)]
        clients = _table(client_sizes, names, "its clients")
        return {int(name): _told(clients[name], f"client {name}", classes) for name in names}
    except MalformedMessage as error:
        raise pf.RunFailure(f"{node.name} sent wrong sizes: {printed(error)}") from None


def _table(value: Any, keys: Sequence[str], what: str) -> dict[str, Any]:  # noqa: ANN401 - as sent
    if not isinstance(value, dict) or {*value} != {*keys}:
        received = (
            ", ".join(map(repr, [*value][:5])) if isinstance(value, dict) else repr(value)[:40]
        )
        raise MalformedMessage(
            f"{what} should have {', '.join(keys)}, and has {received or 'nothing'}"
        )
    return value


def _told(value: Any, what: str, classes: int) -> dict[str, Any]:  # noqa: ANN401 - as sent
    """Return the sizes of a client: two tables of counts, or two sizes, or neither."""
    fields = _table(value, ("train", "test", "majority"), what)
    train, test = (_part(fields[key], f"{what}: {key}", classes) for key in ("train", "test"))
    if type(train) is not type(test):
        raise MalformedMessage(f"{what} tells of train and test in two ways")
    guess = fields["majority"]
    if train is None and guess is None:
        return fields
    if not isinstance(guess, list) or len(guess) != 2:
        raise MalformedMessage(f"{what}: majority is {_short(guess)}, and should be two numbers")
    right, total = (_number(each, f"{what}: majority", 0) for each in guess)
    if right > total:
        raise MalformedMessage(f"{what}: majority is {right} of {total}")
    if isinstance(train, list) and isinstance(test, list):
        right, total = test[train.index(max(train))], sum(test)
    elif test is not None and test != total:
        raise MalformedMessage(f"{what} has {test} test samples and guesses {total}")
    return {"train": train, "test": test, "majority": [right, total]}


def _part(value: Any, what: str, classes: int) -> list[int] | int | None:  # noqa: ANN401 - as sent
    if value is None:
        return None
    if not isinstance(value, list):
        return _number(value, what, 1)
    if len(value) != classes:
        raise MalformedMessage(f"{what} has {len(value)} classes, and the federation has {classes}")
    counts = [_number(each, what, 0) for each in value]
    _number(sum(counts), what, 1)
    return counts


def _number(value: Any, what: str, least: int) -> int:  # noqa: ANN401 - as sent
    if type(value) is not int or not least <= value <= LARGEST:
        raise MalformedMessage(
            f"{what} is {_short(value)}, and should be from {least} to {LARGEST:,}"
        )
    return value


def _short(value: Any) -> str:  # noqa: ANN401 - as sent
    return str(value)[:40] if type(value) is not int or abs(value) < 10**30 else "a huge number"
