"""Measure how close FedKTL's F brings prototypes to a generator's latent vectors, by F's width.

    python benchmarks/fedktl_alignment.py --rounds 4 --seeds 0 1 2

Runs only the server of FedKTL. Each of eight simulated clients uploads prototypes of five of ten
classes: columns of V plus noise, with a length that grows from round to round. For every width and
seed, the script prints L_MMD of the transformed prototypes after each round (0.08 to 0.1 is the
minimum for forty vectors) and the squared length of each class's Q̄^c. The mean squared length of
the latent vectors is printed first.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import protofl as pf
from protofl import functional as F
from protofl_plugins.generators.tiny_style.plugin import TinyStyle
from protofl_plugins.methods.fedktl import FedKTL, mmd_rbf

CLIENTS, CLASSES, OWN = 8, 10, 5


def main() -> None:
    """Train F at each width and print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[10, 32, 128, 512])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--official", action="store_true", help="variant=official")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    generator = TinyStyle().open_generator(TinyStyle.Config(), cpu, Path())
    w = generator.sample_latents(500, torch.Generator().manual_seed(9))
    print(f"w: squared length {w.square().sum(1).mean():.0f}")
    for width in arguments.widths:
        for seed in arguments.seeds:
            torch.manual_seed(seed)
            server = make_server(generator, seed, width, arguments.official)
            method, far = FedKTL(), []
            method.setup_server(server)
            for number in range(arguments.rounds):
                uploads = prototypes(number)
                pairs = method.server_train(server, uploads)
                P = torch.cat([upload["prototypes"] for upload in uploads.values()])
                with torch.no_grad():
                    far.append(float(mmd_rbf(server.modules["F"](P), w)))
            lengths = pairs["latents"].square().sum(1).sort().values.tolist()
            print(
                f"width {width}, seed {seed}: L_MMD {' '.join(f'{x:.2f}' for x in far)}, "
                f"lengths of Q̄^c {' '.join(f'{x:.0f}' for x in lengths)}",
                flush=True,
            )


def make_server(generator: pf.datasets.Generator, seed: int, width: int, official: bool) -> Any:  # noqa: ANN401
    """Return a stand-in for the server with the attributes that FedKTL uses."""
    variant = "official" if official else "paper"
    options = FedKTL.Config(variant=variant, K=CLASSES, hidden=width, guide_batch=CLASSES)
    return SimpleNamespace(
        config=options,
        num_classes=CLASSES,
        device=torch.device("cpu"),
        modules={},
        state={},
        generator_outline=generator.outline,
        generator=lambda purpose: torch.Generator().manual_seed(seed),
        epochs=range,
        sample_latents=lambda n, chance, labels=None: generator.sample_latents(n, chance),
        generate=lambda latents: latents,
    )


def prototypes(number: int) -> dict[int, pf.Payload]:
    """Return the clients' uploads of a round."""
    chance = torch.Generator().manual_seed(100 + number)
    V = F.simplex_etf(CLASSES, CLASSES, torch.Generator().manual_seed(1)).T
    uploads = {}
    for client in range(CLIENTS):
        classes = torch.randperm(CLASSES, generator=chance)[:OWN]
        noise = 0.1 * torch.randn(OWN, CLASSES, generator=chance)
        rows = (0.4 + 0.3 * number) * V[classes] + noise
        uploads[client] = pf.Payload(prototypes=rows, classes=classes)
    return uploads


if __name__ == "__main__":
    main()
