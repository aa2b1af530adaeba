"""Tests of FedORGP Eq. 3 to 5 and L_R, and repulsion on the unit sphere, against loops."""

import math

import pytest
import torch
from torch.autograd import gradcheck

from protofl.functional import cosine_alignment, orthogonality_loss, repelled_on_sphere


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize("known", [[True] * 4, [True, False, True, True], [False] * 4])
def test_cosine_alignment_is_the_loop(known):
    f, P, y = points(6, 5), points(4, 5, seed=1), [0, 1, 1, 3, 2, 0]
    slow = sum(1 - cosine(r, P[c].tolist()) for r, c in zip(f.tolist(), y, strict=True) if known[c])
    found = cosine_alignment(f, torch.tensor(y), P, torch.tensor(known))
    assert found.item() == pytest.approx(slow / 6, rel=1e-12, abs=1e-15)
    assert gradcheck(
        lambda z: cosine_alignment(z, torch.tensor(y), P, torch.tensor(known)), f.requires_grad_()
    )


def slow_orthogonality(rows, labels, P, lambda_s, gamma, adaptive):
    total, C = 0.0, len(P)
    for row, c in zip(rows, labels, strict=True):
        others = [abs(cosine(row, p)) for k, p in enumerate(P) if k != c]
        mean = sum(others) / (C - 1)
        own = 1 - cosine(row, P[c])
        if adaptive:
            own *= 1 + sigmoid((mean - 0.3) / 0.5)
            others = [a * (1 + sigmoid((a - 0.3) / 0.5)) for a in others]
        total += lambda_s * own + gamma * sum(others) / (C - 1)
    return total / len(rows)


@pytest.mark.parametrize("adaptive", [False, True])
def test_orthogonality_loss_is_eq_5(adaptive):
    rows, P, y = points(7, 5), points(4, 5, seed=1), [0, 3, 1, 1, 2, 0, 3]
    found = orthogonality_loss(rows, torch.tensor(y), P, 0.7, 3.0, adaptive)
    slow = slow_orthogonality(rows.tolist(), y, P.tolist(), 0.7, 3.0, adaptive)
    assert found.item() == pytest.approx(slow, rel=1e-12)
    assert gradcheck(
        lambda p: orthogonality_loss(rows, torch.tensor(y), p, 0.7, 3.0, adaptive),
        P.requires_grad_(),
    )


def test_orthogonal_prototypes_of_their_own_class_have_no_loss():
    P = torch.linalg.qr(points(6, 6))[0][:4]
    assert orthogonality_loss(2 * P, torch.arange(4), 5 * P).abs() < 1e-12
    assert orthogonality_loss(P[:1], torch.tensor([0]), P[:1]).abs() < 1e-12  # one class


def slow_sphere(rows, power, steps, lr, momentum):
    def unit(row):
        length = math.sqrt(sum(x * x for x in row))
        return [x / length for x in row]

    where, same, last = [unit(r) for r in rows], 0, None
    velocity = [[0.0] * len(r) for r in rows]
    for step in range(steps):
        forces = []
        for i, p in enumerate(where):
            force = [0.0] * len(p)
            for j, q in enumerate(where):
                if i != j:
                    d = math.dist(p, q)
                    force = [f + (a - b) / d**power for f, a, b in zip(force, p, q, strict=True)]
            forces.append(force)
        for i, force in enumerate(forces):
            velocity[i] = [momentum * v + lr * f for v, f in zip(velocity[i], force, strict=True)]
            where[i] = unit([a + v for a, v in zip(where[i], velocity[i], strict=True)])
        lr *= 0.95 if step % 10 == 0 else 1
        mean = round(sum(math.hypot(*f) for f in forces) / len(forces), 4)
        if step >= 10:
            same, last = (same + 1 if mean == last else 0), mean
        if same == 10:
            break
    return where, step + 1


@pytest.mark.parametrize(("potential", "power"), [("coulomb", 3), ("log", 2)])
@pytest.mark.parametrize("steps", [0, 7, 400])
def test_repulsion_is_the_loop_with_its_early_end(potential, power, steps):
    P, known = points(5, 3), torch.tensor([True, True, False, True, True])
    found = repelled_on_sphere(P, known, potential, steps)
    if steps:
        slow, taken = slow_sphere(P[known].tolist(), power, steps, 0.1, 0.9)
        assert taken < 400
    else:
        slow = [[x / math.hypot(*r) for x in r] for r in P[known].tolist()]
    assert torch.allclose(found[known], torch.tensor(slow, dtype=P.dtype), atol=1e-8)
    assert (found[2] == 0).all()


@pytest.mark.parametrize("potential", ["coulomb", "log"])
def test_four_charges_end_as_a_tetrahedron(potential):
    found = repelled_on_sphere(points(4, 3, seed=2), torch.ones(4, dtype=torch.bool), potential)
    cosines = (found @ found.T)[~torch.eye(4, dtype=torch.bool)]
    assert (cosines + 1 / 3).abs().max() < 0.05


def test_one_point_stays_and_a_wrong_potential_is_an_error():
    P, known = points(3, 2), torch.tensor([False, True, False])
    assert torch.allclose(repelled_on_sphere(P, known)[1], P[1] / P[1].norm())
    with pytest.raises(ValueError, match="potential must be coulomb or log: got 'cubic'"):
        repelled_on_sphere(P, known, "cubic")
