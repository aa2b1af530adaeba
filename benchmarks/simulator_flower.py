"""Plain FedAvg with Flower's simulation; started by `other_simulators`.

    python simulator_flower.py TASK.npz ROUNDS TIMES.json

Two Ray actors have one core each. The server evaluates, in large batches.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from simulator_task import CNN4, read_task

PATH, ROUNDS, OUT = sys.argv[1], int(sys.argv[2]), sys.argv[3]

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train a client."""
    torch.set_num_threads(1)
    x, y = read_task(PATH).clients[int(context.node_config["partition-id"])]
    model = CNN4()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=read_task(PATH).lr)
    for rows in torch.randperm(len(y)).split(read_task(PATH).batch_size):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the rounds and write their times."""
    times: list[float] = []
    accuracy = 0.0

    @torch.no_grad()
    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        nonlocal accuracy
        model = CNN4()
        model.load_state_dict(arrays.to_torch_state_dict())
        x, y = read_task(PATH).test
        hits = sum(
            int((model(a).argmax(1) == b).sum())
            for a, b in zip(x.split(500), y.split(500), strict=True)
        )
        accuracy = hits / len(y)
        times.append(time.time())
        return MetricRecord({"accuracy": accuracy})

    torch.manual_seed(0)
    strategy: Any = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(CNN4().state_dict()),
        num_rounds=ROUNDS,
        evaluate_fn=evaluate,
    )
    with open(OUT, "w") as file:
        json.dump({"times": times, "accuracy": accuracy}, file)


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(read_task(PATH).clients),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
