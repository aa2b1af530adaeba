"""What protofl does on a GPU: equal results, seconds of a round, memory, and what to build next.

It takes about twenty minutes on one H200, needs no network and no data, and goes on after a
part that fails. Each part runs in a process of its own. It prints one table at the end and writes
JSON::

    python benchmarks/gpu.py OUT                    # all parts, in order of value
    python benchmarks/gpu.py OUT --parts ab         # some of them
    python benchmarks/gpu.py OUT --against HTFLLIB  # also its rounds, on the same files
    python benchmarks/gpu.py OUT --tiny             # all of it on a CPU in a minute, to try it out

``--against`` needs the packages that HtFLlib imports (h5py, higher and others) beside protofl.

Parts: (a) all methods and engines against ``eager``, and equal runs; (b) seconds of a round by
engine and number of streams; (c) where a round's time goes, busy share, peak memory, first round;
(d) the size that papers use; (e) BlazeFL's cases; (f) the tests marked ``gpu``; (g) one training
step in several forms, from which the next optimisations follow.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

LIMITS = {"a": 400, "b": 420, "c": 60, "d": 240, "e": 120, "f": 240, "g": 60}
"""Seconds after which a part is ended. Rows that it has written are kept."""

LOSS, ACCURACY = 1e-6, 0.01
"""Largest relative difference of a loss, and of an accuracy, after two rounds in another engine.

They are those of float64: in float32 rounding alone drives some methods apart (FedGen by 7 % and
FedKTL by 12 % in two rounds on a CPU), and engines that were wrong differed by 0.8 % and more.
"""

OWN_NETS = {"fedbn": "resnet18", "depthfl": "depths:resnet18@4,3,2,1"}
"""Methods that take no `cnn4`, and their models."""

STREAMS = (1, 2, 4, 8, 16)

CHAINS: tuple[str, dict[str, Any]] = (
    "cuda-graphs, chains",
    {"engine": "cuda-graphs", "set": {"engine.capture": "always"}},
)
"""An engine's label and options: steps and chains of steps are captured in their first use.

