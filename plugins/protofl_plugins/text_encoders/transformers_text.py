"""`transformers:FOLDER`: a text encoder of the library transformers, from a local folder.

CLIP (Radford et al., ICML 2021): the projected embedding of the end token, and CLIP's own logit
scale. Other models, such as BERT (Devlin et al., NAACL 2019): the last layer's output at the first
token, or its mean over the tokens. Weights are read from safetensors only, and no code of the
folder is run.

Prompts replace the outputs of the model's table of token embeddings, before places are added.
FedTSP's published code passes BERT's embeddings through its embedding layers twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Tensor

import protofl as pf
from protofl_plugins.shared.transformers_folders import described

CLIP = ("clip", "clip_text_model")


class Transformers:
    """CLIP's or BERT's text encoder from a local folder (protofl[transformers])."""

    argument = "path"

    class Config(pf.Config):
        """Options."""

        path: Path = pf.Field(description="the folder that save_pretrained wrote, with tokenizer")
        pooling: Literal["first", "mean"] = pf.Field(
            "first", description="of other models than CLIP: output at the first token, or the mean"
        )

    @pf.hookimpl
    def outline(self, config: Config) -> pf.datasets.TextOutline:
        """The sizes from ``config.json``, and CLIP's logit scale from the weights."""
        _, described = _described(config.path)
        text = getattr(described, "text_config", described)
        is_clip = described.model_type in CLIP
        outline = pf.datasets.TextOutline(
            dim=int(text.projection_dim if is_clip else text.hidden_size),
            token_dim=int(text.hidden_size),
        )
        scale = _logit_scale(config.path) if is_clip else None
        return outline if scale is None else replace(outline, logit_scale=scale)

    @pf.hookimpl
    def open_encoder(self, config: Config, device: torch.device) -> TransformersEncoder:
        """Load tokenizer and weights."""
        library, described = _described(config.path)
        is_clip = described.model_type in CLIP
        kind = library.CLIPTextModelWithProjection if is_clip else library.AutoModel
        try:
            tokenizer = library.AutoTokenizer.from_pretrained(config.path, local_files_only=True)
            model = kind.from_pretrained(config.path, local_files_only=True, use_safetensors=True)
        except Exception as error:  # transformers, tokenizers, safetensors and the OS
            raise pf.UsageError(
                f"the text encoder in {config.path} can't be loaded: {error}",
                do="save model and tokenizer there with save_pretrained (safetensors)",
            ) from error
        return TransformersEncoder(
            self.outline(config), tokenizer, model.float().to(device), config.pooling
        )


class TransformersEncoder:
    """An opened model with its tokenizer."""

    def __init__(
        self,
        outline: pf.datasets.TextOutline,
        tokenizer: Any,  # noqa: ANN401 - transformers is optional
        model: Any,  # noqa: ANN401
        pooling: str,
    ) -> None:
        self.outline = outline
        self._tokenizer, self._model = tokenizer, model.requires_grad_(False).eval()
        self._pooling = pooling
        places = int(getattr(model.config, "max_position_embeddings", 512))
        self._longest = min(places, int(tokenizer.model_max_length))

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return embeddings [n, dim] of n texts."""
        return self._encode(texts, 0)

    def embed_prompts(self, texts: Sequence[str], prompts: Tensor) -> Tensor:
        """Return embeddings [n, dim]; prompts [n, m, token_dim] replace the first m tokens'."""
        m = prompts.shape[1]

        def put(module: object, inputs: object, tokens: Tensor) -> Tensor:
            return torch.cat([prompts.to(tokens.dtype), tokens[:, m:]], dim=1)

        handle = self._model.get_input_embeddings().register_forward_hook(put)
        try:
            return self._encode(texts, m)
        finally:
            handle.remove()

    def _encode(self, texts: Sequence[str], least: int) -> Tensor:
        read = self._read(texts, padding=True, max_length=self._longest)
        if read["input_ids"].shape[1] < least:
            read = self._read(texts, padding="max_length", max_length=least)
        mask = read["attention_mask"]
        mask[:, :least] = 1
        out = self._model(input_ids=read["input_ids"], attention_mask=mask)
        if hasattr(out, "text_embeds"):
            embeds: Tensor = out.text_embeds
            return embeds
        states: Tensor = out.last_hidden_state
        if self._pooling == "first":
            return states[:, 0]
        weights = mask.unsqueeze(2).to(states.dtype)
        mean: Tensor = (states * weights).sum(1) / weights.sum(1)
        return mean

    def _read(self, texts: Sequence[str], **length: Any) -> Any:  # noqa: ANN401
        encoding = self._tokenizer([*texts], truncation=True, return_tensors="pt", **length)
        return encoding.to(self._model.device)


def _described(folder: Path) -> tuple[Any, Any]:
    """Return the library, and the configuration of a folder's model."""
    do = "give the folder that save_pretrained wrote: --text-encoder transformers:FOLDER"
    return described(folder, "text encoder", "text-encoder/transformers", do)


def _logit_scale(folder: Path) -> float | None:
    """Return ``logit_scale`` of the weights, if they have it."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                if "logit_scale" in weights.keys():
                    return float(weights.get_tensor("logit_scale"))
        except Exception as error:  # safetensors has its own
            raise pf.UsageError(f"{file} can't be read: {error}", do="copy it again") from None
    return None
