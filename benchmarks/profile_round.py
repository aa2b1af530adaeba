"""Where the time of a round goes: one round in this process under torch's profiler.

    python benchmarks/profile_round.py fedproto htcnn8 npz:mnist-12k.npz --clients 20

Prints the round's seconds by stage and the operations that take the most time.
"""

from __future__ import annotations

import argparse

import protofl as pf
from protofl.federation import Federation
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    """Run one round to warm up and one under the profiler."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("method")
    parser.add_argument("models")
    parser.add_argument("dataset", nargs="?", default="digits")
    parser.add_argument("--clients", type=int)
    parser.add_argument("--rows", type=int, default=15, help="operations to print")
    given = vars(parser.parse_args())
    rows = given.pop("rows")
    plan = pf.Plan.make({**given, "backend": "local"})
    backend = plan.parts["backend"]
    pool = backend.caller("open_pool", plan=plan, config=backend.config, workers=1)
    federation = Federation(plan, pool)
    federation.start_trial(0)
    federation.round(0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        line, _ = federation.round(1)
    print({stage: round(seconds, 3) for stage, seconds in line["seconds"].items()})
    print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows))


if __name__ == "__main__":
    main()
