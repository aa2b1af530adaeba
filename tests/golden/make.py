"""Write the stored results again: ``python tests/golden/make.py [NAME …]``.

Do so only if results are meant to change, and give the reason in the commit. The data (`toy.npz`)
are written only if they are missing.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "toys"))

import golden_runs
import torch
from safetensors.torch import save_file

import protofl


def main() -> None:
    """Run the toy runs and write their results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="runs to write; all by default")
    names = parser.parse_args().names or [*golden_runs.RUNS]
    for name in names:
        if name not in golden_runs.RUNS:
            parser.error(f"there is no run {name!r}; there are: {', '.join(golden_runs.RUNS)}")
    if not golden_runs.DATA.exists():
        golden_runs.make_data()
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            results = golden_runs.run(name, Path(folder))
        method, options = golden_runs.RUNS[name]
        provenance = {
            "command": f"python tests/golden/make.py {name}",
            "run": f"{method} {options}, {golden_runs.ROUNDS} rounds on toy.npz, float64",
            "protofl": protofl.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "cpu": torch.backends.cpu.get_cpu_capability(),
            "date": datetime.date.today().isoformat(),
        }
        path = golden_runs.FOLDER / f"{name}.safetensors"
        save_file(results, path, metadata=provenance)
        print(f"{path.name}: {len(results)} tensors, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
