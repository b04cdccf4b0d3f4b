"""Transitions over n steps against a loop over each episode by itself, and against Stable-Baselines3's."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from rlinf_lab.errors import ConfigError
from rlinf_lab.replay import NStep, demonstrations
from rlinf_lab.trees import map_tree

GAMMA = 0.9


def stream(T=40, N=3, seed=0):
    """Steps of N environments, leaves of leading axes T, N; observations are numbers of their steps."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((T, N)) < 0.15
    truncated = (rng.random((T, N)) < 0.15) & ~terminated
    number = np.arange(T * N, dtype=float).reshape(T, N)
    return {
        "obs": {"n": number}, "action": -number, "reward": rng.normal(size=(T, N)), "next_obs": {"n": number + 0.5},
        "terminated": terminated, "truncated": truncated,
    }  # fmt: skip


def by_hand(steps, n, begins=frozenset()):
    """Of each (t, environment) the return, the step that ends it and the discount, episode by episode. ``begins``: where a new one does without an end."""
    T, N = steps["reward"].shape
    found = {}
    for e in range(N):
        ends = (steps["terminated"] | steps["truncated"])[:, e].copy()
        for t, environment in begins:
            ends[t - 1] |= environment == e
        first = 0
        for last in [*np.flatnonzero(ends), T - 1]:
            for t in range(first, last + 1):
                end = min(t + n - 1, last)
                total = sum(GAMMA**k * steps["reward"][t + k, e] for k in range(end - t + 1))
                found[t, e] = total, end, 0.0 if steps["terminated"][end, e] else GAMMA ** (end - t + 1)
            first = last + 1
    return found


def check(made, steps, expected):
    assert len(made["reward"]) == len(steps["reward"]) and "truncated" not in made
    for (t, e), (total, end, discount) in expected.items():
        assert made["reward"][t, e] == pytest.approx(total) and made["discount"][t, e] == pytest.approx(discount)
        assert made["obs"]["n"][t, e] == steps["obs"]["n"][t, e] == -made["action"][t, e]
        assert made["next_obs"]["n"][t, e] == steps["next_obs"]["n"][end, e] and made["terminated"][t, e] == steps["terminated"][end, e]


def pushed(steps, folder, lengths, begins=frozenset()):
    parts, at = [], 0
    for length in lengths:
        begins_N = np.array([(at, e) in begins for e in range(steps["reward"].shape[1])])
        parts.append(folder.push(map_tree(lambda leaf, at=at, length=length: leaf[at : at + length], steps), begins_N))
        at += length
    return [*parts, *([] if (rest := folder.flush()) is None else [rest])]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [1, 2, 3, 5, 50])
@pytest.mark.parametrize("lengths", [[40], [1] * 40, [2, 1, 7, 30]], ids=["at once", "one by one", "in parts"])
def test_equals_a_loop(n, lengths, seed):
    steps = stream(seed=seed)
    given = map_tree(np.copy, steps)
    parts = pushed(steps, NStep(n, GAMMA), lengths)
    check(map_tree(lambda *leaves: np.concatenate(leaves), *parts), steps, by_hand(steps, n))
    map_tree(np.testing.assert_array_equal, steps, given)  # what was given is not changed
    # as soon as n steps are known, and no sooner
    assert len(parts[0]["reward"]) == max(0, lengths[0] - n + 1)


@pytest.mark.parametrize("n", [2, 4])
def test_an_episode_that_was_given_up_ends_where_the_next_begins(n):
    """Environments 0 and 2 begin anew before step 9, and all before step 20."""
    steps, begins = stream(), {(9, 0), (9, 2), (20, 0), (20, 1), (20, 2)}
    parts = pushed(steps, NStep(n, GAMMA), [9, 11, 20], begins)
    check(map_tree(lambda *leaves: np.concatenate(leaves), *parts), steps, by_hand(steps, n, begins))


