"""Data sets of the library datasets: ``--dataset hf:NAME`` or ``hf:DIR``.

NAME is a data set on the Hugging Face Hub, such as ``hf:ylecun/mnist``. DIR is a folder that
``save_to_disk`` wrote, or one of files that ``datasets.load_dataset`` reads (Parquet, images in
class folders). The Hub's files lie in the library's cache, and a name that is there needs no
internet; with ``HF_HUB_OFFLINE=1`` nothing is asked for. What protofl decoded of a name is kept
until ``revision`` changes.

Columns are found by their types, and options name them where several fit:

    label      the one of the type ClassLabel, or a column called label, labels, target, class or y
    samples    the one of images; otherwise the one of lists of numbers; otherwise the one of texts
    others     columns of texts or whole numbers that repeat are columns of the data set:
               ``--partition column:writer_id``, or ``client=writer_id``, makes each value a client

Texts become the ids of the common words of the training part, or of a ``tokenizer`` of the library
transformers. With ``task=regression`` the label is a number. With ``task=multilabel`` it is a list
of classes, a list of 0 and 1, or several columns of 0 and 1.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

import protofl as pf
from protofl_plugins.datasets.folder import ImageConfig
from protofl_plugins.datasets.image_files import decode_images, open_image
from protofl_plugins.datasets.table_files import split_names
from protofl_plugins.datasets.texts import word_ids

_LABELS = ("label", "labels", "target", "class", "y")

_TEXTS = ("text", "sentence", "content")

_VALIDATION = ("validation", "valid", "val", "dev")

_OWN_SIDE = 128
"""Images of one square shape keep their side up to this one."""

_USUAL_SIDE = 64

_BLOCK = 4096
"""Texts that a tokenizer reads at once."""

_NUMBERS = ("int", "uint", "float", "bool")

_AS_TABLE = "save it with to_parquet('FILE'), and use --dataset parquet:FILE"


class HuggingFace:
    """A data set of the library datasets, from the Hub, its cache or a folder (hf:NAME)."""

    argument = "name_or_path"
    defaults: ClassVar[dict[str, Any]] = {}
    client_option: ClassVar[str] = "client"

    class Config(ImageConfig, pf.datasets.TaskOptions):
        """Options of hf."""

        name_or_path: str = pf.Field(description="the name on the Hub, or a folder")
        configuration: str | None = pf.Field(
            None, description="which configuration (subset) of the data set, if it has several"
        )
        revision: str | None = pf.Field(
            None, description="branch, tag or commit on the Hub. None: main"
        )
        label: str | None = pf.Field(
            None,
            description="the column of the classes or numbers, or A,B for several labels. None: by "
            "type and name",
        )
        client: str | None = pf.Field(
            None,
            description="the column that names each sample's client; the same as "
            "--partition column:CLIENT. None: the partitioner divides",
        )
        samples: str | None = pf.Field(
            None, description="the column of the samples. None: by type, images before texts"
        )
        train: str = pf.Field("train", description="the split of training samples")
        test: str | None = pf.Field(
            "test", description="the split of test samples, if there is such a split"
        )
        validation: Literal["out", "train", "test"] = pf.Field(
            "out",
            description="where samples of a validation split go: nowhere (but to the test part if "
            "there is no other), to the training or to the test samples",
        )
        kind: Literal["image", "series", "tokens", "table"] | None = pf.Field(
            None, description="what lists of numbers are. None: what their shape and type suggest"
        )
        side: int | None = pf.Field(  # type: ignore[assignment]
            None,
            ge=4,
            le=512,
            description="sides of the images in pixels. None: their own if all have one square "
            "shape of up to 128 pixels, otherwise 64",
        )
        length: int = pf.Field(64, ge=4, le=4096, description="tokens of a text")
        vocabulary: int = pf.Field(
            10_000, ge=10, le=1_000_000, description="largest number of ids of words"
        )
        tokenizer: str | None = pf.Field(
            None,
            description="name or folder of a tokenizer of transformers. None: the words that occur "
            "twice or more in the training part",
        )
        standardise: bool = pf.Field(
            False,
            description="bring every column of a table, every channel of a series to mean 0 and "
            "standard deviation 1 over training rows",
        )

    @pf.hookimpl
    def cache_key(self, config: Config, data_dir: Path) -> str:
        """The name and the options; of a folder also the files' sizes and times."""
        chosen = config.model_dump(exclude_defaults=True, exclude={"name_or_path"})
        options = (pf.datasets.ImageFiles.decoding, "words 2", *sorted(chosen.items()))
        root = pf.expand_user(config.name_or_path)
        if root.is_dir():
            files = sorted(file for file in root.rglob("*") if file.is_file())
            return pf.datasets.files_key("hf", root, files, *options)
        digest = hashlib.sha256(repr((config.name_or_path, options)).encode()).hexdigest()[:12]
        stem = re.sub(r"[^a-z0-9]+", "-", config.name_or_path.lower()).strip("-")[:40]
        return f"hf-{stem}-{digest}"

    @pf.hookimpl
    def decode(self, config: Config, data_dir: Path) -> pf.datasets.Dataset:
        """Load the splits and decode the columns of samples, labels and clients.

        Raises:
            UsageError: The library is missing, the data set can't be had, or its columns don't fit.
        """
        return _Reading(config).dataset()