``auto`` captures no chain in the few rounds here. The first rounds show what chains cost, and the
later ones what they save.
"""

FIRST = ("fedproto", "fedsa", "fedorgp", "alignfed", "fedgen", "fedtsp", "heterofl", "fedgh")
"""Methods that errors of an engine change most; they are compared first."""


@dataclass(frozen=True)
class Case:
    """A run that is measured.

    Attributes:
        name: Its name in the table.
        method, models: What is run.
        clients: Clients, each with ``train`` and ``test`` images.
        shape: Shape of an image.
        classes: C.
        options: Further options of `protofl.run`.
    """

    name: str
    method: str
    models: str
    clients: int = 20
    train: int = 200
    test: int = 60
    shape: tuple[int, int, int] = (3, 32, 32)
    classes: int = 10
    options: tuple[tuple[str, Any], ...] = ()

    def tiny(self) -> Case:
        """Return the case in a size for a CPU."""
        sides = (self.shape[0], 16, 16) if self.shape[1] > 28 else self.shape
        models = {"htfe8": "htcnn8", "torchvision:resnet18": "cnn4"}.get(self.models, self.models)
        small = replace(self, clients=2, train=20, test=8, shape=sides, models=models)
        return replace(small, classes=min(self.classes, 4))


MNIST = (1, 28, 28)
ROUND = (
    Case("FedProto, htcnn8", "fedproto", "htcnn8", train=300, test=100, shape=MNIST),
    Case("FedTGP, htcnn8", "fedtgp", "htcnn8", train=300, test=100, shape=MNIST),
    Case("FedProto, htfe8", "fedproto", "htfe8"),
    Case("FedTGP, htfe8", "fedtgp", "htfe8"),
    Case("FedAvg, cnn4", "fedavg", "cnn4"),
)
PAPER = Case("FedTGP, htfe8, papers' size", "fedtgp", "htfe8", train=2250, test=750, classes=100)
BLAZEFL = tuple(
    Case(
        f"FedAvg, {name}, 100 clients × 450, E 5, B 50",
        "fedavg",
        models,
        clients=100,
        train=450,
        test=50,
        options=(("local_epochs", 5), ("batch_size", 50)),
    )
    for name, models in (("cnn4", "cnn4"), ("ResNet-18", "torchvision:resnet18"))
)


@cache
def images(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return images uint8 that can be learned: a pattern for each class, and noise."""
    drawn = torch.Generator().manual_seed(0)
    patterns = torch.randint(0, 256, (case.classes, *case.shape), generator=drawn)

    def part(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % case.classes
        noise = torch.randint(-60, 61, (count, *case.shape), generator=drawn)
        return (patterns[y] + noise).clamp(0, 255).to(torch.uint8), y

    return *part(case.clients * case.train), *part(case.clients * case.test)


class Parts:
    """The parts; each yields its rows of the table as they are measured.

    Args:
        out: The folder.
        device: Where it computes.
        tiny: Use sizes for a CPU.
        against: A checkout of HtFLlib, or None.
    """

    def __init__(self, out: Path, device: str, *, tiny: bool, against: Path | None) -> None:
        self._out, self._device, self._tiny, self._against = out, device, tiny, against
        self._runs = 0

    def run(self, case: Case, rounds: int, **options: Any) -> Any:  # noqa: ANN401 - a Result
        """Run a case and return its result; without a folder that stays."""
        import protofl as pf

        case = case.tiny() if self._tiny else case
        self._runs += 1
        return pf.run(
            case.method,
            models=case.models,
            dataset=images(case),
            partition="iid",
            clients=case.clients,
            rounds=rounds,
            device=self._device,
            backend="local",
            out=self._out / "runs" / f"{self._runs:04d}-{time.time_ns()}",
            **{"progress": False, **dict(case.options), **options},
        )

    # --- a: equal results -----------------------------------------------------------------------

    def a(self) -> Iterator[dict[str, Any]]:
        """Two equal runs with dropout; then all methods, each engine against ``eager``."""
        from protofl.testing.equality import double_precision

        dropout = Case(
            "dropout", "fedproto", "torchvision:mobilenet_v2", clients=8, train=60, test=40
        )
        dropout = replace(dropout, models="cnn4") if self._tiny else dropout
        for label, options in (("eager", {"engine": "eager"}), *self._engines()):
            given = {**options, "deterministic": True}
            first, again = (self._figures(dropout, **given) for _ in range(2))
            yield {"case": "two equal runs", "engine": label, "equal": first == again}
        for method in self._methods():
            models = OWN_NETS.get(method, "cnn4")
            case = Case(method, method, models, clients=8, train=60, test=40, shape=MNIST)
            with double_precision():
                wanted = self._figures(case, engine="eager")
                for label, options in self._engines():
                    yield {"case": method, "engine": label, **self._compared(case, wanted, options)}

    def _methods(self) -> list[str]:
        from protofl.hooks.discovery.registry import Registry
        from protofl.testing.donors import methods_to_run

        if self._tiny:
            return ["fedproto", "fedtgp", "alignfed"]
        names = methods_to_run(Registry())
        return [*FIRST, *(name for name in names if name not in FIRST)]

    def _engines(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for streams in (1, 2, 8):
            options = {"engine": "cuda-graphs", "set": {"engine.streams": streams}}
            yield f"cuda-graphs, {streams} streams", options
        yield "vmapped", {"engine": "vmapped"}

    def _figures(
        self,
        case: Case,
        **options: Any,  # noqa: ANN401 - those of a run
    ) -> list[tuple[float, float]]:
        result = self.run(case, 2, dry_run=False, **options)
        return [(row["test_accuracy"], row["train_loss"]) for row in result.record]

    def _compared(
        self, case: Case, wanted: list[tuple[float, float]], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        try:
            found = self._figures(case, **options)
        except Exception as error:
            return {"equal": False, "error": f"{type(error).__name__}: {error}"[:200]}
        loss = max(
            abs(a - b) / max(abs(b), 1e-9) if a is not None and b is not None else 0.0
            for (_, a), (_, b) in zip(found, wanted, strict=True)
        )
        accuracy = max(abs(a - b) for (a, _), (b, _) in zip(found, wanted, strict=True))
        equal = loss <= LOSS and accuracy <= ACCURACY
        return {"equal": equal, "loss": loss, "accuracy": accuracy}

    # --- b to e: seconds ------------------------------------------------------------------------

    def b(self) -> Iterator[dict[str, Any]]:
        """Seconds of a round with each engine, and with HtFLlib."""
        for case in ROUND[:2] if self._tiny else ROUND:
            yield from self._htfllib(case)
            engines: list[tuple[str, dict[str, Any]]] = [
                ("auto", {"engine": "auto"}),
                ("eager", {"engine": "eager"}),
                CHAINS,
            ]
            streams = (8,) if self._tiny else STREAMS if case is ROUND[0] else ()
            for count in streams:
                given = {"engine": "cuda-graphs", "set": {"engine.streams": count}}
                engines.append((f"cuda-graphs, {count} streams", given))
            for label, options in engines:
                large = case.models == "htfe8" and label == "eager"  # some 12 s a round
                yield self._timed(case, label, 2 if large else 4, stages=True, **options)

    def c(self) -> Iterator[dict[str, Any]]:
        """Where a round's seconds go, the GPU's busy share, and peak memory by round."""
        yield self._timed(ROUND[0], "auto", 3 if self._tiny else 10, stages=True, engine="auto")
        yield {"case": ROUND[0].name, "engine": "auto", "busy": self._busy(ROUND[0])}
        flat = self._timed(ROUND[0], "auto, deterministic", 4, engine="auto", deterministic=True)
        yield flat

    def d(self) -> Iterator[dict[str, Any]]:
        """The size that papers use, also with chains of steps."""
        for label, options in (("auto", {"engine": "auto"}), CHAINS):
            yield self._timed(PAPER, label, 3, stages=True, **options)

    def e(self) -> Iterator[dict[str, Any]]:
        """BlazeFL's cases."""
        for case in BLAZEFL:
            yield self._timed(case, "auto", 3, stages=True, engine="auto")

    def _timed(
        self,
        case: Case,
        label: str,
        rounds: int,
        *,
        stages: bool = False,
        **options: Any,  # noqa: ANN401 - those of a run
    ) -> dict[str, Any]:
        """Return the seconds before the rounds, of the first one, and of one after the second."""
        if cuda := self._device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        peaks = list[float]()

        def follow(event: object) -> None:
            if cuda and type(event).__name__ == "RoundDone":
                peaks.append(torch.cuda.max_memory_allocated() / 2**30)

        start = time.perf_counter()
        result = self.run(case, rounds, **{"progress": follow, **options})
        whole = time.perf_counter() - start
        seconds = [row["seconds"] for row in result.record]
        steady = seconds[2:] or seconds[1:] or seconds
        row = {
            "case": case.name,
            "engine": label,
            "round": statistics.median(each["total"] for each in steady),
            "first": seconds[0]["total"],
            "before": whole - sum(each["total"] for each in seconds),
        }
        if stages:
            row["stages"] = {
                stage: round(statistics.median(each[stage] for each in steady), 4)
                for stage in steady[0]
                if stage != "total"
            }
        if label == "auto":  # what it chose, and why: engine, client store, arithmetic
            config = json.loads((result.folder / "config.json").read_text())
            row["notes"] = " · ".join(config.get("notes", []))
        if peaks:
            row |= {"peak GiB": max(peaks), "grows": peaks[-1] / peaks[min(1, len(peaks) - 1)] - 1}
        return row

    def _busy(self, case: Case) -> float | None:
        """Return the share of a run's third round in which kernels are at work; None on a CPU."""
        if not self._device.startswith("cuda"):
            return None
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        watched: list[Any] = []

        def follow(event: object) -> None:
            name = type(event).__name__
            if name == "RoundStarted" and getattr(event, "round", 0) == 2:
                torch.cuda.synchronize()
                watched.append(profile(activities=[ProfilerActivity.CUDA]))
                watched[0].__enter__()
            elif name == "RoundDone" and len(watched) == 1 and event.row.round == 2:  # type: ignore[attr-defined]
                torch.cuda.synchronize()
                watched[0].__exit__(None, None, None)
                watched.append(None)

        result = self.run(case, 3, engine="auto", progress=follow)
        kernels = sorted(
            (each.time_range.start, each.time_range.end)
            for each in watched[0].events()
            if each.device_type == DeviceType.CUDA
        )
        busy, until = 0.0, 0.0
        for start, end in kernels:  # the union of overlapping intervals, in µs
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return busy / 1e6 / float(result.record[2]["seconds"]["total"])

    def _htfllib(self, case: Case) -> Iterator[dict[str, Any]]:
        """The rounds of HtFLlib on the same images, if a checkout was given."""
        if self._against is None or case.models != "htfe8" or self._tiny:
            return
        row: dict[str, Any] = {"case": case.name, "engine": "HtFLlib"}
        try:
            first, *steady = htfllib_rounds(self._against, case, self._out, self._device)
            yield {**row, "round": statistics.median(steady), "first": first}
        except (subprocess.CalledProcessError, ValueError) as error:
            yield {**row, "error": f"{error}; its log is in {self._out}"[-200:]}

    # --- f and g --------------------------------------------------------------------------------

    def f(self) -> Iterator[dict[str, Any]]:
        """The tests marked ``gpu``."""
        root = Path(__file__).parents[1]
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-n", "0", "tests"]
        command += ["-k", "not test_all_methods_in_float64"]  # part a compares them
        if self._tiny:  # they are collected, and skipped without a GPU
            command += ["--collect-only"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]]
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        yield {"case": "pytest -m gpu", "equal": done.returncode in (0, 5), "says": lines[-1]}
        for line in failed[:20]:
            yield {"case": line[:160], "equal": False}

    def g(self) -> Iterator[dict[str, Any]]:
        """One training step of ten images in several forms, in milliseconds."""
        forms: dict[str, Callable[..., dict[str, float]]]
        names = ["cnn4"] if self._tiny else ["cnn4", "resnet18", "resnet50", "mobilenet_v2"]
        if not self._device.startswith("cuda"):
            forms = {"eager": step_seconds}
        else:
            forms = {
                "graph": partial(step_seconds, graph=True),
                "graph, fused SGD": partial(step_seconds, graph=True, fused=True),
                "graph, channels last": partial(
                    step_seconds, graph=True, fused=True, channels_last=True
                ),
                "graph of a compiled step": partial(
                    step_seconds, graph=True, fused=True, compiled=True
                ),
                "graph of four clients in one batch (vmap)": partial(
                    step_seconds, graph=True, stacked=4
                ),
            }
        for name in names:
            for label, form in forms.items():
                try:
                    figures = form(name=name, device=self._device)
                except Exception as error:
                    problem = f"{type(error).__name__}: {error}"[:200]
                    yield {"case": f"a step of {name}", "engine": label, "error": problem}
                else:
                    yield {"case": f"a step of {name}", "engine": label, **figures}


# ------------------------------------------------------------------------------- part g: one step


def net_of(name: str) -> torch.nn.Module:
    """Return a net for images of 3×32×32."""
    from torch import nn

    if name == "cnn4":
        return nn.Sequential(
            *(nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10)),
        )
    import torchvision

    made: nn.Module = getattr(torchvision.models, name)(weights=None, num_classes=10)
    return made


def step_seconds(
    *,
    name: str,
    device: str,
    graph: bool = False,
    fused: bool = False,
    channels_last: bool = False,
    compiled: bool = False,
    stacked: int = 0,
) -> dict[str, float]:
    """Return the milliseconds of a step, and the seconds of preparing it."""
    from torch import nn
    from torch.func import functional_call, grad, stack_module_state, vmap

    torch.manual_seed(0)
    net = net_of(name).to(device).train()
    x, y = torch.randn(10, 3, 32, 32, device=device), torch.randint(0, 10, (10,), device=device)
    if channels_last:
        net, x = net.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    start = time.perf_counter()
    if stacked:
        nets = [net_of(name).to(device).train() for _ in range(stacked)]
        parameters, buffers = stack_module_state(nets)
        xs, ys = x.expand(stacked, *x.shape).clone(), y.expand(stacked, -1).clone()

        def loss(p: Any, b: Any, x: Any, y: Any) -> Any:  # noqa: ANN401
            return nn.functional.cross_entropy(functional_call(nets[0], (p, b), (x,)), y)

        gradients = vmap(grad(loss), randomness="different")

        def step() -> None:
            found = gradients(parameters, buffers, xs, ys)
            with torch.no_grad():
                keys = list(parameters)
                torch._foreach_add_(
                    [parameters[k] for k in keys], [found[k] for k in keys], alpha=-0.001
                )

    else:
        model = torch.compile(net) if compiled else net
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001, fused=fused or None)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    run: Callable[[], None] = step
    if graph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        run = captured.replay
    else:
        step()
    prepared = time.perf_counter() - start
    cuda = device.startswith("cuda")
    repeats = 50 if cuda else 3
    for timed in (False, True):
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats if timed else 3):
            run()
        if cuda:
            torch.cuda.synchronize()
    ms = (time.perf_counter() - start) / repeats * 1000
    return {"step ms": ms / max(1, stacked), "prepare": prepared}


