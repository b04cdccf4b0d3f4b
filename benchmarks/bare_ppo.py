"""A whole PPO in one file and one process: the yardstick for the workflow.

Written without the library, on purpose: same mathematics, no workers, no channels, no recorder. What the workflow costs on top is
the workflow's time over this one's; what it learns has to look like what this learns. With two processes the environments are split
between this one and a child, and each computes the actions of its own.

    python benchmarks/bare_ppo.py --seed 0 --steps 40000
    python benchmarks/bare_ppo.py --env pendulum

Legend: T time, N environments, O observation, A action. Left out: pictures, metrics, checkpoints.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import gymnasium
import numpy as np
import torch
from torch import nn


@dataclass(frozen=True)
class Settings:
    env: str = "button-press-v3"
    seed: int = 0
    steps: int = 40_000
    """environment steps, summed over the environments"""
    num_envs: int = 8
    rollout: int = 100
    """steps of each environment between two updates"""
    horizon: int = 100
    """steps after which an episode is cut"""
    gamma: float = 0.95
    lam: float = 0.9
    learning_rate: float = 1e-3
    log_std: float = -1.0
    reward_scale: float = 0.1
    clip: float = 0.2
    epochs: int = 8
    minibatch: int = 200
    entropy: float = 0.0
    value: float = 0.5
    max_grad_norm: float = 0.5
    anneal: float = 0.0
    """share of the learning rate that is gone at the end, linearly"""
    eval_episodes: int = 50
    processes: int = 1


Envs = list[gymnasium.Env]


def make_envs(settings: Settings, seed: int, count: int) -> Envs:
    warnings.filterwarnings("ignore", module="gymnasium")
    if settings.env == "pendulum":
        return [gymnasium.make("Pendulum-v1", max_episode_steps=settings.horizon) for _ in range(count)]
    import metaworld  # noqa: F401  (registers its environments)

    def one(index: int) -> gymnasium.Env:
        env = gymnasium.make(
            "Meta-World/MT1", env_name=settings.env, seed=seed + index,
            max_episode_steps=settings.horizon, terminate_on_success=False, disable_env_checker=True,
        )  # fmt: skip
        return env

    return [one(index) for index in range(count)]


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, scale in zip(layers[::2], (2**0.5, 2**0.5, gain), strict=True):
        nn.init.orthogonal_(layer.weight, scale)  # type: ignore[arg-type]
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layers


class Agent(nn.Module):
    def __init__(self, obs: int, act: int, log_std: float) -> None:
        super().__init__()
        self.actor, self.critic = mlp(obs, act, 0.01), mlp(obs, 1, 1.0)
        self.log_std = nn.Parameter(torch.full((act,), log_std))
        self.count, self.mean, self.m2 = 0.0, torch.zeros(obs, dtype=torch.float64), torch.zeros(obs, dtype=torch.float64)

    def observe(self, obs: torch.Tensor) -> None:
        """Update the running mean and variance with rows (Chan's parallel update)."""
        rows = obs.double()
        n, mean = rows.shape[0], rows.mean(0)
        delta, total = mean - self.mean, self.count + rows.shape[0]
        self.m2 += ((rows - mean) ** 2).sum(0) + delta**2 * self.count * n / total
        self.mean, self.count = self.mean + delta * n / total, total

    def normal(self, obs: torch.Tensor) -> torch.Tensor:
        if not self.count:
            return obs.clamp(-10, 10)
        std = torch.sqrt(self.m2 / self.count + 1e-8)
        return ((obs - self.mean.float()) / std.float()).clamp(-10, 10)

    def distribution(self, obs: torch.Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.actor(self.normal(obs)), self.log_std.exp())

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        return self.critic(self.normal(obs)).squeeze(-1)


class Rollout:
    """The environments and where each of them stands."""

    def __init__(self, settings: Settings, part: int = 0) -> None:
        self.s, self.num_envs = settings, settings.num_envs // settings.processes
        first = settings.seed * 1000 + part * self.num_envs
        self.envs = make_envs(settings, first, self.num_envs)
        self.low, self.high = self.envs[0].action_space.low, self.envs[0].action_space.high  # type: ignore[attr-defined]
        self.obs = np.stack([env.reset(seed=first + i)[0] for i, env in enumerate(self.envs)])

    def collect(self, agent: Agent) -> dict[str, torch.Tensor]:
        T, N = self.s.rollout, self.num_envs
        data: dict[str, list] = {k: [] for k in ("obs", "act", "logp", "rew", "term", "done", "next", "success")}
        for _ in range(T):
            with torch.inference_mode():
                dist = agent.distribution(torch.as_tensor(self.obs, dtype=torch.float32))
                action = dist.sample()
                logp = dist.log_prob(action).sum(-1)
            row = [self._step(i, a) for i, a in enumerate(action.numpy())]
            nxt, rew, term, done, success = map(np.array, zip(*row, strict=True))
            for key, x in zip(data, (self.obs, action, logp, rew, term, done, nxt, success), strict=True):
                data[key].append(torch.as_tensor(x, dtype=torch.float32))
            self.obs = nxt.copy()
            for i in np.flatnonzero(done):
                self.obs[i] = self.envs[i].reset()[0]
        assert len(data["rew"]) == T and data["rew"][0].shape == (N,)
        return {key: torch.stack(x) for key, x in data.items()}

    def _step(self, i: int, action: np.ndarray) -> tuple:
        env = self.envs[i]
        scaled = action if self.s.env != "pendulum" else action * self.high
        nxt, reward, term, trunc, info = env.step(np.clip(scaled, self.low, self.high))
        return nxt, reward, term, term or trunc, bool(info.get("success", reward > -0.1))


class TwoRollouts:
    """One half of the environments here, the other half in a child."""

    def __init__(self, settings: Settings) -> None:
        self.mine = Rollout(settings)
        self.obs, self.envs = self.mine.obs, self.mine.envs
        self.pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        multiprocessing.get_context("spawn").Process(target=_serve, args=(settings, theirs), daemon=True).start()
        self.pipe.recv()

    def collect(self, agent: Agent) -> dict[str, torch.Tensor]:
        self.pipe.send({k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in vars_of(agent).items()})
        mine = self.mine.collect(agent)
        theirs = self.pipe.recv()
        return {k: torch.cat([mine[k], torch.from_numpy(theirs[k])], dim=1) for k in mine}

    def close(self) -> None:
        self.pipe.send(None)


def vars_of(agent: Agent) -> dict:
    return {**agent.state_dict(), "count": agent.count, "mean": agent.mean, "m2": agent.m2}


def _serve(s: Settings, pipe: Connection) -> None:
    torch.set_num_threads(1)
    roll = Rollout(s, part=1)
    agent = Agent(roll.obs.shape[1], roll.envs[0].action_space.shape[0], s.log_std)  # type: ignore[index]
    pipe.send("ready")
    while (weights := pipe.recv()) is not None:
        agent.count, agent.mean, agent.m2 = weights.pop("count"), *(torch.from_numpy(weights.pop(k)) for k in ("mean", "m2"))
        agent.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
        pipe.send({k: v.numpy() for k, v in roll.collect(agent).items()})


def advantages(s: Settings, agent: Agent, d: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        value, nxt = agent.values(d["obs"]), agent.values(d["next"])
    delta = s.reward_scale * d["rew"] + s.gamma * (1 - d["term"]) * nxt - value
    adv, last = torch.zeros_like(delta), torch.zeros(delta.shape[1])
    for t in reversed(range(s.rollout)):
        last = delta[t] + s.gamma * s.lam * (1 - d["done"][t]) * last
        adv[t] = last
    return adv, adv + value


def update(s: Settings, agent: Agent, optimizer: torch.optim.Optimizer, d: dict[str, torch.Tensor]) -> None:
    # Advantages before the normaliser moves; the new statistics hold from the first gradient step on.
    adv, ret = (x.flatten() for x in advantages(s, agent, d))
    obs, act, logp = d["obs"].flatten(0, 1), d["act"].flatten(0, 1), d["logp"].flatten()
    for _ in range(s.epochs):
        for rows in torch.randperm(len(adv)).split(s.minibatch):
            a = (adv[rows] - adv[rows].mean()) / (adv[rows].std() + 1e-8)
            dist = agent.distribution(obs[rows])
            ratio = (dist.log_prob(act[rows]).sum(-1) - logp[rows]).exp()
            policy = -torch.min(ratio * a, ratio.clamp(1 - s.clip, 1 + s.clip) * a).mean()
            value = 0.5 * (agent.values(obs[rows]) - ret[rows]).pow(2).mean()
            loss = policy + s.value * value - s.entropy * dist.entropy().sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), s.max_grad_norm)
            optimizer.step()
    agent.observe(obs)


