"""`tiny-text`: a small frozen Transformer over the bytes of a text, with random weights.

It needs no file and no download, and any K. It knows how texts are spelt, not what they mean, so it
shows what a method gains from trained prompts alone. The weights are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import protofl as pf
from protofl_plugins.text_encoders.encoder import TextEncoder

WIDTH, HEADS, LAYERS = 64, 4, 2
LONGEST = 256
"""Bytes of a text that are read."""
START, PADDING, TOKENS = 256, 257, 258


class TinyText(TextEncoder):
    """Embeddings of bytes and places, two layers, their mean, projected to any K."""

    token_dim = WIDTH
    note = (
        "the text encoder tiny-text has random weights: its embeddings of class names carry no "
        "meaning; --set encoder=transformers --set path=FOLDER reads CLIP or BERT"
    )

    def load(self, device: torch.device) -> None:
        """Draw the weights."""
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        net = nn.ModuleDict(
            {
                "tokens": nn.Embedding(TOKENS, WIDTH),
                "places": nn.Embedding(LONGEST + 1, WIDTH),
                "layers": nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
                "projection": nn.Linear(WIDTH, self.dim, bias=False),
            }
        )
        chance = pf.random_stream(0, "tiny-text")
        for name, parameter in net.named_parameters():
            if parameter.ndim == 2:  # vectors are norms, which stay 1, and biases, which stay 0
                scale = 0.02 if name.startswith(("tokens", "places")) else WIDTH**-0.5
                drawn = torch.randn(parameter.shape, generator=chance, dtype=parameter.dtype)
                parameter.data = scale * drawn
            elif name.endswith("bias"):
                parameter.data.zero_()
        self._net, self._device = net.to(device).requires_grad_(False).eval(), device

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return embeddings [n, K] of n texts."""
        ids, real = self._read(texts, 1)
        return self._encode(self._net["tokens"](ids), real)

    def embed_prompts(self, texts: Sequence[str], prompts: Tensor) -> Tensor:
        """Return embeddings [n, K]; prompts [n, m, 64] replace the first m token embeddings."""
        m = prompts.shape[1]
        ids, real = self._read(texts, m)
        tokens = torch.cat([prompts, self._net["tokens"](ids)[:, m:]], dim=1)
        real[:, :m] = True
        return self._encode(tokens, real)

    def _read(self, texts: Sequence[str], least: int) -> tuple[Tensor, Tensor]:
        """Return token ids [n, L], L at least ``least``, and the mask of those that are given."""
        rows = [torch.tensor([START, *text.encode()[:LONGEST]]) for text in texts]
        longest = torch.full((max(least, 1),), PADDING)
        ids = pad_sequence([*rows, longest], batch_first=True, padding_value=PADDING)[:-1]
        ids = ids.to(self._device)
        return ids, ids != PADDING

    def _encode(self, tokens: Tensor, real: Tensor) -> Tensor:
        places = self._net["places"].weight[: tokens.shape[1]]  # type: ignore[index]
        out = self._net["layers"](tokens + places, src_key_padding_mask=~real)
        mask = real.unsqueeze(2).to(out.dtype)
        mean = (out * mask).sum(1) / mask.sum(1)
        result: Tensor = self._net["projection"](mean)
        return result
