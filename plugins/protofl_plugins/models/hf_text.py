"""Encoders of the library transformers for token sequences: ``--models hf-text:NAME,NAME``.

NAME is a folder that ``save_pretrained`` wrote, or the name of a model in the cache of the library,
such as ``distilbert/distilbert-base-uncased``. Nothing is downloaded: ``hf download NAME`` puts a
model into the cache. Weights are read from safetensors only, and no code of the folder is run.

The features are the mean of the last layer's outputs at the real tokens of a text (mean pooling, as
in Sentence-BERT; Reimers and Gurevych, EMNLP 2019), B×H. Padding, by the id that the data set
declares, is masked in attention and left out of the mean. BERT's pooler is not used.

``--models hf-causal:NAME`` takes causal nets such as GPT-2 for data whose task is
``language-model``. Outputs are the log-probabilities of the next tokens, and there is no head.

Token ids must be those of the model's own tokenizer: ``--set dataset.tokenizer=NAME`` for ``hf:``.
"""

from __future__ import annotations

import difflib
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

import protofl as pf
from protofl_plugins.models.causal import NextTokens, check_task, whole
from protofl_plugins.models.frozen import Frozen, check_kept, frozen_part
from protofl_plugins.models.group import ModelGroup
from protofl_plugins.models.parts import Extractor
from protofl_plugins.models.text import TextNets
from protofl_plugins.shared.transformers_folders import described, library_for, quiet

ATTENTION = frozenset(
    "query value q_lin v_lin q_proj v_proj query_proj value_proj q v "
    "query_key_value qkv_proj Wqkv in_proj c_attn".split()
)
"""Names of layers that compute queries and values in nets of transformers; those of the second line
compute keys, too."""

_EXAMPLES = {"hf-text": "distilbert/distilbert-base-uncased", "hf-causal": "openai-community/gpt2"}


class TextEncoder(nn.Module):
    """An encoder, and the mean of its outputs at the real tokens: B×L → B×H.

    Args:
        net: A model of transformers.
        padding: The id of padding, which attention and the mean leave out; None without.
    """

    def __init__(self, net: nn.Module, padding: int | None) -> None:
        super().__init__()
        self.net, self.padding = net, padding

    @property
    def usual_targets(self) -> tuple[str, ...]:
        """Names of the layers that low-rank adapters change: queries and values of attention."""
        return attention_of(self.net)

    def forward(self, x: Tensor) -> Tensor:
        """Σ over real tokens of their outputs / their number; 0 where all is padding."""
        real = torch.ones_like(x) if self.padding is None else (x != self.padding).long()
        mask = None if x.is_meta else real  # masks ask for values, which meta tensors don't have
        states: Tensor = self.net(input_ids=x, attention_mask=mask).last_hidden_state
        weights = real.unsqueeze(2).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1)

    def extra_repr(self) -> str:
        """Return the padding, so that encoders that differ in it alone have different texts."""
        return f"padding={self.padding}"


