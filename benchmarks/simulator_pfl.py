"""Plain FedAvg with pfl-research; started by `other_simulators` under torchrun.

    torchrun --standalone --nproc-per-node 2 simulator_pfl.py TASK.npz ROUNDS TIMES.json

As in the examples of pfl-research, users' data are tensors in memory, the processes get users by
their number of samples, and they share the central evaluation.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from simulator_task import CNN4, read_task
from torch import Tensor


class Model(CNN4):
    """The network with the methods that pfl calls."""

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        """Return the loss of a batch."""
        self.train(not is_eval)
        return torch.nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, is_eval: bool = True) -> dict[str, Any]:
        """Return the accuracy."""
        self.eval()
        return {"accuracy": Weighted(float((self(x).argmax(1) == y).sum()), len(y))}


class Watch(TrainingProcessCallback[Any]):
    """Records when each round ends."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.accuracy = 0.0

    def on_train_begin(self, *, model: Any) -> Metrics:  # noqa: ANN401 - pfl's
        """Record the start of the first round."""
        self.times.append(time.time())
        return Metrics()

    def after_central_iteration(
        self,
        aggregate_metrics: Metrics,
        model: Any,  # noqa: ANN401
        *,
        central_iteration: int,
    ) -> tuple[bool, Metrics]:
        """Record the end of a round."""
        self.times.append(time.time())
        return False, Metrics()


def main() -> None:
    """Run the simulation and write its times."""
    task, rounds = read_task(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    users = {str(i): data for i, data in enumerate(task.clients)}
    datasets = {
        name: PyTorchTensorDataset(data, user_id=name, eval_kwargs={"is_eval": True})
        for name, data in users.items()
    }
    federated = FederatedDataset(
        lambda user: datasets[user],
        get_user_sampler("minimize_reuse", list(users)),
        {name: len(data[1]) for name, data in users.items()},
    )
    network = Model()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    central = PyTorchTensorDataset(task.test, eval_kwargs={"is_eval": True})
    watch = Watch()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=1,
            train_cohort_size=len(users),
            val_cohort_size=0,
        ),
        SimulatedBackend(federated, federated),
        model,
        NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=task.lr, local_batch_size=task.batch_size
        ),
        NNEvalHyperParams(local_batch_size=500),
        [CentralEvaluationCallback(central, NNEvalHyperParams(local_batch_size=500)), watch],
    )
    if os.environ.get("RANK", "0") == "0":
        x, y = task.test
        accuracy = float(network.metrics(x, y)["accuracy"].overall_value)
        with open(sys.argv[3], "w") as file:
            json.dump({"times": watch.times, "accuracy": accuracy}, file)


if __name__ == "__main__":
    main()
