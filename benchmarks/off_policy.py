"""SAC and TD3: seconds to a return against stable-baselines3, gradient steps against bare torch.

CPU seconds of a process from its start, imports included, without the looks (20 greedy episodes on the same unseen seeds): the same on a machine that
others use.

    python benchmarks/off_policy.py child ours sac 0     one run by itself
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Case

ENV, GOAL, MOST = "Pendulum-v1", -200.0, 20_000
EVERY, EPISODES, EVAL_SEED = 1_000, 20, 1
#: Of both sides: small nets, for the task is small.
SETTINGS: dict[str, dict[str, Any]] = {
    "sac": {"learning_rate": 1e-3, "batch_size": 128, "learning_starts": 100, "train_freq": 8},
    "td3": {"learning_rate": 1e-3, "batch_size": 128, "learning_starts": 1_000, "train_freq": 8},
}
NET = (64, 64)
NOISE = {"td3": 0.1}


# --- seconds to a return --------------------------------------------------------------------------------------------------
def child(kind: str, algorithm: str, seed: int) -> dict[str, Any]:
    """CPU seconds to the return, steps, what was reached."""
    return _ours(algorithm, seed) if kind == "ours" else _sb3(kind.removeprefix("sb3-"), algorithm, seed)


def _ours(algorithm: str, seed: int) -> dict[str, Any]:
    import rlinf_lab as lab

    run = lab.train(
        algorithm, ENV, total_timesteps=MOST, seed=seed, net_arch=NET, folder=False, progress=False, plan=None, eval_every=EVERY, eval_episodes=EPISODES,
        eval_seed=EVAL_SEED, until={"return": GOAL}, **SETTINGS[algorithm],
    ).wait()  # fmt: skip
    rows = run.metrics
    reached = float(rows["eval_return"].dropna().iloc[-1])
    return {"cpu": _cpu() - float(rows["eval_cpu_seconds"].sum()), "steps": int(rows["env_steps"].max()), "reached": reached}


def _cpu() -> float:
    return sum(os.times()[:4])


def _sb3(variant: str, algorithm: str, seed: int) -> dict[str, Any]:
    import numpy as np
    import torch
    from front_door import _play, _predict
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    told = {"worked": 0.0, "reached": -math.inf}

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % EVERY:
                return True
            cpu = _cpu()
            told["reached"] = _play(ENV, partial(_predict, self.model, None))
            told["worked"] += _cpu() - cpu
            return told["reached"] < GOAL

    settings: dict[str, Any] = {"learning_rate": 1e-3}  # rl-baselines3-zoo's for SAC and TD3 on Pendulum-v1
    if variant == "ours":
        settings = {**SETTINGS[algorithm], "gradient_steps": -1, "policy_kwargs": {"net_arch": list(NET)}}
    if algorithm == "td3":
        settings["action_noise"] = NormalActionNoise(np.zeros(1), np.full(1, NOISE["td3"]))
    model = {"sac": SAC, "td3": TD3}[algorithm]("MlpPolicy", ENV, seed=seed, device="cpu", **settings)
    model.learn(MOST, callback=Look())
    return {"cpu": _cpu() - told["worked"], "steps": model.num_timesteps, "reached": told["reached"]}


def seconds_to(kind: str, algorithm: str, seeds: Sequence[int]) -> Callable[[], float]:
    """Measures the next seed each time it is called; unsolved counts as infinite."""
    rest = iter(seeds)

    def measure() -> float:
        found = in_process("child", kind, algorithm, str(next(rest)))
        print(f"  {algorithm} {kind}: {found}", flush=True)
        return float(found["cpu"]) if found["reached"] >= GOAL else math.inf

    return measure


def in_process(*words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


# --- a minibatch ----------------------------------------------------------------------------------------------------------
OBS, ACT, ROWS = 17, 6, 5_000  # HalfCheetah's


def in_the_learner(units: int, batch: int, steps: int) -> Callable[[], float]:
    """CPU milliseconds of a minibatch of SAC in the worker: drawing it, the gradient step, its metrics."""
    import numpy as np
    from gymnasium.spaces import Box

    from rlinf_lab.policies import make_actor, make_q_ensemble
    from rlinf_lab.records import Trajectory
    from rlinf_lab.workers.off_policy import OffPolicyLearner, SACStep
    from rlinf_lab.workflow.worker import Scripted

    spaces = Box(-np.inf, np.inf, (OBS,), np.float32), Box(-1, 1, (ACT,), np.float32)
    made = partial(SACStep, partial(make_actor, *spaces, net_arch=(units, units)), partial(make_q_ensemble, *spaces, net_arch=(units, units)))
    settings = {"learning_rate": 3e-4, "gamma": 0.99, "tau": 0.005}
    learner = OffPolicyLearner(
        partial(made, target_entropy=-float(ACT)), settings=settings, buffer_size=100_000, batch_size=batch, gradient_steps=steps, updates=1000
    )
    learner.setup()

    def trajectory(rows: int) -> Trajectory:
        obs_TN, reward_TN = np.random.default_rng(0).standard_normal((rows + 1, 1, OBS)).astype(np.float32), np.zeros((rows, 1), np.float32)
        flags, none = np.zeros((rows, 1), bool), np.zeros(0, np.float32)
        return Trajectory(
            0, 0, obs_TN[:-1], np.zeros((rows, 1, ACT), np.float32), reward_TN, np.zeros(rows, np.int64), reward_TN, flags, flags, obs_TN[-1], False,
            np.zeros((0, 2), np.int64), np.zeros((0, OBS), np.float32), none, np.zeros(0, np.int64), none, none,
        )  # fmt: skip

    learner.train(Scripted([trajectory(ROWS)]))
    return partial(_ms, lambda: learner.train(Scripted([trajectory(1)])), steps)


def _ms(work: Callable[[], object], steps: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) / steps * 1e3


def bare(units: int, batch: int, steps: int) -> Callable[[], float]:
    """The same of a loop in plain torch: two critics, three optimisers, a buffer of arrays, as single-file implementations have them."""
    import copy

    import numpy as np
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def net(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inputs, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(), nn.Linear(units, outputs))

    actor, critics, log_alpha = net(OBS, 2 * ACT), nn.ModuleList([net(OBS + ACT, 1) for _ in range(2)]), torch.zeros(1, requires_grad=True)
    targets = copy.deepcopy(critics).requires_grad_(False)
    actor_adam, critic_adam, alpha_adam = (torch.optim.Adam(p, lr=3e-4) for p in (actor.parameters(), critics.parameters(), [log_alpha]))
    rng = np.random.default_rng(0)
    held = {"obs": rng.standard_normal((ROWS, OBS), np.float32), "next": rng.standard_normal((ROWS, OBS), np.float32),
            "act": np.zeros((ROWS, ACT), np.float32), "rew": np.zeros((ROWS, 1), np.float32), "done": np.zeros((ROWS, 1), np.float32)}  # fmt: skip

    def act(obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = actor(obs).chunk(2, 1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        return action, (normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)).sum(1, keepdim=True)

    def values(nets: nn.ModuleList, obs: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
        both = torch.cat([obs, action], 1)
        return [q(both) for q in nets]

    def step() -> float:
        index = rng.integers(ROWS, size=batch)
        d = {name: torch.from_numpy(column[index]) for name, column in held.items()}
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = act(d["next"])
            y = d["rew"] + 0.99 * (1 - d["done"]) * (torch.min(*values(targets, d["next"], action)) - alpha * log_prob)
        loss = sum(0.5 * nn.functional.mse_loss(q, y) for q in values(critics, d["obs"], d["act"]))
        critic_adam.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        critic_adam.step()
        action, log_prob = act(d["obs"])
        actor_loss = (alpha * log_prob - torch.min(*values(critics, d["obs"], action))).mean()
        actor_adam.zero_grad()
        actor_loss.backward()
        actor_adam.step()
        alpha_adam.zero_grad()
        (-log_alpha * (log_prob.detach() - ACT)).mean().backward()
        alpha_adam.step()
        with torch.no_grad():
            for target, source in zip(targets.parameters(), critics.parameters(), strict=True):
                target.lerp_(source, 0.005)
        return float(loss.detach())

    step()
    return partial(_ms, lambda: [step() for _ in range(steps)], steps)


def sb3_steps(units: int, batch: int, steps: int) -> Callable[[], float]:
    """The same of stable-baselines3's SAC on HalfCheetah."""
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(1)
    model = SAC("MlpPolicy", "HalfCheetah-v5", policy_kwargs={"net_arch": [units, units]}, batch_size=batch, learning_starts=300, seed=0, device="cpu")
    model.learn(305)
    return partial(_ms, lambda: model.train(steps, batch), steps)


