"""Tests of ProtoNorm's repulsion on the unit sphere against loops."""

import math

import pytest
import torch

from protofl_plugins.methods.protonorm import repelled_on_sphere


def points(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


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


def test_one_point_stays():
    P, known = points(3, 2), torch.tensor([False, True, False])
    assert torch.allclose(repelled_on_sphere(P, known)[1], P[1] / P[1].norm())
