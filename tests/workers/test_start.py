"""A warmed-up model is made once for all workers, and its making ends when the run does."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from rlinf_lab.errors import Cancelled
from rlinf_lab.generation import small_model
from rlinf_lab.tasks import Sorting
from rlinf_lab.workers.reasoning import WarmModel, WarmUp


def test_a_warm_up_ends_when_it_is_cancelled_and_can_be_done_again():
    make, steps = partial(small_model, Sorting.alphabet, hidden=32, layers=1), 3
    warm = WarmModel(make, WarmUp(Sorting(), steps, 4, 1e-3, 1, 0))
    looks = iter([False] * 5)  # at the second step
    with pytest.raises(Cancelled, match="during the warm-up"):
        warm(lambda: next(looks, True))
    first, again, other = warm(), warm(), WarmModel(make, warm.warm_up)()
    for model in (again, other):
        for one, same in zip(first.module.parameters(), model.module.parameters(), strict=True):
            torch.testing.assert_close(one, same, rtol=0, atol=0)
    assert any((a != b).any() for a, b in zip(first.module.parameters(), make().module.parameters(), strict=True))