def test_it_goes_on_where_its_state_was_taken():
    steps, one = stream(), NStep(4, GAMMA)
    one.push(map_tree(lambda leaf: leaf[:10], steps))
    state, other = one.state_dict(), NStep(4, GAMMA)
    other.load_state_dict(state)
    rest = [each.push(map_tree(lambda leaf: leaf[10:], steps), np.array([True, False, False])) for each in (one, other)]
    map_tree(np.testing.assert_array_equal, *rest)
    assert len(rest[0]["reward"]) == 30 and repr(other) == "NStep(4, gamma=0.9; 3 steps wait)"


def test_of_other_environments_nothing_is_mixed():
    folder = NStep(3, GAMMA)
    folder.push(stream(T=5, N=3))
    made = folder.push(stream(T=5, N=2, seed=1))
    check(map_tree(lambda *leaves: np.concatenate(leaves), made, folder.flush()), stream(T=5, N=2, seed=1), by_hand(stream(T=5, N=2, seed=1), 3))


@pytest.mark.parametrize("n", [1, 3])
def test_transitions_are_those_of_stable_baselines3(n):
    buffers = pytest.importorskip("stable_baselines3.common.buffers", reason="a peer of the benchmarks (pip install rlinf_lab[bench])")
    from gymnasium.spaces import Box

    box, steps = Box(-np.inf, np.inf, (1,)), stream(T=60, N=1, seed=4)
    theirs = buffers.NStepReplayBuffer(60, box, box, n_envs=1, n_steps=n, gamma=GAMMA)
    for t in range(60):
        obs, following = (steps[name]["n"][t, :, None] for name in ("obs", "next_obs"))
        done = steps["terminated"][t] | steps["truncated"][t]
        theirs.add(obs, following, steps["action"][t, :, None], steps["reward"][t], done, [{"TimeLimit.truncated": bool(steps["truncated"][t, 0])}])
    found = theirs._get_samples(np.arange(60))
    (made, *rest) = pushed(steps, NStep(n, GAMMA), [60])
    made = map_tree(lambda *leaves: np.concatenate(leaves)[:, 0], made, *rest)
    np.testing.assert_allclose(made["reward"], found.rewards[:, 0], rtol=1e-5)
    np.testing.assert_array_equal(made["next_obs"]["n"], found.next_observations[:, 0])
    np.testing.assert_allclose(made["discount"], ((1 - found.dones) * found.discounts)[:, 0], rtol=1e-5)


def test_demonstrations_are_over_several_steps_too():
    """An episode that terminated, one that was cut, and one whose last observation nobody kept."""

    def episode(first, steps, *, terminated=False, final=True):
        obs = first + np.arange(steps + 1.0)[:, None]
        return SimpleNamespace(obs_T={"x": obs[:-1]}, action_T=-obs[:-1], reward_T=obs[:-1, 0], terminated=terminated, final_obs={"x": obs[-1]} if final else None)

    found = demonstrations([episode(0, 4, terminated=True), episode(10, 2), episode(20, 4, final=False)], over=(3, 0.5))
    rows = found.rows(found.order)
    assert rows["obs"]["x"][:, 0].tolist() == [0, 1, 2, 3, 10, 11, 20, 21, 22]
    assert rows["next_obs"]["x"][:, 0].tolist() == [3, 4, 4, 4, 12, 12, 23, 23, 23]
    assert rows["reward"].tolist() == [0 + 0.5 + 0.5, 1 + 1 + 0.75, 2 + 1.5, 3, 10 + 5.5, 11, 20 + 10.5 + 5.5, 21 + 11, 22]
    assert rows["discount"].tolist() == [0.125, 0, 0, 0, 0.25, 0.5, 0.125, 0.25, 0.5]
    assert rows["terminated"].tolist() == [False, True, True, True, *[False] * 5] and rows["reward"].dtype == np.float32


def test_bad_input():
    with pytest.raises(ConfigError, match=r"lack \['truncated'\]"):
        NStep(2, GAMMA).push({k: v for k, v in stream().items() if k != "truncated"})
    for n, gamma in ((0, 0.9), (2, 1.5), (2, lambda done: 0.9)):
        with pytest.raises(ConfigError, match=rf"NStep\({n}, gamma="):
            NStep(n, gamma)
