"""Tests of the errors that a type checker finds in a method's file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
METHOD = '''
import protofl as pf
from torch.nn.functional import cross_entropy


class Guided:
    """A method with an option."""

    class Config(pf.Config):
        """Options."""

        lambda_: float = pf.Field(None, alias="lambda", ge=0, description="weight of the guidance")

    terms = {"ce": "cross-entropy"}

    @pf.hookimpl
    def before_training(self, client: pf.Client[Config]) -> pf.LossData:
        """A weight."""
        return {"weight": client.config.lambda_}

    @pf.hookimpl
    def local_loss(
        self, client: pf.Learner[Config], batch: pf.Batch, output: pf.Output, constants: pf.LossData
    ) -> pf.Terms:
        """A weighted loss."""
        weight: float = client.config.lambda_
        return {"ce": weight * cross_entropy(output.logits, batch.y)}

    @pf.hookimpl
    def server_aggregate(self, server: pf.Server[Config], uploads: pf.Uploads) -> pf.Payload:
        """Nothing, by the weight."""
        return pf.Payload() if server.config.lambda_ > 0 else pf.Payload()
'''
WRONG = {
    "client.config.lambda_}": ("client.config.lamda}", 'has no attribute "lamda"'),
    "= client.config.lambda_\n": ("= client.config.lamda\n", 'has no attribute "lamda"'),
    "server.config.lambda_": ("server.config.lamda", 'has no attribute "lamda"'),
    "output.logits": ("client.received", 'has no attribute "received"'),
}


@pytest.mark.slow
def test_a_misspelt_option_is_an_error_of_mypy(tmp_path):
    """Check all files in one run: the correct one, and one for each mistake."""
    (tmp_path / "right.py").write_text(METHOD)
    expected = {}
    for number, (right, (wrong, message)) in enumerate(WRONG.items()):
        assert METHOD.count(right) == 1
        source = METHOD.replace(right, wrong)
        (tmp_path / f"wrong{number}.py").write_text(source)
        line = next(n for n, text in enumerate(source.splitlines(), 1) if wrong.strip() in text)
        expected[f"wrong{number}.py"] = line, message
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml"]
    files = [path.name for path in sorted(tmp_path.iterdir())]
    cache = ["--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run([*command, *cache, *files], cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == len(expected), done.stdout + done.stderr
    for error, (name, (line, message)) in zip(sorted(errors), expected.items(), strict=True):
        assert error.startswith(f"{name}:{line}: ") and message in error, error
