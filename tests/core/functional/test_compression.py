"""Tests of the truncated SVD against the full one, for every algorithm that it uses."""

import pytest
import torch

from protofl.functional import truncated_svd
from protofl.functional.compression import _by_lanczos


def randn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def naive_rank(singular, energy):
    total, held = sum(s * s for s in singular), 0.0
    if total == 0:
        return 1
    for r, s in enumerate(singular, start=1):
        held += s * s
        if held / total > energy:
            return r
    return len(singular)


@pytest.mark.parametrize("energy", [0.0, 0.5, 0.9, 0.95, 0.999, 1.0])
@pytest.mark.parametrize("shape", [(6, 4), (3, 8), (1, 5)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_svd_is_the_smallest_rank_with_the_energy(shape, energy, dtype):
    matrix = randn(*shape).to(dtype)
    found = truncated_svd(matrix, energy)
    assert all(factor.dtype == dtype for factor in found)
    assert bool((found[0].gather(0, found[0].abs().argmax(0, keepdim=True)) > 0).all())
    if dtype == torch.float32:
        exact = truncated_svd(matrix.double(), energy)
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-6)
        return
    u, s, vh = found
    # Singular values from the eigenvalues of the Gram matrix.
    small = matrix @ matrix.T if shape[0] < shape[1] else matrix.T @ matrix
    singular = torch.linalg.eigvalsh(small).clamp_min(0).sqrt().flip(0)
    rank = naive_rank(singular.tolist(), energy)
    assert u.shape == (shape[0], rank) and s.shape == (rank,) and vh.shape == (rank, shape[1])
    torch.testing.assert_close(s, singular[:rank])
    lost = (matrix - u @ s.diag() @ vh).square().sum()
    torch.testing.assert_close(lost, singular[rank:].square().sum())


@pytest.mark.parametrize(
    ("values", "energy", "rank"),
    [
        ([2.0, 1.0, 1.0, 0.0], 4 / 6, 2),  # the first share equals the energy, is not above it
        ([2.0, 1.0, 1.0, 0.0], 0.66, 1),
        ([2.0, 1.0, 1.0, 0.0], 1.0, 4),  # no share exceeds 1: full rank
        ([2.0, 1.0, 1.0, 0.0], 0.0, 1),
        ([0.0, 0.0, 0.0, 0.0], 0.95, 1),
        ([0.0, 0.0, 0.0, 0.0], 1.0, 1),
        ([1e-30, 1e-30, 0.0, 0.0], 0.95, 2),  # the squares underflow in float32
    ],
)
def test_svd_at_the_edges(values, energy, rank):
    u, s, vh = truncated_svd(torch.tensor(values).diag(), energy)
    assert (u.shape[1], s.shape[0], vh.shape[0]) == (rank, rank, rank)


def spectrum(values, shape):
    """Return a float64 matrix with these leading singular values."""
    u, v = (torch.linalg.qr(randn(size, len(values), seed=k)).Q for k, size in enumerate(shape))
    return (u * torch.tensor(values, dtype=torch.float64)) @ v.T


DECAY = [0.8**k for k in range(120)]
LARGE = {
    "decay": (DECAY, 0.95, True),
    "decay, much of it": (DECAY, 0.9999, True),
    "low rank, all of it": ([1.0 / (1 + k) for k in range(20)], 0.99999, True),
    "one": ([3.0], 0.99, True),
    "a cluster across the basis' blocks": ([1.0] * 30 + [1e-3] * 50, 0.9, None),
    "flat": ([1.0] * 120, 0.9, False),
    "tiny": ([1e-25 * value for value in DECAY], 0.95, True),
    "nothing": ([0.0], 0.95, False),
}


@pytest.mark.parametrize("shape", [(384, 500), (500, 384)])
@pytest.mark.parametrize("case", LARGE)
def test_svd_of_large_matrices(shape, case):
    values, energy, lanczos = LARGE[case]
    matrix = spectrum(values, shape)
    u, s, vh = truncated_svd(matrix.float(), energy)
    rank = naive_rank(torch.linalg.svdvals(matrix.float().double()).tolist(), energy)
    assert s.shape == (rank,)
    scale = max(values[0], 1e-30)
    expected = torch.tensor([*values, 0.0][:rank])
    torch.testing.assert_close(s / scale, expected / scale, rtol=1e-6, atol=1e-6)
    for factor in (u, vh.T):
        torch.testing.assert_close(factor.T @ factor, torch.eye(rank), rtol=0, atol=1e-5)
    # Singular triplets satisfy A·v = σ·u and Aᵀ·u = σ·v, for any basis of a cluster.
    torch.testing.assert_close(matrix.float() @ vh.T / scale, u * s / scale, rtol=0, atol=1e-6)
    torch.testing.assert_close(matrix.float().T @ u / scale, vh.T * s / scale, rtol=0, atol=1e-6)
    if lanczos is not None:
        short = matrix if shape[0] < shape[1] else matrix.T
        assert (_by_lanczos(short, energy) is not None) == lanczos


def test_svd_is_repeatable():
    matrix = spectrum(DECAY, (384, 500)).float()
    torch.manual_seed(1)
    once = truncated_svd(matrix, 0.95)
    state = torch.get_rng_state()
    again = truncated_svd(matrix, 0.95)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("energy", [0.0, 0.5, 0.95, 0.99, 1.0])
@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (6, 2, 3, 1), (7, 2, 6)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_many_matrices_share_one_rank(shape, energy, dtype):
    matrices = randn(*shape).to(dtype)
    matrices[0, 0] = 0.0  # an all-zero kernel
    u, s, vh = truncated_svd(matrices, energy)
    one_by_one = [torch.linalg.svd(m.double()) for m in matrices.reshape(-1, *shape[-2:])]
    squares = torch.zeros(min(shape[-2:]), dtype=torch.float64)
    for _, singular, _ in one_by_one:
        squares += singular**2
    rank = naive_rank(squares.sqrt().tolist(), energy)
    assert u.shape == (*shape[:-1], rank) and vh.shape == (*shape[:-2], rank, shape[-1])
    assert s.shape == (*shape[:-2], rank) and s.dtype == dtype
    kept = [(a[:, :rank] * b[:rank]) @ c[:rank] for a, b, c in one_by_one]
    rebuilt = ((u * s.unsqueeze(-2)) @ vh).reshape(-1, *shape[-2:]).double()
    torch.testing.assert_close(rebuilt, torch.stack(kept), rtol=1e-5, atol=1e-6)
    assert bool((u.gather(-2, u.abs().argmax(-2, keepdim=True)) > 0).all())


def test_of_many_zero_matrices_one_triplet_is_kept():
    u, s, vh = truncated_svd(torch.zeros(3, 2, 4, 4), 0.95)
    assert (u.shape, s.shape, vh.shape) == ((3, 2, 4, 1), (3, 2, 1), (3, 2, 1, 4))
    assert not s.any()


def test_svd_errors_name_the_value():
    matrix = randn(4, 3)
    with pytest.raises(ValueError, match=r"energy must be between 0 and 1: got 1\.1"):
        truncated_svd(matrix, 1.1)
    with pytest.raises(ValueError, match=r"matrix must be \[P, Q\]: got shape \[3\]"):
        truncated_svd(matrix[0], 0.9)
    with pytest.raises(ValueError, match=r"matrix must not be empty: got shape \[0, 3\]"):
        truncated_svd(matrix[:0], 0.9)
    with pytest.raises(ValueError, match=r"matrix must not be empty: got shape \[2, 0, 3\]"):
        truncated_svd(torch.zeros(2, 0, 3), 0.9)
