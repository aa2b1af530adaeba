"""Reconstruction: a decoder maps prototypes back to samples.

The attacker trains a decoder D (`regression`) on samples of other clients: D(mean of f over n
samples of a class) ≈ mean of these samples, n = 1, 2, 5, 10, 50. It then decodes what the attacked
client sent. Two attackers: the insider has the client's extractor f, the colluder only the
extractor and the samples of another client.

Two sets of rows are decoded:

- ``sent``: the uploaded prototypes, whose classes have as many samples as they have.
- ``n``: prototypes of n samples that the client would have sent if its class had n samples.

A reconstruction is compared with the most similar of the samples behind the prototype. The baseline
is the mean of the attacker's samples of the class, which needs no upload: a mean of many samples is
easy to guess. Only the gain over the baseline is a leak.

Images: PSNR = 10 log₁₀(1 / MSE) in dB for pixels from 0 to 1, SSIM (Wang et al.,
2004). Other samples: PSNR alone, of values that are scaled to 0…1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protofl_privacy.evidence import Evidence, classes_in
from protofl_privacy.intervals import Number, mean
from protofl_privacy.regression import Regression

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GROUPS = (1, 2, 5, 10, 50)
"""Numbers of samples behind a prototype that are reported apart."""

MOST = 200
"""Largest number of rows that are decoded for each number of samples."""


@dataclass(frozen=True)
class ReconstructionLeak:
    """How well rows with the same number of samples are decoded.

    Attributes:
        key: The key of the wire.
        attacker: ``insider`` or ``colluder``.
        behind: ``sent``, or the number of samples behind each row.
        rows: Number of rows.
        psnr: PSNR in dB to the most similar sample.
        baseline: The same of the mean sample of the class.
        gain: PSNR minus that of the baseline, row by row.
        ssim: SSIM to the most similar sample; of images only.
        baseline_ssim: The same of the mean sample.
        mse: Mean squared error to the most similar sample.
    """

    key: str
    attacker: str
    behind: str
    rows: int
    psnr: Number
    baseline: Number
    gain: Number
    ssim: Number
    baseline_ssim: Number
    mse: Number

    def to_values(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {k: v.to_values() if isinstance(v, Number) else v for k, v in vars(self).items()}


@dataclass(frozen=True)
class Decoded:
    """A decoded row and the baseline, with the nearest sample of each; [D] from 0 to 1."""

    row: Tensor
    nearest: Tensor
    baseline: Tensor
    baseline_nearest: Tensor
    psnr: float
    behind: str
    attacker: str


@dataclass
class Reconstructions:
    """All results, and the rows of the picture: best, median and worst by PSNR."""

    leaks: list[ReconstructionLeak] = field(default_factory=list)
    shown: list[Decoded] = field(default_factory=list)


def reconstruction_leaks(evidence: Evidence) -> Reconstructions:
    """Decode the prototypes of the attacked clients; empty if they send none."""
    result = Reconstructions()
    if "prototypes" not in evidence.uploads[evidence.clients[0]].keys():
        return result
    rows: dict[tuple[str, str], list[Decoded]] = {}
    for client in evidence.clients:
        sources = {"insider": client, "colluder": evidence.colluder(client)}
        for attacker, owner in sources.items():
            if owner is None:
                continue
            attack = _Attack(evidence, client, owner, attacker)
            if attack.fits:
                for decoded in (*attack.sent(), *attack.groups()):
                    rows.setdefault((attacker, decoded.behind), []).append(decoded)
    for (attacker, behind), group in sorted(rows.items(), key=_order):
        kept = group[:MOST]
        result.leaks.append(_judged(evidence, attacker, behind, kept))
        if behind in ("1", "sent") and attacker == "insider":
            ranked = sorted(kept, key=lambda each: -each.psnr)
            result.shown += [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
    return result


def _order(item: tuple[tuple[str, str], Any]) -> tuple[bool, int]:
    (attacker, behind), _ = item
    return attacker != "insider", 0 if behind == "sent" else int(behind)


class _Attack:
    """A decoder that is trained against one client."""

    def __init__(self, evidence: Evidence, client: int, owner: int, attacker: str) -> None:
        self._evidence, self._client, self._attacker = evidence, client, attacker
        self._generator = torch.Generator().manual_seed(evidence.seed * 1009 + client)
        rows, _ = evidence.others(client)
        if attacker == "colluder":  # it has only the samples of its own client
            rows = torch.cat([evidence.members(owner), evidence.held_out(owner)])
        self._y, self._x = evidence.y[rows], evidence.flat(rows)
        self._z = evidence.features(owner, rows)
        sent, _ = evidence.uploads[client].rows("prototypes")
        self.fits = sent.shape[1:] == self._z.shape[1:] and len(rows) >= 20
        if self.fits:
            z, x = self._pairs()
            self._decoder = Regression(z.numpy(), x.numpy(), evidence.seed + client)

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Return mean features and mean samples of groups of 1, 2, 5, 10 and 50 of a class."""
        z, x = [self._z], [self._x]
        for size in GROUPS[1:]:
            for label in classes_in(self._y):
                rows = (self._y == label).nonzero().flatten()
                if len(rows) < size:
                    continue
                for _ in range(max(1, len(rows) // 8)):
                    chosen = rows[torch.randperm(len(rows), generator=self._generator)[:size]]
                    z.append(self._z[chosen].mean(0, keepdim=True))
                    x.append(self._x[chosen].mean(0, keepdim=True))
        return torch.cat(z), torch.cat(x)

    def sent(self) -> list[Decoded]:
        """Decode the uploaded prototypes."""
        prototypes, classes = self._evidence.uploads[self._client].rows("prototypes")
        members = self._evidence.members(self._client)
        y, x = self._evidence.y[members], self._evidence.flat(members)
        rows = zip(prototypes.float(), classes.tolist(), strict=True)
        return self._decoded([(row, x[y == c], c, "sent") for row, c in rows if (y == c).any()])

    def groups(self) -> list[Decoded]:
        """Decode prototypes of n samples of each class."""
        members = self._evidence.members(self._client)
        y, x = self._evidence.y[members], self._evidence.flat(members)
        z = self._evidence.features(self._client, members)
        pieces = []
        for size in GROUPS:
            for label in classes_in(y):
                rows = (y == label).nonzero().flatten()
                if len(rows) < size:
                    continue
                for _ in range(5 if size == 1 else 1):
                    chosen = rows[torch.randperm(len(rows), generator=self._generator)[:size]]
                    pieces.append((z[chosen].mean(0), x[chosen], label, str(size)))
        return self._decoded(pieces)

    def _decoded(self, pieces: list[tuple[Tensor, Tensor, int, str]]) -> list[Decoded]:
        """Decode rows, and find the nearest of the samples behind each.

        Args:
            pieces: A row [K], the samples behind it [n, D], its class, and the name of its group.
        """
        if not pieces:
            return []
        drawn = self._decoder(torch.stack([row for row, *_ in pieces]).numpy())
        images, result = torch.from_numpy(drawn).clamp(0, 1).float(), []
        for image, (_, behind, label, name) in zip(images, pieces, strict=True):
            known = self._x[self._y == label]
            baseline = known.mean(0) if len(known) else self._x.mean(0)
            nearest, own = _nearest(image, behind), _nearest(baseline, behind)
            found = psnr(image, nearest)
            result.append(Decoded(image, nearest, baseline, own, found, name, self._attacker))
        return result


def _nearest(image: Tensor, samples: Tensor) -> Tensor:
    """Return the most similar of samples [n, D]."""
    return samples[(samples - image).square().mean(1).argmin()]


def psnr(image: Tensor, other: Tensor) -> float:
    """Return 10 log₁₀(1 / MSE) in dB of values from 0 to 1; at most 100."""
    error = float((image.double() - other.double()).square().mean())
    return float(-10 * np.log10(max(error, 1e-10)))


def _judged(
    evidence: Evidence, attacker: str, behind: str, rows: list[Decoded]
) -> ReconstructionLeak:
    ours = np.array([each.psnr for each in rows])
    base = np.array([psnr(each.baseline, each.baseline_nearest) for each in rows])
    errors = [float((each.row - each.nearest).square().mean()) for each in rows]
    shape = evidence.plan.data.x.shape[1:]
    similar, base_similar = (
        _similarity(rows, shape, evidence, which) for which in ("row", "baseline")
    )
    return ReconstructionLeak(
        "prototypes",
        attacker,
        behind,
        len(rows),
        mean(ours, evidence.seed),
        mean(base, evidence.seed),
        mean(ours - base, evidence.seed),
        similar,
        base_similar,
        mean(errors, evidence.seed),
    )


def _similarity(
    rows: list[Decoded],
    shape: tuple[int, ...],
    evidence: Evidence,
    which: str,
) -> Number:
    """Return the mean SSIM of images over rows."""
    if evidence.plan.data.sample.kind != "image":
        return Number(None, why="the samples are not images")
    try:
        nearest = "nearest" if which == "row" else "baseline_nearest"
        values = [
            structural_similarity(
                getattr(each, which).reshape(shape).numpy(),
                getattr(each, nearest).reshape(shape).numpy(),
            )
            for each in rows
        ]
    except ImportError:
        return Number(None, why="the package scikit-image is not installed")
    return mean(values, evidence.seed)


def structural_similarity(image: np.ndarray, other: np.ndarray) -> float:
    """Return SSIM of two images [channels, H, W] from 0 to 1 (scikit-image)."""
    from skimage import metrics

    side = min(image.shape[1:])
    window = min(7, side if side % 2 else side - 1)
    measure: Any = metrics.structural_similarity
    return float(measure(image, other, win_size=window, channel_axis=0, data_range=1.0))


def picture(found: Reconstructions, shape: tuple[int, ...]) -> Figure | None:
    """Return a figure of the best, median and worst rows; None if the samples are not images.

    Args:
        found: The result; nothing is drawn of an empty one.
        shape: Shape of a stored sample, [channels, H, W].
    """
    if not found.shown or len(shape) != 3 or shape[0] not in (1, 3):
        return None
    from matplotlib.figure import Figure

    names = ("best", "median", "worst")
    columns = ("decoded", "nearest sample", "class mean")
    figure = Figure(figsize=(1.15 * len(found.shown), 3.6), layout="constrained")
    axes = figure.subplots(3, len(found.shown), squeeze=False)
    for place, shown in enumerate(found.shown):
        what = "upload" if shown.behind == "sent" else f"{shown.behind} sample"
        for line, flat in enumerate((shown.row, shown.nearest, shown.baseline)):
            axis = axes[line][place]
            axis.imshow(_pixels(flat, shape), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_xticks([])
            axis.set_yticks([])
            if not line:
                axis.set_title(f"{names[place % 3]}, {what}\n{shown.psnr:.1f} dB", fontsize=7)
            if not place:
                axis.set_ylabel(columns[line], fontsize=7)
    return figure


def _pixels(flat: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    image = flat.reshape(shape).clamp(0, 1)
    return (image[0] if shape[0] == 1 else image.permute(1, 2, 0)).numpy()
