"""Contract of metrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from protofl.data.tasks import CONTINUOUS, Task
from protofl.errors import RunFailure
from protofl.federation.clients.evaluation import counted, figures_of
from protofl.federation.plan.task_checks import tasks_of
from protofl.hooks.wire.payload import Payload
from protofl.runs.dry_run.short_rounds import dry_run
from protofl.testing import toy
from protofl.testing.contract import Contract, expect

CLASSES = 4


def samples(
    count: int, seed: int = 0, *, dtype: torch.dtype = torch.float32, task: str = "classification"
) -> tuple[Any, Any]:
    """Scores [n, C] that are right more often than not, and labels of a task, [n] or [n, C]."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    scores = torch.randn(count, CLASSES, generator=generator)
    one_hot = torch.nn.functional.one_hot(labels, CLASSES)
    if task == "regression":
        numbers = labels[:, None].float()
        return (numbers + 0.1 * scores[:, :1]).to(dtype), numbers
    if task == "language-model":  # logarithms of the probabilities of the tokens
        return (scores + 2 * one_hot).log_softmax(1).to(dtype), one_hot.float()
    return (scores + 2 * one_hot).to(dtype), labels if task == "classification" else one_hot.float()


class MetricContract(Contract):
    """The checks of a metric, on scores that are made up and in a run."""

    kind = "metric"

    @property
    def task(self) -> str:
        """The first task of the metric."""
        return tasks_of(self.choice().plugin, "metric")[0]

    def samples(self, count: int, seed: int = 0) -> tuple[Any, Any]:
        """Scores and labels of the metric's task."""
        return samples(count, seed, task=self.task)

    def counts(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the counts of samples."""
        result = counted([self.choice()], scores, labels)[self.label]
        expect(bool(result.isfinite().all()), "count returns NaN or infinity")
        return result

    def figure(self, counts: Tensor) -> Any:  # noqa: ANN401 - a number, None, or a list
        """The figure of counts, as the record has it."""
        return figures_of([self.choice()], {0: Payload({self.label: counts})})[self.label]["all"]

    def test_both_hooks(self) -> None:
        """The metric has count and value."""
        for hook in ("count", "value"):
            expect(hook in self.choice().hooks, f"{hook} is missing: @pf.hookimpl def {hook}(…)")

    def test_counts_add_up(self) -> None:
        """Counts of two clients, added, are those of a shape and give a figure."""
        shapes = {tuple(self.counts(*self.samples(n, seed=n)).shape) for n in (1, 3, 40)}
        expect(len(shapes) == 1, f"the shape of counts depends on the samples: {sorted(shapes)}")
        parts = [self.counts(*self.samples(n, seed=n)) for n in (30, 40)]
        figure = self.figure(parts[0] + parts[1])
        values = figure if isinstance(figure, list) else [figure]
        expect(any(v is not None for v in values), "70 samples of all classes give no figure")
        scores, labels = (
            torch.cat(each) for each in zip(self.samples(30, 30), self.samples(40, 40), strict=True)
        )
        together = self.figure(self.counts(scores, labels))
        if not toy.same(_rounded(together), _rounded(figure)):
            self.remarks.append(
                f"two clients' counts add up to {_rounded(figure)}, their samples count as one's "
                f"to {_rounded(together)}: say what the figure of all clients means"
            )

    def test_the_order_of_samples(self) -> None:
        """The order of samples has no influence."""
        scores, labels = self.samples(40)
        back = self.figure(self.counts(scores.flip(0), labels.flip(0)))
        expect(
            toy.same(_rounded(back), _rounded(self.figure(self.counts(scores, labels)))),
            "samples in another order give another figure",
        )

    def test_any_scores(self) -> None:
        """The metric takes one sample, one class, ties, impossible classes and float64."""
        scores, labels = self.samples(12)
        unknown = scores.clone()
        unknown[:, -1] = -torch.inf
        cases = {
            "one sample": (scores[:1], labels[:1]),
            "one class alone": (scores, torch.zeros_like(labels)),
            "equal scores": (torch.zeros_like(scores), labels),
            "scores of −∞": (unknown, labels),
            "large distances": (1e4 * scores, labels),
            "float64": samples(12, dtype=torch.float64, task=self.task),
        }
        if self.task in CONTINUOUS:  # its scores are finite numbers
            del cases["scores of −∞"]
        for case_name, case in cases.items():
            try:
                self.figure(self.counts(*case))
            except (RunFailure, AssertionError) as error:
                expect(False, f"{case_name}: {' '.join(str(error).split())}")

    def test_it_writes_nothing(self) -> None:
        """The metric changes no argument, draws nothing, and keeps nothing on self."""
        scores, labels = self.samples(20)
        before = scores.clone(), labels.clone(), torch.get_rng_state()
        choice = self.choice()
        choice.call("value", counts=choice.call("count", scores=scores, labels=labels).double())
        expect(torch.equal(scores, before[0]) and torch.equal(labels, before[1]), "it writes")
        expect(torch.equal(torch.get_rng_state(), before[2]), "it draws from torch's global state")
        expect(not vars(choice.instance), f"self holds {', '.join(vars(choice.instance))}")

    def test_it_is_recorded(self) -> None:
        """A run records it, over clients and of each, and is otherwise what it was."""
        options = {self.label: dict(self.chosen)} if self.chosen else {}
        task = Task(self.task)  # type: ignore[arg-type]
        data = toy.with_task(toy.make_images(toy.MIXED), task)
        models = toy.group(toy.TOKENS) if task.name == "language-model" else None
        plain, with_metric = (
            toy.Toy(
                toy.make_plan(
                    "fedproto" if task.has_classes else "local",
                    self.folder,
                    data,
                    models,
                    extra=self.extra,
                    block=self.block,
                    metrics=[self.label] if measured else [],
                    options=options if measured else {},
                )
            )
            for measured in (False, True)
        )
        dry_run(with_metric.plan)
        for lines in zip(plain.rounds(2), with_metric.rounds(2), strict=True):
            figures = lines[1].pop("metrics")
            lines[0].pop("metrics", None)  # the usual ones of another task
            expect(self.label in figures, "the record lacks it")
            expect(toy.same(*lines), "another figure of the record changed with it")
        same = toy.same(toy.fingerprint(plain)[1:], toy.fingerprint(with_metric)[1:])
        expect(same, "the run changed with it")


def _rounded(figure: Any) -> Any:  # noqa: ANN401 - a number, None, or a list
    if isinstance(figure, list):
        return [_rounded(entry) for entry in figure]
    return None if figure is None else round(figure, 9)
