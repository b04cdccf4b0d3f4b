"""Behaviour cloning against a bare loop in torch: CPU seconds of the same gradient steps, and how often what was cloned succeeds, by seed.

The same ten demonstrations, chunks, net, batch size and Adam; the loop normalises by the data's mean and deviation and takes a mean square. Both are
evaluated by `lab`'s evaluation on the same 200 fresh episodes, greedily. CPU seconds of learning alone, without imports, demonstrations and evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Case

ENV, LENGTH, EPISODES, TEST_SEED, SEEDS = "envpool/MetaWorld/PickPlace-v3", 100, 200, 7, (0, 1, 2)
CHUNK, STEPS, BATCH, UNITS, RATE, FLOOR = 5, 600, 256, 128, 1e-3, 0.02


@cache
def demonstrations(seed: int, length: int) -> Any:
    import rlinf_lab as lab

    return lab.collect(ENV, "expert", episodes=10, max_episode_steps=length, seed=seed, only_success=length == LENGTH)


@cache
def ours(seed: int, length: int, episodes: int) -> dict[str, float]:
    import rlinf_lab as lab

    data = demonstrations(seed, length)
    began = time.process_time()
    run = lab.train("clone", ENV, data=data, seed=seed, folder=False, progress=False, plan=None, chunk_size=CHUNK, gradient_steps=STEPS).wait()
    cpu = time.process_time() - began
    return {"cpu": cpu, "success": float(run.evaluate(episodes, TEST_SEED)["success_once"])}


@cache
def bare(seed: int, length: int, episodes: int) -> dict[str, float]:
    import numpy as np
    import torch
    from torch import nn

    from rlinf_lab.experiments.evaluation import Told, play
    from rlinf_lab.vecenv import environment
    from rlinf_lab.workers.seeds import Purpose, environment_seed

    data = demonstrations(seed, length)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    began = time.process_time()
    obs, chunks = [], []
    for episode in data:
        count = len(episode)
        later = np.minimum(np.arange(count)[:, None] + np.arange(CHUNK), count - 1)  # beyond the end the last action
        obs.append(np.asarray(episode.obs_T, np.float32))
        chunks.append(np.asarray(episode.action_T, np.float32)[later].reshape(count, -1))
    x, y = torch.from_numpy(np.concatenate(obs)), torch.from_numpy(np.concatenate(chunks))
    mean, std = x.mean(0), x.std(0) + FLOOR
    net = nn.Sequential(nn.Linear(x.shape[1], UNITS), nn.Tanh(), nn.Linear(UNITS, UNITS), nn.Tanh(), nn.Linear(UNITS, y.shape[1]))
    adam = torch.optim.Adam(net.parameters(), lr=RATE)
    for _ in range(STEPS):
        index = torch.randint(len(x), (BATCH,))
        loss = nn.functional.mse_loss(net((x[index] - mean) / std), y[index])
        adam.zero_grad()
        loss.backward()
        adam.step()
    cpu = time.process_time() - began

    def act(obs_N: Any) -> Any:
        with torch.inference_mode():
            return net((torch.as_tensor(np.asarray(obs_N, np.float32)) - mean) / std).numpy().reshape(len(obs_N), CHUNK, -1)

    factory, first = environment(ENV), environment_seed(TEST_SEED, Purpose.EVALUATION)  # the episodes that ours gets
    found = play(lambda n: factory(n, length), act, episodes, first, Told(STEPS, TEST_SEED))
    return {"cpu": cpu, "success": float(found["success_once"])}


def difference(seed: int, length: int, episodes: int) -> dict[str, float]:
    both = [kind(seed, length, episodes)["success"] for kind in (ours, bare)]
    print(f"  seed {seed}: success {both[0]}, of the bare loop {both[1]}", flush=True)
    return {"points": 100 * (both[0] - both[1])}


def next_of(measure: Callable[..., dict[str, float]], what: str, seeds: Sequence[int], *given: int) -> Callable[[], float]:
    """Of the next seed each time it is called."""
    rest = iter(seeds)
    return lambda: measure(next(rest), *given)[what]


def cases(smoke: bool) -> Iterator[Case]:
    from harness import Case

    seeds, length, episodes = (SEEDS[:1], 10, 2) if smoke else (SEEDS, LENGTH, EPISODES)
    note = (
        f"Meta-World pick-place, ten demonstrations, chunks of {CHUNK}, {STEPS} gradient steps of {BATCH}, {UNITS}-{UNITS}, {episodes} fresh episodes; "
        f"seeds {list(seeds)}, each by itself"
    )
    given = (length, episodes)
    yield Case("cloning_success", "points", next_of(difference, "points", seeds, *given), runs=len(seeds),
               note=note + "; success of ours less that of the bare loop")  # fmt: skip
    yield Case("cloning_time", "CPU s", next_of(ours, "cpu", seeds, *given), {"bare torch": next_of(bare, "cpu", seeds, *given)},
               runs=len(seeds), note=note + "; the start of the run included")  # fmt: skip
