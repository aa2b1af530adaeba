"""`transformers`: a text encoder of the library transformers, from a local folder, ``path``.

CLIP (Radford et al., ICML 2021): the projected embedding of the end token, and CLIP's own logit
scale. Other models, such as BERT (Devlin et al., NAACL 2019): the last layer's output at the first
token. Weights are read from safetensors only, and no code of the
folder is run.

Prompts replace the outputs of the model's table of token embeddings, before places are added.
FedTSP's published code passes BERT's embeddings through its embedding layers twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

import protofl as pf
from protofl_plugins.shared.transformers_folders import described
from protofl_plugins.text_encoders.encoder import TextEncoder

CLIP = ("clip", "clip_text_model")
_GIVE = "give the folder that save_pretrained wrote, with tokenizer: --set path=FOLDER"


class Transformers(TextEncoder):
    """CLIP's or BERT's text encoder from a local folder (protofl[transformers]).

    The sizes are those of ``config.json``, and CLIP's logit scale that of the weights.
    """

    def __init__(self, classes: Sequence[str], feature_dim: int, path: Path | None) -> None:
        if path is None:
            raise pf.UsageError("the encoder transformers needs a folder", do=_GIVE)
        self._path = path
        self._library, model = described(path, "text encoder", "encoder=transformers", _GIVE)
        text = getattr(model, "text_config", model)
        self._is_clip = model.model_type in CLIP
        self.dim = int(text.projection_dim if self._is_clip else text.hidden_size)
        self.token_dim = int(text.hidden_size)
        scale = _logit_scale(path) if self._is_clip else None
        self.logit_scale = self.logit_scale if scale is None else scale

    def load(self, device: torch.device) -> None:
        """Load tokenizer and weights."""
        library, here = self._library, {"local_files_only": True}
        kind = library.CLIPTextModelWithProjection if self._is_clip else library.AutoModel
        try:
            self._tokenizer: Any = library.AutoTokenizer.from_pretrained(self._path, **here)
            model: Any = kind.from_pretrained(self._path, use_safetensors=True, **here)
        except Exception as error:  # transformers, tokenizers, safetensors and the OS
            raise pf.UsageError(
                f"the text encoder in {self._path} cannot be loaded: {error}",
                do="save model and tokenizer there with save_pretrained (safetensors)",
            ) from error
        self._model = model.float().to(device).requires_grad_(False).eval()
        places = int(getattr(model.config, "max_position_embeddings", 512))
        self._longest = min(places, int(self._tokenizer.model_max_length))

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
        return states[:, 0]

    def _read(self, texts: Sequence[str], **length: Any) -> Any:  # noqa: ANN401
        encoding = self._tokenizer([*texts], truncation=True, return_tensors="pt", **length)
        return encoding.to(self._model.device)


def _logit_scale(folder: Path) -> float | None:
    """Return ``logit_scale`` of the weights, if they have it."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                if "logit_scale" in weights.keys():
                    return float(weights.get_tensor("logit_scale"))
        except Exception as error:  # safetensors has its own
            raise pf.UsageError(f"{file} cannot be read: {error}", do="copy it again") from None
    return None