def evaluate(s: Settings, agent: Agent, act: Callable | None = None) -> float:
    """Greedy success at the end of the episode, over episodes whose seeds training never saw."""
    count = min(10, s.eval_episodes)
    roll = Rollout.__new__(Rollout)
    roll.s, roll.envs = s, make_envs(s, 900_000 + s.seed * 1000, count)
    roll.low, roll.high = roll.envs[0].action_space.low, roll.envs[0].action_space.high  # type: ignore[attr-defined]
    wins = 0
    for episode in range(s.eval_episodes // count):
        obs = np.stack([env.reset(seed=950_000 + 100 * episode + i)[0] for i, env in enumerate(roll.envs)])
        for _ in range(s.horizon):
            with torch.inference_mode():
                action = agent.distribution(torch.as_tensor(obs, dtype=torch.float32)).mean.numpy()
            row = [roll._step(i, a) for i, a in enumerate(action)]
            obs = np.stack([r[0] for r in row])
        wins += sum(r[4] for r in row)
    return wins / (s.eval_episodes // count * count)


def train(s: Settings, report: Callable[[dict], None] = lambda row: None, goal: float = 2.0) -> dict:
    """Train for ``s.steps`` steps. Returns the learning curve and the seconds spent in each part."""
    torch.set_num_threads(1)
    torch.manual_seed(s.seed)
    roll = Rollout(s) if s.processes == 1 else TwoRollouts(s)
    agent = Agent(roll.obs.shape[1], roll.envs[0].action_space.shape[0], s.log_std)  # type: ignore[index]
    optimizer = torch.optim.Adam(agent.parameters(), lr=s.learning_rate, eps=1e-5)
    before = evaluate(s, agent) if s.eval_episodes else float("nan")
    curve, seconds = [], {"collect": 0.0, "update": 0.0, "cpu": 0.0}
    for step in range(s.rollout * s.num_envs, s.steps + 1, s.rollout * s.num_envs):
        start, cpu = time.perf_counter(), time.process_time()
        data = roll.collect(agent)
        middle = time.perf_counter()
        optimizer.param_groups[0]["lr"] = s.learning_rate * (1 - s.anneal * step / s.steps)
        update(s, agent, optimizer, data)
        seconds["collect"] += middle - start
        seconds["update"] += time.perf_counter() - middle
        seconds["cpu"] += time.process_time() - cpu
        ends = data["done"].bool()
        success = data["success"][ends].mean().item() if ends.any() else float("nan")
        row = {"steps": step, "success_end": success, "reward": data["rew"].mean().item(), "seconds": time.perf_counter() - start}
        curve.append(row)
        report(curve[-1])
        if len(curve) >= 3 and np.mean([row["success_end"] for row in curve[-3:]]) >= goal:
            break
    after = evaluate(s, agent) if s.eval_episodes else float("nan")
    if isinstance(roll, TwoRollouts):
        roll.close()
    return {"settings": asdict(s), "before": before, "after": after, "curve": curve, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    for name, default in asdict(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    result = train(Settings(**vars(parser.parse_args())), report=lambda row: print(json.dumps(row), flush=True))
    print(json.dumps({k: v for k, v in result.items() if k not in ("curve", "settings")}))


if __name__ == "__main__":
    main()
