"""Tests of reproduction files: valid content, and errors about mistakes."""

from __future__ import annotations

import re

import pytest

from protofl import UsageError
from protofl.federation.plan.resolution import resolve
from protofl_workbench.reproductions.cells import Change, cells_of
from protofl_workbench.reproductions.finding import (
    collections,
    find_reproduction,
    reproduction_of_file,
)
from protofl_workbench.reproductions.reproduction_execution import run_reproduction

BASE = """
paper = "A paper"

[options]
models = "htcnn8"
dataset = "cifar10"
rounds = 100
clients = 20
set = { partition.beta = 0.1 }

[rows]
fedproto = { label = "FedProto" }

[scales.smoke]
about = "small"
rounds = 2
dataset = "digits"
clients = { "20" = 4, "*" = 5 }
[scales.smoke.set]
partition.beta = 0.5
fedtgp.S = { "100" = 7, "*" = 3 }
fedsa.alpha = 0.5
"""

TABLE = """extends = "base"
title = "A table"
place = "Table 1"
figure = "final"

[columns]
skewed = { label = "Skewed", partition = "dirichlet" }
many = { partition = "pathological", clients = 50, set = { partition.beta = 0.3 } }

[rows]
few-epochs = { method = "fedtgp", set = { S = 100, tau = 1 }, figure = "best" }

[published]
fedproto = "80.0±0.1 –"
few-epochs = "? 70.25"
"""


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a reproduction and its base file."""

    def write(text=TABLE, base=BASE):
        (tmp_path / "base.toml").write_text(base, encoding="utf-8")
        path = tmp_path / "table.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def options(cells, row, column):
    return next(c for c in cells if (c.row, c.column) == (row, column)).options


def test_rows_and_columns_are_those_of_the_file(written):
    reproduction = reproduction_of_file(written())
    assert [*reproduction.rows] == ["fedproto", "few-epochs"]
    assert [*reproduction.columns] == ["skewed", "many"]
    assert reproduction.rows["fedproto"].label == "FedProto"
    assert reproduction.published["few-epochs", "many"] == "70.25"
    assert reproduction.is_empty("fedproto", "many") and not reproduction.is_empty(
        "few-epochs", "skewed"
    )
    assert reproduction.heading == "A paper, Table 1: A table"
    assert reproduction.figure_of("few-epochs", "many").read == "best"
    assert reproduction.figure_of("fedproto", "skewed").read == "final"


def test_a_cell_has_the_options_of_all_then_of_its_column_then_of_its_row(written):
    cells = cells_of(reproduction_of_file(written()), Change())
    found = options(cells, "few-epochs", "many")
    assert (found["method"], found["clients"], found["rounds"]) == ("fedtgp", 50, 100)
    assert found["set"] == {"partition.beta": 0.3, "S": 100, "tau": 1}
    request = next(c for c in cells if c.row == "few-epochs").request()
    assert request.options["options"] == {
        "partition": {"beta": 0.1},
        "fedtgp": {"S": 100, "tau": 1},
    }
    assert options(cells, "fedproto", "many") == {}, "the paper leaves it empty"


def test_a_scale_takes_the_place_of_options(written):
    cells = cells_of(reproduction_of_file(written()), Change(scale="smoke"))
    first, last = options(cells, "few-epochs", "skewed"), options(cells, "few-epochs", "many")
    assert (first["dataset"], first["rounds"]) == ("digits", 2)
    assert (first["clients"], last["clients"]) == (4, 5)
    assert first["set"] == {"partition.beta": 0.5, "S": 7, "tau": 1}
    of_another_method = options(cells, "fedproto", "skewed")["set"]
    assert of_another_method == {"partition.beta": 0.5}


def test_the_user_s_changes_are_above_all(written):
    change = Change(
        scale="smoke",
        only=("few-epochs",),
        columns=("many",),
        rounds=9,
        trials=2,
        datasets={"digits": "npz:other.npz"},
        options={"device": "cpu", "set": {"fedtgp.tau": 5}},
    )
    (cell,) = cells_of(reproduction_of_file(written()), change)
    found = cell.options
    assert (found["rounds"], found["trials"], found["dataset"]) == (9, 2, "npz:other.npz")
    assert found["set"]["fedtgp.tau"] == 5 and found["device"] == "cpu"
    assert cell.rounds == 9


def test_what_a_file_says_is_nobody_s_consent(written):
    text = TABLE.replace("tau = 1", "tau = 1, dataset.trust_pickle = true")
    (cell,) = cells_of(
        reproduction_of_file(written(text)), Change(only=("few-epochs",), columns=("many",))
    )
    assert cell.request().said == {}
    typed = Change(only=("few-epochs",), columns=("many",), options={"set": {"dataset.kind": "x"}})
    (cell,) = cells_of(reproduction_of_file(written(text)), typed)
    assert cell.request().said == {"dataset": {"kind": "x"}}


MISTAKES = [
    ("title =", "titel =", "table.toml, titel: unknown key 'titel'", "'title'"),
    ('figure = "final"', 'figure = "finale"', "unknown figure 'finale'", "'final'"),
    (
        'figure = "final"',
        'kind = "tabel"',
        "unknown kind of reproduction 'tabel'",
        "'table'",
    ),
    ('figure = "final"', 'figure = { read = "rounds-to" }', "rounds-to needs a target", ""),
    (
        'figure = "final"',
        'figure = { reads = "best" }',
        "unknown key 'reads'",
        "'read'",
    ),
    ('figure = "final"', 'variant = "offical"', "unknown variant 'offical'", ""),
    ("clients = 50", "client = 50", "unknown option 'client'", "'clients'"),
    ('"80.0±0.1 –"', '"80.0±0.1"', "fedproto has 1 figures", "columns: skewed, many"),
    ('"80.0±0.1 –"', '"80.0±0.1 n/a"', "'n/a' is not a figure", "–"),
    ('"80.0±0.1 –"', "[80.0]", "fedproto: expected a string", ""),
    ("fedproto =", "fedprot =", "unknown row or method 'fedprot'", "'fedproto'"),
    ('few-epochs = "? 70.25"', "", "unknown row of [published] 'few-epochs'", ""),
    ('method = "fedtgp", ', "", "few-epochs has no method", ""),
    ("[columns]", "[columns", "table.toml is not valid TOML", ""),
    ("set = { S = 100, tau = 1 }", "set = 3", "set: expected a table, got 3", ""),
    ('= "final"', '= { read = ["best"] }', "figure.read: expected a string", ""),
    ('= "final"', "= { of = 3 }", "figure.of: expected a string, got 3", ""),
    (
        '= "final"',
        '= { read = "floats", round = "2" }',
        "figure.round: expected an integer",
        "",
    ),
    (
        '= "final"',
        '= { read = "rounds-to", target = true }',
        "figure.target: expected a number",
        "",
    ),
    ('extends = "base"', 'extends = "bose"', "unknown reproduction to extend 'bose'", ""),
    ('extends = "base"', 'extends = "table"', "table extends this file", ""),
]


@pytest.mark.parametrize(("right", "wrong", "what", "near"), MISTAKES)
def test_a_mistake_is_told_with_its_file(written, right, wrong, what, near):
    assert right in TABLE
    with pytest.raises(UsageError) as found:
        reproduction_of_file(written(TABLE.replace(right, wrong, 1)))
    assert what in found.value.what
    assert near in found.value.near


def test_a_mistake_in_a_file_that_is_extended_names_that_one(written):
    with pytest.raises(UsageError, match=r"base\.toml, options\.client: unknown option 'client'"):
        reproduction_of_file(written(base=BASE.replace("clients = 20", "client = 20")))


@pytest.mark.parametrize("how", [{"start": False}, {"start": True, "at_once": 0}])
@pytest.mark.parametrize(
    ("right", "wrong", "what"),
    [
        ("tau = 1", "tao = 1", "few-epochs, skewed"),
        ("clients = 50", "models = 'cnn5'", "few-epochs, many"),
        ("partition.beta = 0.1", "partition.bata = 0.1", "few-epochs, skewed"),
        ('= "dirichlet"', '= "dirichle"', "few-epochs, skewed"),
    ],
)
def test_an_option_that_turns_out_wrong_is_told_with_its_cell(
    written, tmp_path, right, wrong, what, how
):
    text, base = TABLE.replace(right, wrong), BASE.replace(right, wrong)
    change = Change(scale="smoke", only=("few-epochs",))
    with pytest.raises(UsageError) as found:
        run_reproduction(
            reproduction_of_file(written(text, base)), change, tmp_path / "runs", **how
        )
    assert what in found.value.what and "unknown" in found.value.what


def test_what_the_user_said_wrong_is_in_no_file(written, tmp_path):
    change = Change(scale="smoke", only=("few-epochs",), options={"set": {"fedtgp.tao": 1}})
    with pytest.raises(UsageError, match=r"^few-epochs, skewed: unknown option of fedtgp 'tao'"):
        run_reproduction(reproduction_of_file(written()), change, tmp_path / "runs", start=False)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (Change(scale="fats"), "unknown scale of table 'fats'"),
        (Change(variant="code"), "unknown variant of table 'code'"),
        (Change(only=("fedprot",)), "unknown row of table in --only 'fedprot'"),
        (Change(columns=("skew",)), "unknown column of table in --columns 'skew'"),
        (Change(datasets={"cifar": "digits"}), "unknown data set of table at scale paper 'cifar'"),
    ],
)
def test_a_change_that_is_none_is_told(written, change, what):
    with pytest.raises(UsageError) as found:
        cells_of(reproduction_of_file(written()), change)
    assert what in found.value.what


# --- installed reproductions
# ----------------------------------------------------------------------------

INSTALLED = [name for collection in collections().values() for name in collection.names()]


@pytest.mark.parametrize("name", INSTALLED)
def test_an_installed_reproduction_says_what_it_is(name):
    reproduction = find_reproduction(name)
    assert reproduction.title and reproduction.paper and reproduction.place
    assert {"paper", "fast", "smoke"} <= {*reproduction.scales}
    # A row with a published figure has one, or a sign for none, in every column.
    for row in {row for row, _ in reproduction.published}:
        assert {column for r, column in reproduction.published if r == row} == {
            *reproduction.columns
        }


def test_an_unknown_reproduction_is_told_with_near_ones():
    with pytest.raises(UsageError) as found:
        find_reproduction("fedtgp/tabel-1")
    assert "'fedtgp/table-1'" in found.value.near


@pytest.mark.parametrize("name", ["fedtgp/table-10", "fedktl/table-1", "fedsa/table-2"])
def test_the_unshuffled_variant_is_the_official_one_without_shuffling(name):
    reproduction = find_reproduction(name)
    official, unshuffled = (
        [c for c in cells_of(reproduction, Change(variant=v)) if c.options]
        for v in ("official", "unshuffled")
    )
    assert len(official) == len(unshuffled) == len(reproduction.rows) * len(reproduction.columns)
    for one, other in zip(official, unshuffled, strict=True):
        assert other.options == {**one.options, "shuffle": False}
        assert one.options.get("shuffle", True)


@pytest.mark.parametrize("variant", [None, "paper", "unshuffled"])
def test_local_trains_on_the_same_batches_as_the_methods_of_table_10(variant):
    cells = cells_of(find_reproduction("fedtgp/table-10"), Change(variant=variant))
    batches = {}
    for cell in (
        cell for cell in cells if cell.row in ("local", "fedtgp", "fedproto", "lg-fedavg")
    ):
        request = cell.request()
        settings = resolve(request.settings, request.registry).settings
        batches[cell.row] = settings.drop_last, settings.shuffle
    assert len(batches) == 4 and len(set(batches.values())) == 1, batches


def test_fedorgps_baselines_have_the_weights_of_its_scripts():
    """FedProto runs with λ = 1 and FedTGP with λ = 0.1, both of the squared distance / K."""
    reproduction = find_reproduction("fedorgp/table-1")
    for variant in ("paper", "official"):
        cells = cells_of(reproduction, Change(variant=variant, only=("fedproto", "fedtgp")))
        for cell in cells:
            own = {k: v for k, v in cell.options["set"].items() if not k.startswith("partition.")}
            weight = {"fedproto": 1, "fedtgp": 0.1}[cell.row]
            wanted = {"distance": "mse", "lambda": weight}
            if variant == "official":
                wanted[f"{cell.row}.variant"] = "official"
            assert own == wanted, (variant, cell.name)


def test_fedorgps_scripts_differ_in_one_weight():
    """They run (λ_c, λ_s, γ) = (10, 1, 10); the table's rows have λ_c = 100, the default."""
    reproduction = find_reproduction("fedorgp/table-1")
    paper, scripts = (cells_of(reproduction, Change(variant=v)) for v in ("paper", "scripts"))
    assert len(paper) == len(scripts) == 64
    for one, other in zip(paper, scripts, strict=True):
        more = {"fedorgp.lambda_c": 10} if one.row == "fedorgp" else {}
        own, changed = ({"set": {}, **cell.options} for cell in (one, other))
        assert changed == {**own, "set": {**own["set"], **more}}


