"""Steps of autograd of our own against autograd's, in double precision."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from rlinf_lab.policies.fused import relu_perceptron, squashed_sample
from rlinf_lab.policies.heads import STATE_LOG_STD

SIZES = (3, 5, 4, 2)


def layers_of(critics, generator):
    found = []
    for inputs, outputs in itertools.pairwise(SIZES):
        shapes = ((critics, inputs, outputs), (critics, 1, outputs)) if critics else ((outputs, inputs), (outputs,))
        found += [torch.randn(shape, dtype=torch.double, generator=generator, requires_grad=True) for shape in shapes]
    return found


@pytest.mark.parametrize(("critics", "shape"), [(0, (6, 3)), (2, (6, 3)), (2, (2, 6, 3))], ids=["one net", "of one input", "of own inputs"])
def test_perceptrons_are_their_layers(critics, shape):
    generator = torch.Generator().manual_seed(1)
    flat = layers_of(critics, generator)
    x = torch.randn(shape, dtype=torch.double, generator=generator, requires_grad=True)
    ours = relu_perceptron(x, list(zip(flat[::2], flat[1::2], strict=True)))
    theirs = x
    for i, (weight, bias) in enumerate(zip(flat[::2], flat[1::2], strict=True)):
        theirs = theirs @ weight + bias if critics else F.linear(theirs, weight, bias)
        theirs = theirs.relu() if i < len(SIZES) - 2 else theirs
    torch.testing.assert_close(ours, theirs)
    pull = torch.randn(ours.shape, dtype=torch.double, generator=generator)
    for wanted in ([x, *flat], [x], flat):  # all, as an actor asks, as a critic asks
        grads = [torch.autograd.grad((y * pull).sum(), wanted, retain_graph=True) for y in (ours, theirs)]
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other)


def test_squashed_samples_are_those_of_the_formula():
    generator = torch.Generator().manual_seed(2)
    mean, noise = torch.randn((2, 7, 3), dtype=torch.double, generator=generator)
    log_std = torch.linspace(-25, 3, 21, dtype=torch.double).reshape(7, 3)  # beyond both bounds
    given = mean.requires_grad_(), log_std.requires_grad_()
    cut = log_std.clamp(*STATE_LOG_STD)
    u = mean + cut.exp() * noise
    slope = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    theirs = torch.tanh(u), -0.5 * noise.square() - cut - 0.5 * math.log(2 * math.pi) - slope
    ours = squashed_sample(mean, log_std, noise, STATE_LOG_STD)
    pulls = torch.randn((2, 7, 3), dtype=torch.double, generator=generator)
    grads = []
    for found in (ours, theirs):
        grads.append(torch.autograd.grad(sum((y * pull).sum() for y, pull in zip(found, pulls, strict=True)), given))
    for one, other in zip((*ours, *grads[0]), (*theirs, *grads[1]), strict=True):
        torch.testing.assert_close(one, other)