# ------------------------------------------------------------------------------- part b: HtFLlib

HTFLLIB = {
    "fedproto": ("FedProto", ["-lam", "1"]),
    "fedtgp": ("FedTGP", ["-lam", "1", "-se", "100"]),
}
"""{method: its name there, and its options}."""


def htfllib_rounds(checkout: Path, case: Case, folder: Path, device: str) -> list[float]:
    """Run HtFLlib for four rounds on a case's images; return the seconds of each round.

    It has the models of ``htfe8`` (``HtFE-img-8``), and none of ``htcnn8``.
    """
    import numpy as np

    system = checkout / "system"
    if not (system / "main.py").exists():
        raise SystemExit(f"--against {checkout}: there is no system/main.py, as HtFLlib has it")
    name = f"protofl{case.shape[0]}x{case.shape[1]}c{case.classes}"
    data = checkout / "dataset" / name
    x, y, x_test, y_test = (each.numpy() for each in images(case))
    for part, samples, labels in (("train", x, y), ("test", x_test, y_test)):
        (data / part).mkdir(parents=True, exist_ok=True)
        size = len(samples) // case.clients
        order = np.random.default_rng(0).permutation(len(samples))
        for client in range(case.clients):
            rows = order[client * size : (client + 1) * size]
            scaled = samples[rows].astype("float32") / 127.5 - 1
            np.savez(data / part / f"{client}.npz", data={"x": scaled, "y": labels[rows]})
    algorithm, options = HTFLLIB[case.method]
    command = [
        *(sys.executable, "-u", "main.py", "-algo", algorithm, "-data", name, "-m", "HtFE-img-8"),
        *("-nc", str(case.clients), "-ncl", str(case.classes), "-gr", "3", "-lbs", "10"),
        *("-dev", "cuda" if device.startswith("cuda") else "cpu", "-fd", "512", *options),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{case.method}-{case.models}.log"
    with log.open("w") as file:
        # It reads back models that it has pickled itself.
        variables = {**os.environ, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
        both = {"stdout": file, "stderr": subprocess.STDOUT}
        subprocess.run(command, cwd=system, env=variables, check=True, **both)
    return [float(seconds) for seconds in re.findall(r"^-{50} ([\d.]+)$", log.read_text(), re.M)]


# ------------------------------------------------------------------------------------- the parts


def run_part(part: str, out: Path, device: str, *, tiny: bool, against: Path | None) -> None:
    """Run a part in this process and write its rows as JSON lines, each when it is known."""
    from protofl.system.torch_state import standard_torch

    with (out / f"{part}.jsonl").open("w") as file, standard_torch():
        try:
            for row in getattr(Parts(out, device, tiny=tiny, against=against), part)():
                file.write(json.dumps(row) + "\n")
                file.flush()
        except Exception as error:
            traceback.print_exc()
            words = f"{type(error).__name__}: {error}"[:300]
            file.write(json.dumps({"case": f"part {part}", "error": words}) + "\n")


def table(rows: Mapping[str, list[dict[str, Any]]]) -> str:
    """Return all rows as one table in Markdown; equal results are counted, others are listed."""
    lines = [
        "| part | case | engine | round, s | first, s | figures |",
        "|---|---|---|---|---|---|",
    ]
    for part, each in rows.items():
        judged = [row for row in each if "equal" in row]
        if judged:
            good = sum(row["equal"] for row in judged)
            lines.append(f"| {part} | {good} of {len(judged)} comparisons equal | | | | |")
        for row in each:
            if row.get("equal") is True:
                continue
            cells = [f"{row[k]:.3g}" if k in row else "" for k in ("round", "first")]
            known = {"case", "engine", "round", "first", "equal"}
            rest = ", ".join(f"{k}: {_words(v)}" for k, v in row.items() if k not in known)
            rest = f"**not equal** {rest}" if row.get("equal") is False else rest
            words = [part, row["case"], row.get("engine", ""), *cells, rest]
            lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines)


def _words(value: Any) -> str:  # noqa: ANN401 - a cell
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {v:.3g}" for k, v in value.items())
    return str(value)


def about(device: str) -> dict[str, str]:
    """Return what the figures belong to."""
    import importlib.metadata
    from datetime import date

    card = torch.cuda.get_device_name() if device.startswith("cuda") else "CPU"
    version = importlib.metadata.version("protofl")
    cuda = str(torch.version.cuda or "")
    return {
        "card": card,
        "date": date.today().isoformat(),
        "protofl": version,
        "torch": torch.__version__,
        "cuda": cuda,
    }


def main() -> int:
    """Run the parts one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="a folder for the figures")
    parser.add_argument("--parts", default="abcdefg", help="which parts, such as ab")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU")
    parser.add_argument("--against", type=Path, help="a checkout of HtFLlib to run beside it")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if wrong := set(given.parts) - set(LIMITS):
        parser.error(f"--parts {given.parts}: there is no part {min(wrong)}, use abcdefg")
    device = "cpu" if given.tiny else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("found no CUDA device; --tiny tries all parts on the CPU")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part:
        run_part(given.part, given.out, device, tiny=given.tiny, against=given.against)
        return 0
    rows: dict[str, list[dict[str, Any]]] = {}
    for part in given.parts:
        start = time.perf_counter()
        command = [sys.executable, __file__, str(given.out), "--part", part]
        command += ["--tiny"] * given.tiny
        command += ["--against", str(given.against.absolute())] if given.against else []
        ended = ""
        with (given.out / f"{part}.log").open("w") as log:
            limit = LIMITS[part] * (10 if given.tiny or given.against else 1)
            try:
                done = subprocess.run(command, stdout=log, stderr=log, timeout=limit, check=False)
                ended = f"ended with exit code {done.returncode}" if done.returncode else ""
            except subprocess.TimeoutExpired:
                ended = f"ended after its limit of {limit} s"
        rows[part] = []
        with suppress(FileNotFoundError):
            lines = (given.out / f"{part}.jsonl").read_text().splitlines()
            rows[part] = [json.loads(line) for line in lines]
        if ended:
            rows[part].append({"case": f"part {part}", "error": ended})
        seconds = time.perf_counter() - start
        print(f"part {part}: {len(rows[part])} rows in {seconds:.0f} s", flush=True)
    facts = about(device)
    (given.out / "gpu.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    text = table(rows)
    (given.out / "gpu.md").write_text(f"{', '.join(facts.values())}\n\n{text}\n")
    print(f"\n{', '.join(facts.values())}\n{text}")
    return int(any("error" in row or row.get("equal") is False for r in rows.values() for row in r))


if __name__ == "__main__":
    sys.exit(main())