class _Reading:
    """The reading of a data set.

    Attributes:
        config: The options.
        notes: What was done, for the user.
        left_out: Rows without an image that can be read.
    """

    def __init__(self, config: HuggingFace.Config) -> None:
        self.config = config
        self.notes: list[str] = []
        self.left_out: list[int] = []
        self.source = f"hf:{config.name_or_path}"
        self.task = pf.datasets.Task.of(config)
        self.has_classes = self.task.name in ("classification", "language-model")

    def dataset(self) -> pf.datasets.Dataset:
        """Return the data set."""
        splits = _splits(self.config)
        features = next(iter(splits.values())).features
        labels = self._labels(features)
        parts = self._parts(splits, labels[0])
        num_train = sum(len(part) for part, training in parts if training)
        y: np.ndarray
        if self.has_classes:
            names = getattr(features[labels[0]], "names", None)
            y, classes = self._classes(_joined(parts, labels[0]), names, labels[0])
        else:
            y, classes = self._targets(parts, features, labels)
        x, options, used = self._samples(parts, features, labels)
        columns = self._columns(parts, features, {*labels, *used})
        data = pf.datasets.dataset_from_arrays(
            [
                (x[rows], y[rows], f"{self.source} ({part})")
                for rows, part in (
                    (slice(None, num_train), "training part"),
                    (slice(num_train, None), "test part"),
                )
                if len(y[rows])
            ],
            num_train=num_train,
            classes=classes,
            columns=columns,
            task=self.task,
            **options,
        )
        data.note = "; ".join(filter(None, (*self.notes, data.note)))
        return data.without(self.left_out)

    # --- splits and columns ---------------------------------------------------------------------

    def _parts(self, splits: Mapping[str, Any], label: str) -> list[tuple[Any, bool]]:
        """Return the splits that are used, those of training samples (True) first."""
        c = self.config
        if c.train not in splits and (len(splits) > 1 or c.train != "train"):
            raise pf.UsageError(
                f"{self.source} has no split {c.train!r}",
                f"splits: {', '.join(splits)}",
                "--set dataset.train=SPLIT",
            )
        train = c.train if c.train in splits else next(iter(splits))
        if c.test not in ("test", None, *splits):
            raise pf.UsageError(
                f"{self.source} has no split {c.test!r}",
                f"splits: {', '.join(splits)}",
                "--set dataset.test=SPLIT",
            )
        test = c.test if c.test in splits and c.test != train else None
        if test is not None and self._is_unlabelled(splits[test], label):
            self.notes.append(f"the split {test} has no labels (-1) and is left out")
            test = None
        between = next((n for n in _VALIDATION if n in splits and n not in (train, test)), None)
        if between is not None and self._is_unlabelled(splits[between], label):
            between = None
        parts = [(splits[train], True)]
        if between is not None and c.validation == "train":
            parts.append((splits[between], True))
        elif between is not None and (c.validation == "test" or test is None):
            parts.append((splits[between], False))
            if c.validation == "out":
                self.notes.append(f"the split {between} is the test part")
        elif between is not None:
            self.notes.append(
                f"the split {between}, {len(splits[between]):,} samples, is left out "
                "(--set dataset.validation=train adds it to the training samples)"
            )
        if test is not None:
            parts.append((splits[test], False))
        other = [n for n in splits if n not in (train, test, between, *_VALIDATION)]
        if c.test in other:
            other.remove(c.test)
        if other:
            self.notes.append(f"splits left out: {', '.join(other)}")
        if not len(parts[0][0]):
            raise pf.UsageError(f"{self.source}: the split {train} is empty")
        return [part for part in parts if len(part[0])]

    @staticmethod
    def _is_unlabelled(split: Any, label: str) -> bool:  # noqa: ANN401 - a datasets.Dataset
        if not len(split) or getattr(split.features[label], "names", None) is None:
            return False
        return bool((_values(split, label) == -1).all())

    def _labels(self, features: Mapping[str, Any]) -> list[str]:
        """Return the columns of the labels; several for a multi-label task."""
        given = self.config.label
        if given is not None:
            several = self.task.name == "multilabel" and given not in features
            names = split_names(given) if several else [given]
            return [self._named(features, name, "label") for name in names]
        typed = [name for name, feature in features.items() if _type(feature) == "ClassLabel"]
        typed = [n for n in typed if n in _LABELS] or typed
        found = typed or [name for name in _LABELS if name in features][:1]
        if len(found) != 1:
            raise pf.UsageError(
                f"{self.source}: several columns hold classes: {', '.join(found)}"
                if found
                else f"{self.source}: no column holds classes by its type or name",
                f"columns: {', '.join(features)}",
                f"--set dataset.label={found[0] if found else 'COLUMN'}",
            )
        return found

    def _named(self, features: Mapping[str, Any], name: str, option: str) -> str:
        if name not in features:
            near = difflib.get_close_matches(name, features, n=1)
            raise pf.UsageError(
                f"{self.source} has no column {name!r} (dataset.{option})",
                f"columns: {', '.join(features)}" + (f"; did you mean {near[0]}?" if near else ""),
            )
        return name

    def _columns(
        self, parts: list[tuple[Any, bool]], features: Mapping[str, Any], used: set[str]
    ) -> dict[str, np.ndarray]:
        """Return further columns of texts and whole numbers that repeat, and the client's."""
        c = self.config
        asked = {n: o for o, n in (("client", c.client), ("group", c.group)) if n is not None}
        for name, option in asked.items():
            self._named(features, name, option)
        result = {}
        for name, feature in features.items():
            kind = str(getattr(feature, "dtype", ""))
            plain = _type(feature) in ("Value", "ClassLabel") and (
                kind.endswith("string") or kind.startswith(("int", "uint", "bool"))
            )
            if name not in asked and (name in used or not plain):
                continue
            values = _joined(parts, name)
            names = getattr(feature, "names", None)
            if names is not None:
                values = np.array(["", *names])[values.astype(np.int64) + 1]
            if name in asked or len(np.unique(values.astype(str))) <= len(values) // 2:
                result[name] = values
        return result

    def _classes(
        self, values: np.ndarray, names: Sequence[str] | None, label: str
    ) -> tuple[np.ndarray, list[str] | None]:
        """Return class numbers [N] and names of the classes."""
        if values.dtype == object and any(isinstance(v, (list, np.ndarray)) for v in values):
            raise pf.UsageError(
                f"{self.source}: the column {label!r} holds lists",
                "a sample has one class",
                "for several labels of a sample: --set dataset.task=multilabel",
            )
        if names is not None and not (values.dtype.kind == "f" and np.isnan(values).any()):
            return values.astype(np.int64), [*names]
        if values.dtype.kind == "b":
            values = values.astype(np.int64)
        if values.dtype.kind in "iu":
            return values, None
        texts = np.array(
            ["" if value is None or value != value else str(value) for value in values]
        )
        if values.dtype.kind == "f" or (texts == "").any():
            other = "name another column: --set dataset.label=COLUMN"
            if gaps := int((texts == "").sum()):
                raise pf.UsageError(
                    f"{self.source}: no label in {gaps:,} of {len(texts):,} rows "
                    f"(column {label!r})",
                    do=f"leave such rows out, or {other}",
                )
            raise pf.UsageError(
                f"{self.source}: the column {label!r} holds floats, not classes",
                do=f"predict the numbers: --set dataset.task=regression; or {other}",
            )
        found, y = np.unique(texts, return_inverse=True)
        return y, found.tolist()

    def _targets(
        self, parts: list[tuple[Any, bool]], features: Mapping[str, Any], labels: list[str]
    ) -> tuple[np.ndarray, list[str]]:
        """Return labels [N, L] or numbers [N, 1], and the names of the columns."""
        if len(labels) > 1 or not _is_list(features[labels[0]]):
            return np.stack([self._numbers(_joined(parts, n), n) for n in labels], 1), labels
        if self.task.name == "regression":
            raise pf.UsageError(
                f"{self.source}: the column {labels[0]!r} holds lists",
                "regression takes one number for each sample",
                "name another column: --set dataset.label=COLUMN",
            )
        rows = [row for part, _ in parts for row in part.with_format(None)[labels[0]]]
        if None in rows:
            raise pf.UsageError(
                f"{self.source}: no label in row {rows.index(None)} (column {labels[0]!r})",
                do="leave such rows out, or give them an empty list",
            )
        names = getattr(getattr(features[labels[0]], "feature", None), "names", None)
        widths = {len(row) for row in rows}
        if names is None and len(widths) == 1 and {v for row in rows for v in row} <= {0, 1}:
            return np.array(rows), [f"label {n}" for n in range(widths.pop())]
        found = [*range(len(names))] if names else sorted({value for row in rows for value in row})
        place = {value: n for n, value in enumerate(found)}
        several = np.zeros((len(rows), len(found)), np.uint8)
        for n, row in enumerate(rows):
            several[n, [place[value] for value in row]] = 1
        return several, [*names] if names else [str(value) for value in found]

    def _numbers(self, values: np.ndarray, name: str) -> np.ndarray:
        """Return labels [N] of a column as numbers, NaN for none."""
        if values.dtype.kind in "biuf":
            return values
        for row, value in enumerate(values.tolist()):
            if value is not None and not isinstance(value, (bool, int, float)):
                raise pf.UsageError(
                    f"{self.source}: the label {value!r} in row {row} (column {name!r})",
                    "expected a number"
                    + ", or a list of classes" * (self.task.name == "multilabel"),
                    "name another column: --set dataset.label=COLUMN",
                )
        return values.astype(np.float64)

    # --- samples --------------------------------------------------------------------------------

    def _samples(
        self, parts: list[tuple[Any, bool]], features: Mapping[str, Any], labels: list[str]
    ) -> tuple[np.ndarray, dict[str, Any], list[str]]:
        """Return samples [N, …], arguments of `dataset_from_arrays`, and the columns used."""
        c = self.config
        others = {k: f for k, f in features.items() if k not in (*labels, c.client)}
        if c.samples is not None:
            others = {c.samples: features[self._named(features, c.samples, "samples")]}
        images = [name for name, feature in others.items() if _type(feature) == "Image"]
        kinds = {name: str(getattr(feature, "dtype", "")) for name, feature in others.items()}
        texts = [name for name, kind in kinds.items() if kind.endswith("string")]
        called = [name for name in texts if name in _TEXTS]
        texts = called or texts
        arrays = [name for name, feature in others.items() if _is_array(feature)]
        found = images or [*arrays, *texts]
        if texts and not (images or arrays or called):  # perhaps the rows of a table
            found += [name for name, kind in kinds.items() if kind.startswith(_NUMBERS)]
        if len(found) > 1:
            raise pf.UsageError(
                f"{self.source}: several columns could be the samples: {', '.join(found)}",
                do=f"--set dataset.samples={found[0]}; of a table: {_AS_TABLE}",
            )
        if images:
            return self._images(parts, images[0]), {}, images
        if arrays:
            return (
                self._arrays(parts, arrays[0]),
                {"kind": c.kind, "standardise": c.standardise},
                arrays,
            )
        if texts:
            return *self._texts(parts, texts[0]), texts
        types = ", ".join(f"{name} ({_type(f)})" for name, f in others.items())
        raise pf.UsageError(
            f"{self.source}: no column holds images, texts or lists of numbers",
            f"columns beside the label: {types or 'none'}",
            "convert a column with datasets (map, cast_column), and save_to_disk; of a table: "
            f"{_AS_TABLE}",
        )

    def _images(self, parts: list[tuple[Any, bool]], name: str) -> np.ndarray:
        """Return images [N, C, side, side] uint8, C 1 if all are grey."""
        import datasets
        import PIL.Image

        undecoded = datasets.Image(decode=False)
        raw = [part.select_columns([name]).cast_column(name, undecoded) for part, _ in parts]
        ends = np.cumsum([len(part) for part in raw])

        def file_of(row: int) -> tuple[Any, str]:
            part = int(np.searchsorted(ends, row, side="right"))
            place = row - int(ends[part - 1]) if part else row
            held = raw[part][place][name]
            title = f"{self.source}, row {place} of {raw[part].split or 'the split'}"
            if not held or not (held.get("bytes") or held.get("path")):
                raise pf.UsageError(f"{title}: no image", do="leave such rows out (filter)")
            return io.BytesIO(held["bytes"]) if held.get("bytes") else Path(held["path"]), title

        def image_of(row: int) -> tuple[Any, str]:
            source, title = file_of(row)
            return open_image(source, title), title

        shapes, modes = set(), set()
        for row in range(int(ends[-1])):  # of the files' heads alone
            with suppress(OSError, pf.UsageError):  # decode_images names such rows
                with PIL.Image.open(file_of(row)[0]) as head:
                    shapes.add(head.size)
                    modes.add(head.mode)
        side = self.config.side
        if side is None:
            width, height = next(iter(shapes), (0, 0))
            own = len(shapes) == 1 and width == height <= _OWN_SIDE
            side = width if own else _USUAL_SIDE
            if not own:
                self.notes.append(f"images are brought to {side}×{side} pixels (dataset.side)")
        files = self.config.files
        skip = self.config.skip_unreadable
        decoded = decode_images(int(ends[-1]), image_of, side, files=files, skip=skip)
        self.left_out = decoded.left_out
        self.notes += decoded.notes
        return decoded.x[:, :1] if modes <= {"L", "1"} else decoded.x

    def _arrays(self, parts: list[tuple[Any, bool]], name: str) -> np.ndarray:
        """Return lists of numbers of one shape as an array [N, …]."""
        values = [part.with_format("numpy")[name][:] for part, _ in parts]
        if (
            any(v.dtype.kind not in "iufb" for v in values)
            or len({v.shape[1:] for v in values}) > 1
        ):
            raise pf.UsageError(
                f"{self.source}: the lists in column {name!r} differ in length",
                do="bring them to one length (map), or choose another column: "
                "--set dataset.samples=COLUMN",
            )
        joined = np.concatenate(values)
        return joined.astype(np.float32) if joined.dtype.kind in "bf" else joined

    def _texts(self, parts: list[tuple[Any, bool]], name: str) -> tuple[np.ndarray, dict[str, Any]]:
        """Return token ids [N, L], and arguments of `dataset_from_arrays`."""
        c = self.config
        texts = [text for part, _ in parts for text in part[name]]
        if (
            gap := next((i for i, t in enumerate(texts) if not isinstance(t, str)), None)
        ) is not None:
            raise pf.UsageError(
                f"{self.source}: no text in row {gap} (column {name!r})", do="leave such rows out"
            )
        if c.tokenizer is None:
            num_train = sum(len(part) for part, training in parts if training)
            ids, words, note = word_ids(texts, num_train, c.length, c.vocabulary, self.source)
            self.notes.append(note)
            options = {"vocabulary": words.vocabulary, "padding": words.padding}
            return ids, {
                "kind": "tokens",
                "preparation": pf.datasets.Preparation(words=words),
                **options,
            }
        tokenizer = _tokenizer(c.tokenizer)
        if tokenizer.pad_token_id is None:
            raise pf.UsageError(
                f"the tokenizer {c.tokenizer} has no padding token",
                do="give it one (tokenizer.pad_token = tokenizer.eos_token) and save_pretrained",
            )
        blocks = [
            tokenizer(
                texts[start : start + _BLOCK],
                truncation=True,
                padding="max_length",
                max_length=c.length,
                return_tensors="np",
            )["input_ids"]
            for start in range(0, len(texts), _BLOCK)
        ]
        return np.concatenate(blocks).astype(np.int64), {
            "kind": "tokens",
            "vocabulary": len(tokenizer),
            "padding": int(tokenizer.pad_token_id),
        }