class HFText(ModelGroup):
    """Encoders of transformers from folders or its cache: hf-text:NAME,… (needs transformers)."""

    argument = "names_or_paths"
    group: ClassVar[str] = "hf-text"
    own_ids = True  # the ids of a model's own tokenizer
    kinds = ("tokens",)
    feature_dim = 768
    server_extractors = tuple(e for e in TextNets.extractors if e.name == "textcnn")
    server_architecture = "textcnn"

    class Config(pf.Config):
        """Options of hf-text."""

        names_or_paths: str = pf.Field(
            description="folders, or names in the cache of Hugging Face, with commas between"
        )
        freeze: Literal["all", "none"] = pf.Field(
            "none", description="train all weights of the encoder, or none of them"
        )
        projection: bool = pf.Field(
            True, description="with freeze=all, train a linear layer from the net's own width to K"
        )
        keep_features: bool = pf.Field(
            False, description="compute the features of a client's samples once; needs freeze=all"
        )

    def folders(self, config: pf.Config) -> dict[str, Path]:
        """Return the folder of each architecture, by its name: the last part of the given name.

        Raises:
            UsageError: A name is missing or unknown, or two have the same last part.
        """
        result: dict[str, Path] = {}
        for given in cast(HFText.Config, config).names_or_paths.split(","):
            folder = _folder_of(given.strip(), self.group)
            name = Path(given.strip()).name
            if name in result:
                raise pf.UsageError(
                    f"{self.group}: two nets are called {name!r}",
                    "an architecture has the last part of its folder's name, and client i gets "
                    "number i mod their number",
                    "name each net once, or rename a folder",
                )
            result[name] = folder
        return result

    @pf.hookimpl
    def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """The encoders in the order given, each with a linear head K → C.

        Raises:
            UsageError: A name is not that of an encoder, or options contradict each other.
        """
        config = cast(HFText.Config, config)
        if config.keep_features:
            check_kept(config.freeze)
        result = []
        for name, folder in self.folders(config).items():
            _described(folder)
            build = partial(_built, folder, config.freeze, config.projection, config.keep_features)
            net = Extractor(name, build, channels_last=False, wide=True).with_head()
            result.append(replace(net, precomputed=frozen_part) if config.keep_features else net)
        return result


class HFCausal(HFText):
    """Causal nets of transformers for next tokens: hf-causal:NAME,… (needs transformers)."""

    group: ClassVar[str] = "hf-causal"
    tasks = ("language-model",)
    server_extractors = ()
    server_architecture = ""  # none: no method with a net of its own takes language models

    class Config(pf.Config):
        """Options of hf-causal."""

        names_or_paths: str = pf.Field(
            description="folders, or names in the cache of Hugging Face, with commas between"
        )

    @pf.hookimpl
    def architectures(self, config: pf.Config) -> list[pf.models.Architecture]:
        """The nets in the order given, without heads.

        Raises:
            UsageError: A name is not that of a net.
        """
        return [
            pf.models.Architecture(
                name, partial(_causal, folder), channels_last=False, eval_batch=32, head="none"
            )
            for name, folder in self.folders(config).items()
            if _described(folder)
        ]


def _folder_of(name: str, group: str) -> Path:
    """Return the folder of a net, a given one or that of the newest snapshot in the cache.

    Args:
        name: What the user gave.
        group: The name of the model group.

    Raises:
        UsageError: There is none.
    """
    if not name:
        raise pf.UsageError(
            f"the model group {group} needs names of models",
            do=f"write for example: --models {group}:{_EXAMPLES[group]}",
        )
    path = pf.expand_user(name)
    if path.is_dir():
        return path.resolve()
    library_for(f"model-group/{group}")
    import huggingface_hub as hub

    try:
        found = hub.try_to_load_from_cache(name, "config.json")
    except hub.errors.HFValidationError:
        raise pf.UsageError(
            f"{group}:{name}: there is no such folder",
            do="give a folder that save_pretrained wrote, or OWNER/NAME of a model in the cache",
        ) from None
    if isinstance(found, str):
        return Path(found).parent
    cached = sorted(repo.repo_id for repo in _cached(hub) if repo.repo_type == "model")
    near = difflib.get_close_matches(name, cached, n=1, cutoff=0.5)
    shown = f"did you mean {near[0]!r}?" if near else f"in the cache: {', '.join(cached) or 'none'}"
    raise pf.UsageError(
        f"{group}:{name}: neither a folder, nor a model in the cache of Hugging Face",
        shown,
        "give a folder that save_pretrained wrote; or, where there is internet: "
        f"hf download {name} (protofl downloads no model)",
    )


def _cached(hub: Any) -> list[Any]:  # noqa: ANN401 - comes with transformers
    try:
        return [*hub.scan_cache_dir().repos]
    except hub.errors.CacheNotFound:
        return []