def cases(smoke: bool) -> Iterator[Case]:
    from harness import Case

    n = 1 if smoke else 5
    for algorithm in ("sac", "td3"):
        kinds = ("ours",) if smoke else ("ours", "sb3-ours", "sb3-zoo")
        ours, *peers = (seconds_to(kind, algorithm, range(n)) for kind in kinds)
        yield Case(
            f"{algorithm}_pendulum", "CPU s", ours, dict(zip(("SB3, our settings", "SB3, the zoo's"), peers, strict=False)), target="<= 0.667" if algorithm == "sac" else "", runs=n,
            note=f"to {GOAL:g} over {EPISODES} greedy episodes on unseen seeds, looked at every {EVERY} steps (not timed), imports and start-up included; "
            f"seeds 0 to {n - 1}, unsolved is infinite; nets {NET}, {SETTINGS[algorithm]}",
        )  # fmt: skip
    for units, batch in ((64, 128), (256, 256)):
        steps = 4 if smoke else 60
        peers = {"bare torch": bare(units, batch, steps), **({} if smoke else {"SB3": sb3_steps(units, batch, steps)})}
        yield Case(
            f"learner_overhead_{units}", "CPU ms a minibatch", in_the_learner(units, batch, steps), peers, target="<= 1.1", runs=1 if smoke else 9,
            note=f"SAC, nets {units}-{units}, batches of {batch}, {OBS} numbers observed, {ACT} actions; drawing from the buffer and metrics included",
        )  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    with contextlib.redirect_stdout(sys.stderr):
        result = child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    print(json.dumps(result))
