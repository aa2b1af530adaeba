"""Contract of text encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from protofl.data.text_encoders import TextEncoder, TextOutline
from protofl.errors import UsageError
from protofl.testing.contract import Contract, expect, refusal, skip

CLASSES = ["cat", "dog", "sea lion"]
SENTENCES = ["A photo of a cat.", "A photo of a dog: it barks.", "A photo of a sea lion at sea."]
WIDTH = 16
M = 2


class TextEncoderContract(Contract):
    """The checks of a text encoder, on the CPU.

    An encoder whose files are not here is left out where it has to be opened.

    Attributes:
        classes: Names of classes that the encoder knows.
        data_dir: Where downloads are kept; by default a folder that is empty.
    """

    kind = "text-encoder"
    classes: ClassVar[list[str]] = CLASSES
    data_dir: ClassVar[Path | None] = None

    def called(self, hook: str) -> Any:  # noqa: ANN401 - as the hook says
        """Call a hook; skip the check if the encoder can't be opened here."""
        cache = self.folder / "data" if self.data_dir is None else self.data_dir
        try:
            result = self.choice().call(
                hook,
                classes=[*self.classes],
                feature_dim=WIDTH,
                device=torch.device("cpu"),
                data_dir=cache,
            )
        except UsageError as error:
            skip(f"it can't be opened here: {refusal(error)}")
            raise
        expect(result is not None, f"{hook} returns None")
        return result

    def opened(self) -> TextEncoder:
        """The encoder."""
        result: TextEncoder = self.called("open_encoder")
        return result

    def texts(self, encoder: TextEncoder) -> list[str]:
        """Texts that the encoder takes, one for each class."""
        return [*self.classes] if encoder.outline.names_only else SENTENCES[: len(self.classes)]

    def test_outline(self) -> None:
        """Outline gives the sizes of the opened encoder."""
        told = self.called("outline")
        expect(isinstance(told, TextOutline), f"outline returns {told!r}")
        outline = self.opened().outline
        expect(told == outline, f"outline returns {told}, and the opened encoder has {outline}")

    def test_embed(self) -> None:
        """Embed gives a finite row per text, which depends on this text only."""
        encoder, before = self.opened(), torch.get_rng_state()
        texts = self.texts(encoder)
        first, again, backwards = (encoder.embed(t) for t in (texts, texts, texts[::-1]))
        shape = (len(texts), encoder.outline.dim)
        expect(tuple(first.shape) == shape, f"embeddings are {tuple(first.shape)}, not {shape}")
        expect(bool(first.isfinite().all()), "an embedding holds NaN or infinity")
        expect(torch.equal(first, again), "the same texts give other embeddings")
        expect(_close(first, backwards.flip(0)), "an embedding depends on the texts beside it")
        expect(not _close(first[0], first[1]), "two texts have the same embedding")
        expect(torch.equal(before, torch.get_rng_state()), "torch's global generator is drawn from")

    def test_prompts(self) -> None:
        """Prompts change the embeddings, and get a gradient; the encoder gets none."""
        encoder = self.opened()
        if not encoder.outline.token_dim:
            skip("token_dim is 0: its tokens can't be replaced")
        texts = self.texts(encoder)
        shape = (len(texts), M, encoder.outline.token_dim)
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        plain, prompts = encoder.embed(texts), drawn.requires_grad_()
        made = encoder.embed_prompts(texts, prompts)
        expect(made.shape == plain.shape, f"embeddings are {tuple(made.shape)} with prompts")
        expect(not _close(made, plain), "prompts change nothing")
        made.square().sum().backward()  # type: ignore[no-untyped-call]
        gradient = prompts.grad
        expect(gradient is not None, "prompts get no gradient")
        assert gradient is not None
        expect(bool(gradient.flatten(1).any(1).all()), "the prompts of a text get no gradient")
        expect(_close(encoder.embed(texts), plain), "embed differs after embed_prompts")

    def test_it_is_frozen(self) -> None:
        """The opened encoder is frozen: in eval mode, and no parameter needs a gradient."""
        encoder = self.opened()
        for module in [v for v in (encoder, *vars(encoder).values()) if isinstance(v, nn.Module)]:
            name = type(module).__name__
            expect(not module.training, f"{name} is in train mode; call .eval()")
            wants = [n for n, p in module.named_parameters() if p.requires_grad]
            expect(
                not wants, f"{name}: {wants[:1]} asks for a gradient; call .requires_grad_(False)"
            )

    def test_it_keeps_nothing_on_itself(self) -> None:
        """The plugin keeps nothing on self; each run opens its own encoder."""
        self.opened()
        choice = self.choice()
        held = vars(choice.instance)
        expect(not held, f"self holds {', '.join(held)}")


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=1e-6)
