"""Tests of data sets of the library datasets, made here and saved to disk."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import protofl as pf
from protofl.backends import Plan
from protofl_plugins.datasets.hugging_face import HuggingFace

datasets = pytest.importorskip("datasets", reason="needs the extra hf: pip install 'protofl[hf]'")

rng = np.random.default_rng(0)
PIXELS = rng.integers(0, 256, (24, 8, 8), dtype=np.uint8)
LISTS = [[1.0], [2.0]]
WRITERS = np.array(["bo", "al", "cy"])[np.arange(24) % 3].tolist()


def features(**types):
    return datasets.Features(types)


def of_images(pixels=PIXELS, **columns):
    import PIL.Image

    columns = {"writer_id": WRITERS[: len(pixels)], **columns}
    types = features(
        image=datasets.Image(),
        digit=datasets.ClassLabel(names=["no", "yes"]),
        **{name: datasets.Value("string") for name in columns},
    )
    images = [PIL.Image.fromarray(image) for image in pixels]
    labels = [row // 3 % 2 for row in range(len(pixels))]
    return datasets.Dataset.from_dict({"image": images, "digit": labels, **columns}, types)


def of_texts(column="text", labels=("bad", "good")):
    texts = ["a good day day", "bad day"] * 4
    return datasets.Dataset.from_dict(
        {column: texts, "label": [labels[1], labels[0]] * 4, "user": [1, 1, 2, 2] * 2}
    )


def save(folder, content, **more):
    content = datasets.DatasetDict({"train": content, **more}) if more else content
    content.save_to_disk(folder / "set")
    return folder / "set"


def decode(root, **options):
    return HuggingFace().decode(
        config=HuggingFace.Config(name_or_path=str(root), **options), data_dir=root
    )


def failure(root, **options):
    with pytest.raises(pf.UsageError) as error:
        decode(root, **options)
    assert error.value.do or error.value.near
    return error.value


def test_images_labels_and_clients_are_found_by_type(tmp_path):
    data = decode(save(tmp_path, of_images(), test=of_images(PIXELS[:6])))
    assert data.x.dtype == torch.uint8 and data.num_train == 24
    assert np.array_equal(data.x[:, 0].numpy(), np.concatenate([PIXELS, PIXELS[:6]]))
    assert data.classes == ["no", "yes"] and data.y[:6].tolist() == [0, 0, 0, 1, 1, 1]
    assert data.columns["writer_id"].tolist() == WRITERS + WRITERS[:6] and not data.note


def test_images_that_cannot_be_read_are_left_out(tmp_path):
    whole = of_images().cast_column("image", datasets.Image(decode=False))
    rows = [row["image"] for row in whole]
    rows[3], rows[5] = {"bytes": rows[3]["bytes"][:40], "path": None}, None
    damaged = whole.remove_columns("image").add_column("image", rows)
    root = save(tmp_path, damaged.cast_column("image", datasets.Image()))
    found = failure(root)
    assert found.what == "2 of 24 images cannot be read" and "row 3 of" in found.near
    data = decode(root, skip_unreadable=True)
    kept = [row for row in range(24) if row not in (3, 5)]
    assert np.array_equal(data.x[:, 0].numpy(), PIXELS[kept])
    assert data.columns["writer_id"].tolist() == [WRITERS[row] for row in kept]


def test_images_of_several_shapes_and_colours(tmp_path):
    import PIL.Image

    shapes = [(8, 8, 3), (10, 8, 3)]
    images = [PIL.Image.fromarray(np.full(shape, 9, np.uint8)) for shape in shapes] * 2
    made = datasets.Dataset.from_dict(
        {"image": images, "label": ["a", "b", "a", "b"]},
        features(image=datasets.Image(), label=datasets.Value("string")),
    )
    root = save(tmp_path, made)
    data = decode(root)
    assert data.x.shape == (4, 3, 64, 64) and "brought to 64×64" in data.note
    assert decode(root, side=8).x.shape == (4, 3, 8, 8) and data.classes == ["a", "b"]


@pytest.mark.parametrize("given", [{"options": {"dataset": {"client": "writer_id"}}}, {}])
def test_a_column_divides(tmp_path, given, monkeypatch):
    root = save(tmp_path, of_images())
    monkeypatch.chdir(tmp_path)
    given = given or {"partition": "column:writer_id"}
    base = {"method": "local", "models": "cnn4", "batch_size": 2, "data_dir": tmp_path / "d"}
    plan = Plan.make({**base, "dataset": "hf:set", **given})
    split = plan.split(0)
    assert plan.choices["dataset"].text == f"hf:{root}"
    rows = [torch.cat([split.train(c), split.test(c)]).sort().values.tolist() for c in range(3)]
    assert rows == [[*range(1, 24, 3)], [*range(0, 24, 3)], [*range(2, 24, 3)]]


def test_texts_become_ids_of_words(tmp_path):
    data = decode(save(tmp_path, of_texts(), test=of_texts()), length=4)
    assert data.sample.kind == "tokens" and data.classes == ["bad", "good"]
    assert data.preparation.words.words == ("day", "a", "bad", "good")
    assert data.x[:2].tolist() == [[3, 5, 2, 2], [4, 2, 0, 0]] and data.y[:2].tolist() == [1, 0]
    assert data.columns["user"].tolist() == [1, 1, 2, 2] * 4


def test_words_of_test_texts_get_no_ids(tmp_path):
    other = datasets.Dataset.from_dict(
        {"text": ["zebra zebra zebra day"] * 4, "label": ["bad", "good"] * 2, "user": [1] * 4}
    )
    first = decode(save(tmp_path / "1", of_texts(), test=of_texts()), length=4)
    second = decode(save(tmp_path / "2", of_texts(), test=other), length=4)
    assert first.preparation == second.preparation and torch.equal(first.x[:8], second.x[:8])
    assert second.x[8].tolist() == [1, 1, 1, 2]


def test_texts_by_a_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[PAD]": 0, "[UNK]": 1, "day": 2, "good": 3}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]"
    )
    tokenizer.save_pretrained(tmp_path / "tok")
    root = save(tmp_path, of_texts())
    data = decode(root, tokenizer=str(tmp_path / "tok"), length=4)
    assert data.x[:2].tolist() == [[1, 3, 2, 2], [1, 2, 0, 0]]
    assert (data.vocabulary, data.padding) == (4, 0)
    assert "cannot be loaded" in failure(root, tokenizer=str(tmp_path)).what


def test_a_script_is_refused_with_the_way_to_its_parquet_files(monkeypatch):
    def load_dataset(name, configuration):
        raise RuntimeError("Dataset scripts are no longer supported, but found plays.py")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert failure("owner/plays").do.endswith("--set dataset.revision=refs/convert/parquet")


def test_lists_of_numbers(tmp_path):
    x = rng.normal(size=(8, 2))
    made = {"x": x.tolist(), "label": [0, 3] * 4}
    data = decode(save(tmp_path, datasets.Dataset.from_dict(made)))
    assert data.sample.kind == "table" and data.classes == ["0", "3"]
    assert np.array_equal(data.x.numpy(), x.astype(np.float32))


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"dose": [1.0, 2.0], "age": [3, 4]}, "no column holds images, texts or lists"),
        ({"dose": [1.0, 2.0], "ward": ["in", "out"]}, "could be the samples: ward, dose"),
    ],
)
def test_a_table_is_refused_with_the_way_to_read_it(tmp_path, columns, what):
    error = failure(save(tmp_path, datasets.Dataset.from_dict({**columns, "label": [0, 1]})))
    assert what in error.what and "to_parquet('FILE')" in error.do


def test_numbers_are_predicted(tmp_path):
    images = of_images().add_column("age", [n / 2 for n in range(24)])
    root = save(tmp_path, images)
    data = decode(root, label="age", task="regression", scale=50)
    assert data.task == pf.datasets.Task("regression", scale=50) and data.outputs == ["age"]
    assert data.sample.kind == "image" and data.targets[3] == 1.5
    assert "--set dataset.task=regression" in failure(root, label="age").do


@pytest.mark.parametrize("form", ["classes", "numbers", "names", "flags", "columns"])
def test_several_labels(form, tmp_path):
    """Lists of classes, of numbers or names, of 0 and 1, and several columns become 0 and 1."""
    lists = [[0], [1, 2], [], [0, 2]] * 6
    flags = [[int(n in row) for n in range(3)] for row in lists]
    names, made, options = ["a", "b", "c"], of_images(), {"label": "labels"}
    if form == "columns":
        for n, name in enumerate(names):
            made = made.add_column(name, [row[n] for row in flags])
        options = {"label": "a, b,c"}
    else:
        values = {"flags": flags, "names": [[names[n] for n in row] for row in lists]}
        made = made.add_column("labels", values.get(form, lists))
    if form == "classes":
        kind = datasets.List(datasets.ClassLabel(names=names))
        made = made.cast_column("labels", kind)
    data = decode(save(tmp_path, made), task="multilabel", **options)
    assert data.targets.tolist() == flags
    shown = {"numbers": ["0", "1", "2"], "flags": ["label 0", "label 1", "label 2"]}
    assert data.outputs == shown.get(form, names)


def test_splits(tmp_path):
    parts = {"test": of_images(PIXELS[:4]), "validation": of_images(PIXELS[:3])}
    root = save(tmp_path, of_images(), **parts, extra=of_images(PIXELS[:2]))
    data = decode(root)
    assert (data.num_train, len(data.y)) == (24, 28)
    assert "validation, 3 samples, is left out" in data.note
    assert "splits left out: extra" in data.note
    assert decode(root, validation="train").num_train == 27
    assert len(decode(root, validation="test").y) == 31
    data = decode(root, train="extra", test="validation")
    assert (data.num_train, len(data.y)) == (2, 5)
    assert "has no split 'tst'" in failure(root, test="tst").what
    unlabelled = of_images(PIXELS[:4]).map(lambda row: {"digit": -1})
    data = decode(save(tmp_path / "2", of_images(), test=unlabelled))
    assert len(data.y) == 24 and "no labels (-1)" in data.note


@pytest.mark.parametrize(
    ("columns", "options", "what", "near"),
    [
        ({"x": LISTS, "z": [0, 1]}, {}, "no column holds classes", "columns: x, z"),
        ({"x": LISTS, "label": [0, 1]}, {"label": "lable"}, "'lable'", "did you mean label?"),
        ({"x": LISTS, "label": [0, 1]}, {"client": "user"}, "'user'", "columns: x, label"),
        ({"x": LISTS, "label": [0.5, 1]}, {}, "holds floats, not classes", ""),
        ({"x": LISTS, "label": ["a", None]}, {}, "no label in 1 of 2 rows", ""),
        ({"x": LISTS, "label": [0, None]}, {}, "no label in 1 of 2 rows", ""),
        ({"s": ["a", "b"], "t": ["a", "b"], "label": [0, 1]}, {}, "several columns", ""),
        ({"x": LISTS, "label": [[0], [0, 1]]}, {}, "holds lists", ""),
        ({"x": LISTS, "label": ["a", "b"]}, {"task": "regression"}, "the label 'a'", ""),
        ({"x": LISTS, "label": [1.0, None]}, {"task": "regression"}, "label nan in row 1", ""),
        ({"x": LISTS, "label": [[0], None]}, {"task": "multilabel"}, "no label in row 1", ""),
        (
            {"x": LISTS, "a": [0, 2], "b": [1, 0]},
            {"task": "multilabel", "label": "a,b"},
            "label 2 in row 1, column 0",
            "",
        ),
        ({"label": [0, 1]}, {}, "no column holds images", ""),
        ({"x": [[1.0], [2.0, 3.0]], "label": [0, 1]}, {}, "differ in length", ""),
        ({"text": ["a", None], "label": [0, 1]}, {}, "no text in row 1", ""),
    ],
)
def test_columns_that_do_not_fit(tmp_path, columns, options, what, near):
    error = failure(save(tmp_path, datasets.Dataset.from_dict(columns)), **options)
    assert what in error.what and near in error.near


def test_what_is_not_in_the_cache_offline_names_the_remedy(tmp_path):
    code = (
        "from protofl_plugins.datasets.hugging_face import HuggingFace as H\n"
        "import protofl as pf\n"
        "try: H().decode(config=H.Config(name_or_path='ylecun/mnist'), data_dir=None)\n"
        "except pf.UsageError as e: print(e.what, '|', e.near, '|', e.do)\n"
    )
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True
    )
    assert "hf:ylecun/mnist cannot be loaded" in done.stdout
    assert "HF_HUB_OFFLINE=1 is set" in done.stdout and "save_to_disk('DIR')" in done.stdout


@pytest.mark.slow
def test_a_run_is_evaluated_on_its_own_set(tmp_path):
    """A set without a test split is read as the run read it."""
    made = of_images()
    root = save(tmp_path, made)
    result = pf.run(
        method="local", models="cnn4", dataset=f"hf:{root}", rounds=1, dry_run=False,
        batch_size=4, options={"dataset": {"client": "writer_id"}}, data_dir=tmp_path / "d",
        out=tmp_path / "run", keep="last",
    )  # fmt: skip
    done = pf.load_run(result.folder).evaluate(f"hf:{root}")
    assert sum(row["samples"] for row in done.clients) == len(made)


def test_the_key(tmp_path):
    root = save(tmp_path, of_images())

    def key(path=root, **options):
        config = HuggingFace.Config(name_or_path=str(path), **options)
        return HuggingFace().cache_key(config=config, data_dir=tmp_path)

    assert key() == key() != key(side=8)
    assert key("ylecun/mnist").startswith("hf-ylecun-mnist-")
    assert key("ylecun/mnist") != key("ylecun/mnist", revision="abc")


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    error = failure("ylecun/mnist")
    assert "needs the package datasets" in error.what and "protofl[hf]" in error.do