# --- the library --------------------------------------------------------------------------------


def _splits(config: HuggingFace.Config) -> Mapping[str, Any]:
    """Return {split: data set} of the library.

    Raises:
        UsageError: The library is missing, or the data set can't be had.
    """
    try:
        import datasets
        from huggingface_hub.constants import HF_HUB_OFFLINE
    except ImportError as error:
        raise pf.UsageError(
            f"hf:{config.name_or_path} needs the package datasets, which is not installed: {error}",
            do="pip install 'protofl[hf]'",
        ) from error
    root = pf.expand_user(config.name_or_path)
    try:
        if (root / "dataset_dict.json").is_file() or (root / "state.json").is_file():
            loaded = datasets.load_from_disk(str(root))
        else:
            name = str(root) if root.is_dir() else config.name_or_path
            options = {"revision": config.revision} if config.revision else {}
            loaded = datasets.load_dataset(name, config.configuration, **options)
    except Exception as error:  # of datasets, huggingface_hub, pyarrow and the OS
        raise _not_loaded(config, error, offline=bool(HF_HUB_OFFLINE)) from error
    if isinstance(loaded, datasets.DatasetDict):
        return {**loaded}
    return {str(loaded.split or "train"): loaded}


def _not_loaded(config: HuggingFace.Config, error: Exception, *, offline: bool) -> pf.UsageError:
    """Return the error about a data set that the library does not load, with a remedy."""
    first = str(error).strip().partition("\n")[0][:300]
    what = f"hf:{config.name_or_path} cannot be loaded: {first or type(error).__name__}"
    if "onfig name is missing" in str(error) or "BuilderConfig" in str(error):
        names = " ".join(str(error).split())[:400]
        return pf.UsageError(
            f"hf:{config.name_or_path} has several configurations, or not the named one",
            names,
            "--set dataset.configuration=NAME",
        )
    if "/" in config.name_or_path and pf.expand_user(config.name_or_path).is_dir():
        return pf.UsageError(what, do="give a folder that save_to_disk wrote, or of Parquet files")
    if "Dataset scripts" in str(error) or "custom code" in str(error):
        return pf.UsageError(
            what,
            "the data set is a script, which is not run; the Hub converts many of them to Parquet",
            "read these files: --set dataset.revision=refs/convert/parquet",
        )
    if isinstance(error, ConnectionError) or offline:
        near = (
            "HF_HUB_OFFLINE=1 is set, and the cache of datasets does not have it"
            if offline
            else "there is no internet, and the cache of datasets does not have it"
        )
        return pf.UsageError(
            what,
            near,
            "where there is internet: "
            f"datasets.load_dataset({config.name_or_path!r}).save_to_disk('DIR'); "
            "copy the folder, and use --dataset hf:DIR",
        )
    return pf.UsageError(
        what,
        "expected a name on the Hugging Face Hub (owner/name), or a folder",
        "correct the name; for a gated data set log in: hf auth login",
    )


