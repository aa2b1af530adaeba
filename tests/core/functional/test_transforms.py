"""Tests that functions of losses run under vmap and grad and never read a value.

Those of `protofl.functional`, and those in the files of single methods.
"""

import pytest
import torch
from torch.func import grad, vmap

from protofl import functional as F
from protofl_plugins.methods import alignfed, fedgen, fedktl, fedsa, fedsaf

CLIENTS, N, C, K = 3, 6, 4, 5


def arguments(device="cpu"):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "features": torch.randn(CLIENTS, N, K, generator=generator),
        "labels": torch.randint(0, C, (CLIENTS, N), generator=generator),
        "prototypes": torch.randn(CLIENTS, C, K, generator=generator),
        "known": torch.rand(CLIENTS, C, generator=generator) < 0.7,
        "margin": torch.rand(CLIENTS, generator=generator),
    }
    tensors["known"][0] = False
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def anchor_terms(f, y, p, k, m, rows="class"):
    config = fedsa.FedSA.Config(align=rows, contrast=rows)
    chosen = fedsa.rows_of(f, y, p, k, config)
    penalty = fedsa.margin_penalty(m, k, p.dtype)
    L_R, L_MCL = fedsa.alignment(chosen, rows, "mse"), fedsa.contrast(chosen, rows, m, penalty)
    return torch.stack([L_R, L_MCL])


# Each is a function of one client's features, labels, prototypes, known and margin.
FUNCTIONS = {
    "class_means": lambda f, y, p, k, m: F.class_means(f, y, C)[0],
    "distance": lambda f, y, p, k, m: F.prototype_distance(f, p),
    "distance mse": lambda f, y, p, k, m: F.prototype_distance(f, p, "mse"),
    "alignment": lambda f, y, p, k, m: F.prototype_alignment(f, y, p, k),
    "alignment mse": lambda f, y, p, k, m: F.prototype_alignment(f, y, p, k, "mse"),
    "alignment of means": lambda f, y, p, k, m: F.prototype_alignment(f[: len(p)], None, p, k),
    "pair": lambda f, y, p, k, m: F.pair_margin(p, k),
    "nearest": lambda f, y, p, k, m: F.nearest_margin(p, k),
    "mean": lambda f, y, p, k, m: F.mean_margin(p, k),
    "mean nearest": lambda f, y, p, k, m: F.mean_margin(p, k, "nearest"),
    "contrastive loss": lambda f, y, p, k, m: F.margin_contrastive_loss(f, y, p, m),
    "contrastive loss of some": lambda f, y, p, k, m: F.margin_contrastive_loss(f, y, p, m, k),
    "anchor terms": anchor_terms,
    "anchor terms of samples": lambda f, y, p, k, m: anchor_terms(f, y, p, k, m, "sample"),
    "anchor calibration": lambda f, y, p, k, m: fedsa.calibration(p @ p.T, k | ~k.any()),
    "cka": lambda f, y, p, k, m: fedsaf.structural_loss(f[:C], p.sin(), k),
    "rdm_cos": lambda f, y, p, k, m: fedsaf.structural_loss(f[:C], p, k, "rdm_cos"),
    "fixed points": lambda f, y, p, k, m: alignfed.fixed_point_loss(f, y, p),
    "arcface": lambda f, y, p, k, m: fedktl.arcface_loss(f.tanh(), y, 8.0),
    "kl": lambda f, y, p, k, m: F.kl_divergence(f, f.sin(), 2.0),
    "squared distances": lambda f, y, p, k, m: F.squared_distances(f, p),
    "cosines": lambda f, y, p, k, m: F.cosine_alignment(f, y, p, k),
    "mmd": lambda f, y, p, k, m: fedktl.mmd_rbf(f, p),
    "ema": lambda f, y, p, k, m: F.ema(p, p.sin(), 0.9, k),
    "ema of all": lambda f, y, p, k, m: F.ema(p, p.sin(), 0.9),
    "aggregate": lambda f, y, p, k, m: F.aggregate_prototypes(p[None], k[None].long())[0],
    "ensemble": lambda f, y, p, k, m: F.ensemble_logits(torch.stack([f, f.sin()])),
    "generator's ensemble": lambda f, y, p, k, m: fedgen.ensemble_loss(
        torch.stack([f, f.sin()]), y, torch.stack([f[:, 0], f[:, 1]])
    ),
    "diversity": lambda f, y, p, k, m: fedgen.diversity_loss(p, p.sin()) + f.sum(),
}
each = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


@each
def test_vmap_is_the_loop_over_clients(function):
    rows = arguments()
    expected = torch.stack([function(*one) for one in zip(*rows.values(), strict=True)])
    torch.testing.assert_close(vmap(function)(*rows.values()), expected)


@each
def test_vmap_over_the_features_alone(function):
    first = {name: tensor[1] for name, tensor in arguments().items()}
    features = arguments()["features"]
    fixed = list(first.values())[1:]
    expected = torch.stack([function(one, *fixed) for one in features])
    got = vmap(function, in_dims=(0, None, None, None, None))(features, *fixed)
    torch.testing.assert_close(got, expected)


@each
def test_vmap_over_the_labels_alone(function):
    first = {name: tensor[1] for name, tensor in arguments().items()}
    fixed = first.pop("labels"), *first.values()
    labels = arguments()["labels"]

    def of_labels(y):
        return function(fixed[1], y, *fixed[2:])

    expected = torch.stack([of_labels(one) for one in labels])
    torch.testing.assert_close(vmap(of_labels)(labels), expected)


@each
def test_vmap_of_grad_is_autograd(function):
    rows = arguments()

    def scalar(features, labels, prototypes, known, margin):
        return function(features, labels, prototypes, known, margin).sum()

    got = vmap(grad(scalar, argnums=(0, 2)))(*rows.values())
    for i in range(CLIENTS):
        one = {name: tensor[i] for name, tensor in rows.items()}
        one["features"].requires_grad_()
        one["prototypes"].requires_grad_()
        inputs = (one["features"], one["prototypes"])
        expected = torch.autograd.grad(
            scalar(*one.values()), inputs, allow_unused=True, materialize_grads=True
        )
        for batched, single in zip(got, expected, strict=True):
            torch.testing.assert_close(batched[i], single)
            assert single.isfinite().all()


@each
def test_no_value_is_looked_at(function):
    """A meta tensor has no values: `.item()` or a branch on one raises."""
    one = {name: tensor[1] for name, tensor in arguments("meta").items()}
    assert function(*one.values()).device.type == "meta"


def test_the_meta_device_does_catch_a_look():
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(torch.ones(1, device="meta").sum() > 0)


def test_all_names_are_exported():
    assert sorted(F.__all__) == F.__all__
    for name in F.__all__:
        assert getattr(F, name).__doc__.count("Args:") == 1
        assert getattr(F, name).__module__.startswith("protofl.functional.")