def _described(folder: Path) -> tuple[Any, Any]:
    """Return the library, and the configuration of a folder's encoder.

    Raises:
        UsageError: The folder holds none, or a net that needs texts for a decoder besides.
    """
    do = "give a folder that save_pretrained wrote"
    library, config = described(folder, "model", "models of transformers", do)
    if getattr(config, "is_encoder_decoder", False):
        raise pf.UsageError(
            f"{folder} holds a net with a decoder of its own ({config.model_type})",
            do="give an encoder, such as BERT, DistilBERT or RoBERTa",
        )
    return library, config


# --- building -------------------------------------------------------------------------------------


def _built(
    folder: Path,
    freeze: str,
    projection: bool,
    keep_features: bool,
    sample: pf.datasets.SampleSpec,
    feature_dim: int,
) -> nn.Module:
    """Return a client's extractor; a frozen encoder is that of all other clients, too."""
    library, config = _described(folder)
    _check_ids(folder.name, config, sample)
    if torch.empty(0).device.type == "meta":  # only sizes are asked for
        with quiet(library):
            net = _linear(library.AutoModel.from_config(config))
        encoder: nn.Module = TextEncoder(net, sample.padding)
    else:
        dtype, stamp = torch.get_default_dtype(), _stamp(folder)
        encoder = deepcopy(_loaded(folder, freeze, keep_features, sample, dtype, stamp))
    if freeze == "all" and projection:
        return nn.Sequential(encoder, nn.Linear(int(config.hidden_size), feature_dim))
    return encoder