def _tokenizer(name: str) -> Any:  # noqa: ANN401 - transformers is optional
    try:
        import transformers
    except ImportError as error:
        raise pf.UsageError(
            f"dataset.tokenizer={name} needs transformers, which is not installed: {error}",
            do="pip install 'protofl[transformers]', or leave the option out",
        ) from error
    path = pf.expand_user(name)
    try:
        return transformers.AutoTokenizer.from_pretrained(str(path) if path.is_dir() else name)
    except Exception as error:  # of transformers, tokenizers, huggingface_hub and the OS
        first = str(error).strip().partition("\n")[0][:300]
        raise pf.UsageError(
            f"dataset.tokenizer={name} cannot be loaded: {first}",
            do="give a folder that the tokenizer's save_pretrained wrote, or a name on the Hub",
        ) from error


def _type(feature: Any) -> str:  # noqa: ANN401 - a feature of datasets
    return type(feature).__name__


def _is_list(feature: Any) -> bool:  # noqa: ANN401 - a feature of datasets
    return _type(feature) in ("List", "LargeList", "Sequence") or _type(feature).startswith("Array")


def _is_array(feature: Any) -> bool:  # noqa: ANN401 - a feature of datasets
    if _type(feature).startswith("Array"):
        return True
    while _type(feature) in ("List", "LargeList", "Sequence"):
        feature = feature.feature
        if _type(feature) == "Value" and str(feature.dtype).startswith(_NUMBERS):
            return True
    return False


def _values(split: Any, name: str) -> np.ndarray:  # noqa: ANN401 - a datasets.Dataset
    """Return a column [n] of numbers or texts; texts as objects."""
    values = split.with_format("numpy")[name][:]
    return np.asarray(values)


def _joined(parts: list[tuple[Any, bool]], name: str) -> np.ndarray:
    return np.concatenate([_values(part, name) for part, _ in parts])