def test_fedsas_variants_follow_its_own_code():
    """FedSA's data generator requires 1 sample per client; its FedDistill uses cross-entropy."""
    reproduction = find_reproduction("fedsa/table-2")
    for variant in ("official", "unshuffled", "published-splits"):
        for cell in cells_of(reproduction, Change(variant=variant)):
            assert cell.options["set"]["partition.least"] == 1, (variant, cell.name)
    cells = cells_of(reproduction, Change(variant="official", only=("feddistill",)))
    assert all(cell.options["set"]["feddistill.loss"] == "ce" for cell in cells)


def test_choices_of_an_extended_file_come_first(written):
    chosen = 'chosen = ["of all tables"]'
    path = written(f'chosen = ["of this one"]\nderived = true\n{TABLE}', f"{chosen}\n{BASE}")
    reproduction = reproduction_of_file(path)
    assert reproduction.chosen == ("of all tables", "of this one")
    assert reproduction.derived


def test_tables_are_listed_in_their_order():
    names = [n for n in INSTALLED if n.startswith("fedtgp/table-")]
    numbers = [int(re.findall(r"\d+", n)[0]) for n in names]
    assert numbers == sorted(numbers)


def test_a_distribution_s_own_collection_is_found(tmp_path, monkeypatch, written):
    """An entry point names a package. Its files may extend files of other packages."""
    package, about = tmp_path / "their_reproductions", tmp_path / "theirs-1.0.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").write_text("")
    (package / "table-2.toml").write_text(
        'extends = "fedtgp/table-10"\ntitle = "Ours"\n[published]\nfedproto = "99.0 ?"\n'
    )
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[protofl.reproductions]\nmine = their_reproductions\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert collections()["mine"].names() == ["mine/table-2"]
    reproduction = find_reproduction("mine/table-2")
    assert reproduction.origin == "theirs 1.0" and reproduction.variant == "official"
    assert [*reproduction.rows] == ["fedproto"] and [*reproduction.columns] == [
        "pathological",
        "practical",
    ]
    (cell, _) = cells_of(reproduction, Change(scale="smoke"))
    assert cell.options["dataset"] == "digits"
    assert cell.options["partition"] == "published:pathological"


def test_a_row_has_options_of_single_cells(tmp_path):
    text = (
        'title = "t"\n[options]\nmodels = "cnn4"\n[columns]\none = { lr = 0.1 }\ntwo = {}\n'
        "[rows]\nfedtgp = { set = { S = 5 }, columns = "
        "{ one = { lr = 0.5, set = { tau = 3 } } } }\n"
    )
    path = tmp_path / "t.toml"
    path.write_text(text, encoding="utf-8")
    one, two = (cell.options for cell in cells_of(reproduction_of_file(path), Change()))
    assert (one["lr"], one["set"]) == (0.5, {"S": 5, "tau": 3})
    assert "lr" not in two and two["set"] == {"S": 5}
    path.write_text(text.replace("{ one = { lr", "{ on = { lr"), encoding="utf-8")
    with pytest.raises(UsageError) as found:
        reproduction_of_file(path)
    assert "unknown column 'on'" in found.value.what