def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, times and sizes of a model's files, to detect changes."""
    files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
    return tuple((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files)


def _causal(
    folder: Path, sample: pf.datasets.SampleSpec, num_classes: int, feature_dim: int
) -> pf.models.SplitModel:
    """Return a client's causal net."""
    library, config = _described(folder)
    check_task("hf-causal", sample)
    _check_ids(folder.name, config, sample)
    if torch.empty(0).device.type == "meta":
        with quiet(library):
            net = Scores(_linear(library.AutoModelForCausalLM.from_config(config)))
        return whole(NextTokens(net, sample.padding, net.targets), sample)
    made = _loaded_causal(folder, sample, torch.get_default_dtype(), _stamp(folder))
    return whole(deepcopy(made), sample)


class Scores(nn.Module):
    """A causal net of transformers as a function of token ids alone: B×L → B×L×V."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.targets = net, attention_of(net)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the next tokens."""
        options = {}
        if x.is_meta:  # a whole mask, as masks that are made ask for values of tensors
            shape = len(x), 1, x.shape[1], x.shape[1]
            options["attention_mask"] = torch.zeros(shape, device=x.device)
        scores: Tensor = self.net(input_ids=x, use_cache=False, **options).logits
        return scores


@lru_cache(maxsize=8)
def _loaded_causal(
    folder: Path, sample: pf.datasets.SampleSpec, dtype: torch.dtype, stamp: object
) -> nn.Module:
    """Return the causal net with which all clients begin.

    Raises:
        UsageError: See `_read`, or a token's scores depend on later tokens.
    """
    net = Scores(_linear(_read(folder, "AutoModelForCausalLM").to(dtype)))
    with torch.no_grad(), torch.device("cpu"):
        x = sample.zeros(2)
        x[1, -1] = 1
        scores = net.eval()(x)[:, :-1]
    if not torch.allclose(scores[0], scores[1], atol=1e-4):
        raise pf.UsageError(
            f"{folder.name} is not causal: what it says of a token depends on later tokens",
            do="give a causal net, such as GPT-2, or use hf-text for classification",
        )
    return NextTokens(net, sample.padding, net.targets).train()


@lru_cache(maxsize=8)
def _loaded(
    folder: Path,
    freeze: str,
    keep_features: bool,
    sample: pf.datasets.SampleSpec,
    dtype: torch.dtype,
    stamp: object,
) -> nn.Module:
    """Return the encoder with which all clients of a net begin.

    Raises:
        UsageError: See `_read`, or the data's texts are too long.
    """
    encoder = TextEncoder(_linear(_read(folder, "AutoModel").to(dtype)), sample.padding)
    with torch.no_grad(), torch.device("cpu"):
        try:
            encoder.eval()(sample.zeros(1))
        except (IndexError, RuntimeError) as error:
            raise pf.UsageError(
                f"{folder.name} cannot take texts of {sample.shape[0]:,} tokens: {error}",
                do="take shorter ones: --set dataset.length=…",
            ) from error
    return Frozen(encoder, computed=keep_features) if freeze == "all" else encoder.train()


def _read(folder: Path, kind: str) -> nn.Module:
    """Return the net of a folder, without a pooler.

    Args:
        folder: The folder.
        kind: The library's class that reads it.

    Raises:
        UsageError: The weights are damaged or incomplete.
    """
    library, _ = _described(folder)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), quiet(library):
        try:
            net, about = getattr(library, kind).from_pretrained(
                folder, local_files_only=True, use_safetensors=True, output_loading_info=True
            )
        except Exception as error:  # of transformers, safetensors and the OS
            first = str(error).strip().partition("\n")[0][:300]
            raise pf.UsageError(
                f"{folder} cannot be loaded: {first or type(error).__name__}",
                do="save the model there again with save_pretrained (safetensors)",
            ) from error
    missing = sorted(name for name in about["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise pf.UsageError(
            f"{folder}: the weights lack {missing[0]}"
            + f" and {len(missing) - 1} more tensors" * (len(missing) > 1),
            do="save the whole model there with save_pretrained",
        )
    return cast(nn.Module, net)


def _check_ids(name: str, config: Any, sample: pf.datasets.SampleSpec) -> None:  # noqa: ANN401
    """Check that a net knows the token ids of the data, and texts of their length.

    Raises:
        UsageError: It does not.
    """
    known = int(config.vocab_size)
    if known < sample.vocabulary:
        raise pf.UsageError(
            f"the net {name} has {known:,} token ids, and the data have {sample.vocabulary:,}",
            "the ids should be those of the net's own tokenizer",
            "for texts of hf: --set dataset.tokenizer=NAME; for words that the data set numbers: "
            f"--set dataset.vocabulary={known}",
        )
    longest = int(getattr(config, "max_position_embeddings", 0) or 0)
    if config.model_type in _PADDED_PLACES:
        longest -= int(config.pad_token_id) + 1
    if 0 < longest < sample.shape[0]:
        raise pf.UsageError(
            f"the net {name} takes texts of up to {longest:,} tokens, and those of the data have "
            f"{sample.shape[0]:,}",
            do=f"--set dataset.length={longest}",
        )


_PADDED_PLACES = ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet", "data2vec-text")
"""Nets whose table of places begins behind the padding id."""


def _linear(net: nn.Module) -> nn.Module:
    """Return a net without its pooler, whose linear layers are ``nn.Linear``."""
    if isinstance(getattr(net, "pooler", None), nn.Module):
        setattr(net, "pooler", None)  # noqa: B010 - a module for mypy
    for path, module in [*net.named_modules()]:
        if type(module).__name__ == "Conv1D":  # of GPT-2: a linear layer with Wᵀ
            weight, bias = cast(Tensor, module.weight), cast(nn.Parameter, module.bias)
            linear = nn.Linear(weight.shape[0], weight.shape[1], device="meta")
            linear.weight = nn.Parameter(weight.detach().T.contiguous())
            linear.bias = bias
            net.set_submodule(path, linear)
    return net


def attention_of(net: nn.Module) -> tuple[str, ...]:
    """Return the names of a net's layers that compute queries and values of attention."""
    names = {path.rpartition(".")[2] for path, _ in net.named_modules()}
    return tuple(sorted(names & ATTENTION))
