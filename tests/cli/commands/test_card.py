"""Tests of ``protofl card``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from installing import write_dist_info

from protofl_workbench.cards import measurements, payload_sizes, step_cost

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """Measure fewer rounds than a real card, which takes seconds."""
    monkeypatch.setattr(step_cost, "FIRST", 1)
    monkeypatch.setattr(step_cost, "PAIRS", 2)


def rows_of(text, section):
    """Return the rows of the table of a section as {first cell: other cells}."""
    part = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [re.split(r"(?<!\\) \| ", row[2:-2]) for row in re.findall(r"^\| .* \|$", part, re.M)]
    return {cells[0]: cells[1:] for cells in rows}


@pytest.mark.slow
def test_a_method_of_protofl(cli):
    result = cli("card", "fedproto")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert text.startswith("# fedproto\n\nprotofl ") and "clients share: prototypes" in text
    assert "Federated Prototype Learning across Heterogeneous Clients" in text  # the paper
    assert "    P̄^c     Σ_{i in N_c}" in text  # an equation
    assert "| `lambda` | none | ≥ 0 |" in text  # an option
    assert "| `aggregate` | Eq. 3 | weighted | uniform |" in text  # a deviation
    assert "**Weak points**: prediction by the nearest prototype" in text
    assert "<!--" not in text and "](../" not in text
    sizes = rows_of(text, "Payload sizes")
    assert sizes["up: `prototypes`"][:-1] == ["[n, K]", "4·n·K", "128", "256", "256", "512"]
    assert sizes["up: in all"][1:4] == ["4·C·K + 16·C", "192", "384"]
    cost = rows_of(text, "Cost")
    assert re.fullmatch(r"\d\.\d\d \(\d\.\d\d … \d\.\d\d\)", cost["processor time of a step"][2])
    ours, local, ratio = cost["multiply-adds of a step"]
    assert float(ratio) == pytest.approx(
        int(ours.replace(",", "")) / int(local.replace(",", "")), abs=0.006
    )
    published = text.partition("## Published figures")[2]
    assert "FedTGP (Zhang et al., AAAI 2024), Table 1" in published
    assert "Pathological CIFAR-10 83.39±0.15" in published
    assert "`protofl reproduce fedtgp/table-1`" in published


@pytest.mark.slow
def test_json_has_the_same(cli):
    result = cli("card", "lg-fedavg", "--json")
    assert result.exit_code == 0, result.output
    card = json.loads(result.stdout)
    assert (card["method"], card["distribution"], card["shares"]) == (
        "lg-fedavg",
        "protofl",
        "heads",
    )
    assert card["has_page"] and card["page"].startswith("Liang et al.")
    head, samples, _ = card["measured"]["keys"]
    assert (head["name"], head["direction"]) == ("head/*", "up")
    assert head["measured"] == [4 * c * (k + 1) for c, k in payload_sizes.SIZES]
    assert samples["formula"] == "8"
    assert card["measured"]["cost"]["method"]["client_multiply_adds"] > 0
    assert {row["reproduction"] for row in card["published"]} >= {"fedtgp/table-1"}
    restored = measurements.Measurements.from_values(card["measured"])
    assert json.loads(json.dumps(restored.to_values())) == card["measured"]


def test_a_file(cli, tmp_path):
    result = cli("card", "local", "--out", "card.md")
    assert result.exit_code == 0 and result.stdout == "card: card.md\n"
    text = Path("card.md").read_text(encoding="utf-8")
    assert text.startswith("# local\n") and "Nothing travels: 0 bytes" in text
    again = cli("card", "local", "--out", "card.md")
    assert again.exit_code == 2 and "--out card.md exists already" in again.output
    assert Path("card.md").read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_a_method_of_another_package(cli, tmp_path, monkeypatch):
    """The example has no page: its docstring and declarations make the card."""
    write_dist_info(EXAMPLES / "protofl-fedsam", tmp_path / "site")
    monkeypatch.syspath_prepend(str(EXAMPLES / "protofl-fedsam"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    result = cli("card", "fedsam")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert "protofl-fedsam 0.1.0 · `protofl_fedsam:FedSAM`" in text
    assert "Qu et al." in text and "    g       ∇ℓ(w_i)" in text
    assert "| `rho` | 0.05 | ≥ 0 |" in text and "| `ce` | cross-entropy at w̃_i |" in text
    assert "`fedsam.md`, next to its module" in text
    sizes = rows_of(text, "Payload sizes")
    assert sizes["up: `model/*`"][1] == "4 · parameters: 4·C·K + 68·K + 4·C + 160"
    assert "gradients can be inverted" in sizes["up: `model/*`"][-1]
    assert "No figure yet. `protofl reproduce benchmark/htfl --add fedsam`" in text
    assert "no row of this method" in text


BROKEN = '''
import protofl as pf

class Broken:
    """It needs something that no toy problem has."""
    @pf.hookimpl
    def requires(self, run):
        return ["it needs a satellite"]
'''


@pytest.mark.slow
def test_a_class_in_a_file_that_cannot_run_here(cli):
    Path("broken.py").write_text(BROKEN)
    result = cli("card", "broken.py:Broken")
    assert result.exit_code == 0, result.output
    assert "It needs something that no toy problem has." in result.stdout
    assert "\nnot installed · `broken:Broken`" in result.stdout
    cost = result.stdout.partition("\n## Cost\n\n")[2].partition("\n")[0]
    assert cost.startswith("Not measured: ") and "it needs a satellite" in cost


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedprot", "did you mean 'fedproto'"),
        ("digits", "digits is a dataset, and only methods have cards"),
        ("trimmed-mean", "trimmed-mean only provides hooks for other methods"),
    ],
)
def test_what_has_no_card(cli, name, message):
    result = cli("card", name)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
