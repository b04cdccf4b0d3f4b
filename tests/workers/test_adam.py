import copy

import pytest
import torch

from rlinf_lab.workers.adam import Adam

SHAPES = [(6, 5), (5,), (3, 6), ()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_and_state_are_torchs_to_the_last_bit(dtype):
    """Also where a parameter has no gradient for a while, another rate comes, and a state of the other one is gone on from."""
    torch.manual_seed(0)
    first = [torch.randn(shape, dtype=dtype) for shape in SHAPES]
    sides = [[torch.nn.Parameter(x.clone()) for x in first] for _ in range(2)]
    optimizers = [Adam(sides[0], lr=1e-2, eps=1e-5), torch.optim.Adam(sides[1], lr=1e-2, eps=1e-5, fused=True)]
    for count in range(6):
        for i, pair in enumerate(zip(*sides, strict=True)):
            gradient = None if (count < 2 and i == 1) or (count == 3 and i == 2) else torch.randn(SHAPES[i], dtype=dtype)
            for parameter in pair:
                parameter.grad = None if gradient is None else gradient.clone()
        if count == 4:
            states = [optimizer.state_dict() for optimizer in optimizers]
            for optimizer, state in zip(optimizers, reversed(states), strict=True):
                optimizer.load_state_dict(state)
                optimizer.param_groups[0]["lr"] = 1e-3
        for optimizer in optimizers:
            optimizer.step()
        for ours, theirs in zip(*sides, strict=True):
            assert torch.equal(ours, theirs)
    ours, theirs = (optimizer.state_dict()["state"] for optimizer in optimizers)
    assert ours.keys() == theirs.keys()
    for i, state in theirs.items():
        assert all(torch.equal(ours[i][name], value) for name, value in state.items())


@pytest.mark.parametrize("option", ["amsgrad", "maximize"])
def test_a_loaded_state_of_torchs_other_kinds_of_adam_is_gone_on_from(option):
    """Not by the kernel alone, which is told that there is neither."""
    torch.manual_seed(0)
    sides = [[torch.nn.Parameter(torch.ones(4))] for _ in range(2)]
    theirs = torch.optim.Adam(sides[1], lr=1e-2, eps=1e-5, fused=True, **{option: True})
    ours = Adam(sides[0], lr=1e-2, eps=1e-5)
    for count in range(4):
        gradient = torch.randn(4) / (1 + count) ** 2  # what was largest is not forgotten by amsgrad
        for (parameter,) in sides:
            parameter.grad = gradient.clone()
        theirs.step()
        if not count:
            ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
            sides[0][0].data.copy_(sides[1][0].data)
        else:
            ours.step()
        assert torch.equal(sides[0][0], sides[1][0]), count
