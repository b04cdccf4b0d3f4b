"""Advantages of whole responses, from comparing those to the same prompt.

There is no critic.

Legend: P prompts, G responses to each. Rewards and advantages are of a response; every one of its tokens gets the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.algorithms.registry import advantage
from rlinf_lab.errors import ConfigError

FloatArray = NDArray[np.floating]
BoolArray = NDArray[np.bool_]


@advantage("grpo")
def grpo(reward_PG: FloatArray, *, epsilon: float = 1e-6) -> FloatArray:
    """Reward minus the group's mean, over the group's standard deviation.

    The deviation is that of a sample, over G − 1.

    A group of equal rewards gives zeros. Source: Shao et al., DeepSeekMath (arXiv 2402.03300), section 4.1.2.
    """
    centred_PG = dr_grpo(reward_PG)
    return centred_PG / (reward_PG.std(1, ddof=1, keepdims=True) + epsilon)


@advantage("dr_grpo")
def dr_grpo(reward_PG: FloatArray) -> FloatArray:
    """Reward minus the group's mean, not divided: easy and hard prompts weigh what they weigh.

    Source: Liu et al., Understanding R1-Zero-Like Training (arXiv 2503.20783), section 3.2.
    """
    _require_groups(reward_PG)
    centred_PG = reward_PG - reward_PG.mean(1, keepdims=True)
    equal_P = (reward_PG == reward_PG[:, :1]).all(1)
    return np.where(equal_P[:, None], 0.0, centred_PG)  # exactly: a rest of rounding over a tiny deviation is not tiny


@advantage("rloo")
def rloo(reward_PG: FloatArray) -> FloatArray:
    """Reward minus the mean of the *other* responses.

    So the baseline does not depend on the response.

    Source: Ahmadian et al., Back to Basics (arXiv 2402.14740), the leave-one-out estimator.
    """
    return dr_grpo(reward_PG) * (reward_PG.shape[1] / (reward_PG.shape[1] - 1))


@advantage("reinforce++", of="batch")
def reinforce_pp(reward_PG: FloatArray, *, epsilon: float = 1e-8) -> FloatArray:
    """Reward, normalised over the whole batch instead of the group. A group may be of one response.

    Source: Hu et al., REINFORCE++ (arXiv 2501.03262), section 3: global advantage normalisation.
    """
    _require_groups(reward_PG, least=1)
    return (reward_PG - reward_PG.mean()) / (reward_PG.std() + epsilon)


@advantage("reinforce++_baseline", of="batch")
def reinforce_pp_baseline(reward_PG: FloatArray, *, epsilon: float = 1e-8) -> FloatArray:
    """Reward minus the group's mean, then normalised over the whole batch.

    Source: Hu et al., REINFORCE++ (arXiv 2501.03262), the variant with a group baseline.
    """
    centred_PG = dr_grpo(reward_PG)
    return centred_PG / (centred_PG.std() + epsilon)


def informative(reward_PG: FloatArray) -> BoolArray:
    """Which groups have different rewards, shape P: the others give no gradient.

    Source: Yu et al., DAPO (arXiv 2503.14476), equation 11, dynamic sampling.
    """
    _require_groups(reward_PG)
    return (reward_PG != reward_PG[:, :1]).any(1)


def overlong_penalty(length: NDArray[np.integer], *, max_length: int, buffer: int) -> FloatArray:
    """What is added to the reward of long responses.

    It falls from 0 to −1 over the last ``buffer`` tokens.

    ``length``: tokens of each response, any shape. Source: DAPO (arXiv 2503.14476), equation 13, soft overlong
    punishment. Raises `ConfigError` unless ``0 < buffer <= max_length``.
    """
    if not 0 < buffer <= max_length:
        raise ConfigError(f"overlong_penalty(max_length={max_length}, buffer={buffer}): 0 < buffer <= max_length.")
    return np.clip((max_length - buffer - np.asarray(length)) / buffer, -1.0, 0.0)


def _require_groups(reward_PG: FloatArray, least: int = 2) -> None:
    if reward_PG.ndim != 2 or reward_PG.shape[1] < least:
        raise ConfigError(
            f"rewards of groups have the shape prompts × responses, with at least {least} responses, not {reward_PG.shape}. "
            "Next: sample more responses of each prompt (group_size)."
        )
    if not np.isfinite(reward_PG).all():
        prompt, response = np.argwhere(~np.isfinite(reward_PG))[0]
        raise ConfigError(f"the reward of response {response} of group {prompt} is {reward_PG[prompt, response]}, not a finite number.")
