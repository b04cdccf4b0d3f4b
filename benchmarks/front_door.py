"""The front door against stable-baselines3 and against bare loops: seconds to a return, steps a second, seconds to the first update, overhead.

Seconds to a return count from the start of a process to the look that found it, imports and start-up on both sides, without the looks: 20 greedy
episodes on the same unseen seeds, every 5,000 transitions. A run that does not get there counts as infinite. Wall clock; CPU seconds of the process and
its children where others use the machine (load above the number of cores when the benchmark begins): the note of a row says which.

    python benchmarks/front_door.py child sb3-zoo cartpole 0     one run by itself
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Case

BEGAN = time.time()
EVERY, EPISODES, EVAL_SEED = 5_000, 20, 1
TASKS = {"cartpole": ("CartPole-v1", 475.0, 100_000), "pendulum": ("Pendulum-v1", -250.0, 200_000)}
#: Of rl-baselines3-zoo, hyperparams/ppo.yml.
ZOO: dict[str, dict[str, Any]] = {
    "cartpole": {"n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "learning_rate": "lin_0.001",
                 "clip_range": "lin_0.2"},
    "pendulum": {"n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "learning_rate": 1e-3, "clip_range": 0.2,
                 "use_sde": True, "sde_sample_freq": 4},
}  # fmt: skip


# --- one run, in a process of its own ------------------------------------------------------------------------------------
def child(kind: str, task: str, seed: int) -> dict[str, Any]:
    """Seconds to the return, steps, what was reached."""
    env, goal, most = TASKS[task]
    if kind == "ours":
        return _ours(env, goal, most, seed)
    return _sb3(kind.removeprefix("sb3-"), task, env, goal, most, seed)


def _ours(env: str, goal: float, most: int, seed: int) -> dict[str, Any]:
    import rlinf_lab as lab

    rows: list[dict[str, float]] = []
    lab.train("ppo", env, total_timesteps=most, seed=seed, folder=False, progress=False, eval_every=EVERY, eval_episodes=EPISODES,
              eval_seed=EVAL_SEED, until={"return": goal}, on_iteration=lambda row: rows.append(dict(row))).wait()  # fmt: skip
    looked, worked = (sum(row.get(name, 0.0) for row in rows) for name in ("eval_seconds", "eval_cpu_seconds"))
    reached = [row["eval_return"] for row in rows if "eval_return" in row][-1]
    return {"wall": time.time() - BEGAN - looked, "cpu": _cpu() - worked, "steps": int(rows[-1]["env_steps"]), "reached": reached}


def _cpu() -> float:
    """Seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _sb3(variant: str, task: str, env: str, goal: float, most: int, seed: int) -> dict[str, Any]:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    settings, normalises = _sb3_settings(variant, task, env)
    vector: Any = make_vec_env(env, n_envs=settings.pop("n_envs", 1), seed=seed)
    if normalises:
        vector = VecNormalize(vector, norm_reward=normalises == "both")
    told = {"looked": 0.0, "worked": 0.0, "reached": -math.inf, "next": EVERY}

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps < told["next"]:
                return
            told["next"] = (self.num_timesteps // EVERY + 1) * EVERY
            began, cpu = time.time(), _cpu()
            told["reached"] = _play(env, partial(_predict, self.model, vector))
            told["looked"] += time.time() - began
            told["worked"] += _cpu() - cpu
            if told["reached"] >= goal:
                raise StopIteration

    model = PPO("MlpPolicy", vector, seed=seed, device="cpu", **settings)
    with contextlib.suppress(StopIteration):
        model.learn(most, callback=Look())
    return {"wall": time.time() - BEGAN - told["looked"], "cpu": _cpu() - told["worked"], "steps": model.num_timesteps, "reached": told["reached"]}


def _sb3_settings(variant: str, task: str, env: str) -> tuple[dict[str, Any], str]:
    """Keyword arguments of PPO, and what is normalised: "", "obs" or "both"."""
    if variant == "defaults":
        return {}, ""
    if variant == "zoo":
        return {name: _linear(value) for name, value in ZOO[task].items()}, ""
    from rlinf_lab.recipes.ppo import PPOConfig

    ours = PPOConfig.preset(env, total_timesteps=TASKS[task][2])
    same = ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range", "ent_coef", "vf_coef", "max_grad_norm")
    settings: dict[str, Any] = {name: getattr(ours, name) for name in same}
    rate = ours.learning_rate
    settings["learning_rate"] = (lambda left: rate(1 - left)) if callable(rate) else rate
    settings["policy_kwargs"] = {"net_arch": list(ours.net_arch), "log_std_init": ours.log_std_init}
    return {"n_envs": ours.num_envs, **settings}, "both" if ours.normalize_reward else "obs"


def _linear(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    first = float(value.removeprefix("lin_"))
    return lambda left: left * first


def _predict(model: Any, vector: Any, obs: Any) -> Any:
    normal = vector.normalize_obs(obs) if hasattr(vector, "normalize_obs") else obs
    return model.predict(normal, deterministic=True)[0]


def _play(env: str, act: Callable[[Any], Any]) -> float:
    """Mean return of the same episodes that ours are looked at with."""
    import gymnasium
    import numpy as np

    from rlinf_lab.workers.seeds import Purpose, environment_seed

    first, at_once = environment_seed(EVAL_SEED, Purpose.EVALUATION), 16
    envs = [gymnasium.make(env) for _ in range(at_once)]
    left = [(EPISODES + i) // at_once for i in range(at_once)]
    obs = np.stack([e.reset(seed=first + i)[0] for i, e in enumerate(envs)])
    total, returns = np.zeros(at_once), []
    while any(left):
        actions = act(obs)
        for i, e in enumerate(envs):
            obs[i], reward, terminated, truncated, _ = e.step(actions[i])
            total[i] += float(reward)
            if terminated or truncated:
                if left[i]:
                    left[i] -= 1
                    returns.append(total[i])
                total[i] = 0.0
                obs[i] = e.reset()[0]
    return float(np.mean(returns))


def clock() -> str:
    """ "wall", or "cpu" where others use the machine."""
    return "cpu" if os.getloadavg()[0] > len(os.sched_getaffinity(0)) else "wall"


class Seeds:
    """Runs of one kind, a seed each; cases that ask for the same one get the same measurement."""

    def __init__(self, kind: str, task: str, by: str) -> None:
        self.kind, self.task, self.by = kind, task, by
        self.found: list[dict[str, Any]] = []

    def seconds(self) -> Callable[[], float]:
        """Measures the next seed each time it is called, unless another case has."""
        seeds = itertools.count()

        def measure() -> float:
            seed = next(seeds)
            if seed == len(self.found):
                self.found.append(_in_process("child", self.kind, self.task, str(seed)))
            found = self.found[seed]
            return float(found[self.by]) if found["reached"] >= TASKS[self.task][1] else math.inf

        return measure

    def curve(self) -> list[list[float]]:
        """Environment steps and the return reached, of each seed."""
        return [[found["steps"], found["reached"]] for found in self.found]


def _in_process(*words: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


# --- start-up ------------------------------------------------------------------------------------------------------------
def first_update() -> dict[str, Any]:
    """Seconds to the end of the first iteration of CartPole: from the start of a process, and again in the same one."""
    import rlinf_lab as lab

    ends: list[float] = []

    def once() -> None:
        lab.train("ppo", "CartPole-v1", total_timesteps=1024, folder=False, progress=False, on_iteration=lambda row: ends.append(time.time())).wait()

    once()
    cold, began = ends[0] - BEGAN, time.time()
    once()
    return {"shell": cold, "kernel": ends[1] - began}


# --- overhead ------------------------------------------------------------------------------------------------------------
#: Iterations of a run that measures its workers, looks for a plan and changes to it: its start.
STARTING = 10


def steps_per_cpu_second(task: str, iterations: int, bare: bool) -> float:
    """Between the start, in which the plan is found, and the last iteration, which ends the run. CPU seconds: the same on a machine that others use."""
    from rlinf_lab.recipes.ppo import PPOConfig

    config = PPOConfig.preset(task, iterations=STARTING + iterations + 1)
    marks: list[float] = []
    if bare:
        _bare_loop(config, lambda: marks.append(time.process_time()))
    else:
        import rlinf_lab as lab

        settings = {"iterations": STARTING + iterations + 1, "folder": False, "progress": False}
        lab.train("ppo", task, **settings, on_iteration=lambda row: marks.append(time.process_time())).wait()
    return iterations * config.env_steps / (marks[STARTING + iterations - 1] - marks[STARTING - 1])


def _bare_loop(config: Any, mark: Callable[[], None]) -> None:
    """The same mathematics in one thread: environments, policy and update called one after another, nothing recorded, no channels, no plan."""
    import torch

    from rlinf_lab.records import Action
    from rlinf_lab.workers import LearnerWorker, PolicyWorker
    from rlinf_lab.workers.environments import EnvGroup

    torch.set_num_threads(1)
    env = config.factory(config.num_envs, config.max_episode_steps)
    group = EnvGroup(env, 0, 0, config.seed)
    policy = PolicyWorker(config.make_policy(), seed=config.seed)
    numbers = ("gamma", "gae_lambda", "learning_rate", "n_epochs", "batch_size", "clip_range", "vf_coef", "ent_coef", "max_grad_norm", "reward_scale",
               "normalize_reward")  # fmt: skip
    learner = LearnerWorker(config.make_policy(), **{name: getattr(config, name) for name in numbers}, updates=config.updates, seed=config.seed)
    policy.setup()
    learner.setup()
    for _ in range(config.updates):
        group.begin(config.n_steps)
        for _ in range(config.n_steps):
            seen = group.observation()
            action, log_prob = policy.policy.act(seen.obs_N, policy._draw([seen]))
            group.record(Action(0, action, log_prob, policy.policy.version))
        policy.load_weights(learner.train(_All([group.finish()])).weights)  # type: ignore[arg-type]
        mark()
    env.close()


class _All:
    """An inbox by hand."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items

    def get_all(self) -> list[Any]:
        return self._items


def sb3_steps_per_second(env: str, steps: int) -> float:
    """With our settings, after the first iteration."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    from rlinf_lab.recipes.ppo import PPOConfig

    torch.set_num_threads(1)
    ours = PPOConfig.preset(env)
    names = ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range")
    vector = VecNormalize(make_vec_env(env, n_envs=ours.num_envs, seed=0))
    model = PPO("MlpPolicy", vector, seed=0, device="cpu", **{name: getattr(ours, name) for name in names})
    model.learn(ours.env_steps)
    began = time.perf_counter()
    model.learn(steps, reset_num_timesteps=False)
    return steps / (time.perf_counter() - began)


def our_steps_per_second(env: str, iterations: int) -> float:
    import rlinf_lab as lab

    marks: list[float] = []
    run = lab.train("ppo", env, iterations=iterations + 1, folder=False, progress=False, on_iteration=lambda row: marks.append(time.perf_counter())).wait()
    return iterations * run.config.env_steps / (marks[-1] - marks[0])


# --- pictures ------------------------------------------------------------------------------------------------------------
PIXELS: dict[str, Any] = {"n_steps": 64, "batch_size": 128, "n_epochs": 4, "gamma": 0.95, "gae_lambda": 0.9}
PICTURES = 8  # environments


def our_pictures(iterations: int, precision: str) -> float:
    """Steps a CPU second, after the first iteration."""
    from pixels import CatchPixels

    import rlinf_lab as lab

    marks: list[float] = []
    run = lab.train("ppo", CatchPixels, iterations=iterations + 1, num_envs=PICTURES, learning_rate=1e-3, precision=precision, plan=None, folder=False,
                    progress=False, on_iteration=lambda row: marks.append(time.process_time()), **PIXELS).wait()  # fmt: skip
    return iterations * run.config.env_steps / (marks[-1] - marks[0])


def sb3_pictures(iterations: int) -> float:
    import torch
    from pixels import CatchPixels
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    model = PPO("CnnPolicy", make_vec_env(CatchPixels, n_envs=PICTURES, seed=0), seed=0, device="cpu", learning_rate=1e-3, **PIXELS)
    once = PICTURES * PIXELS["n_steps"]
    model.learn(once)
    began = time.process_time()
    model.learn(iterations * once, reset_num_timesteps=False)
    return iterations * once / (time.process_time() - began)


def pixels_learnt(seed: int, precision: str) -> float:
    from pixels import CatchPixels

    import rlinf_lab as lab

    run = lab.train("ppo", CatchPixels, total_timesteps=20_480, num_envs=PICTURES, learning_rate=1e-3, seed=seed, precision=precision, folder=False,
                    progress=False, eval_every=2_048, eval_episodes=50, eval_seed=EVAL_SEED, until={"success_rate": 0.95}, **PIXELS)  # fmt: skip
    return float(run.wait().metrics["eval_success_rate"].max())


def pictures(smoke: bool, precision: str) -> Case:
    from harness import Case

    few = 1 if smoke else 6
    note = "64×64 pixels drawn with numpy (pixels.py), a convolutional net of the same layers, the same settings, one core each; steps per CPU second"
    if precision == "float32":  # CPU milliseconds of a step, of the net by itself on 128 pictures, and of a rollout's answer
        note += (". The bound: both sides call oneDNN's convolutions in single precision, which by themselves take 23 of 27 ms of our gradient step "
                 "(27 ms in their memory layout) and 0.75 of 1.1 ms of an answer to 8 environments (0.93)")  # fmt: skip
    else:
        note += "; the first convolution by blocks of pixels (rlinf_lab/policies/encoders.py), rollouts in single precision"
    name = "ppo_pixels" if precision == "float32" else f"ppo_pixels, {precision}"
    peers = {"stable-baselines3, float32": partial(sb3_pictures, few)}
    return Case(name, "steps/s", partial(our_pictures, few, precision), peers, ">= 1.5", runs=1 if smoke else 5, note=note)


def cases(smoke: bool) -> list[Case]:
    from harness import Case

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    runs, few = (1, 2) if smoke else (5, 20)
    rows, by = [], clock()
    for task in ("cartpole",) if smoke else ("cartpole", "pendulum"):
        ours, (zoo, same, defaults) = Seeds("ours", task, by), (Seeds(f"sb3-{kind}", task, by) for kind in ("zoo", "ours", "defaults"))
        note = (f"{by} seconds to {TASKS[task][1]:g} over {EPISODES} greedy episodes, looked at every {EVERY:,} transitions, from the start of the process, "
                f"without the looks; seeds 0 to {runs - 1}, unsolved ones count as infinite; one core each; curve: our steps and return of each seed")  # fmt: skip
        tuned: dict[str, Callable[[], float]] = {"stable-baselines3, the zoo's tuned settings": zoo.seconds()}
        rows.append(Case(f"ppo_{task}", "s", ours.seconds(), tuned, "<= 0.5", runs=runs, note=note, curve=ours.curve))
        if not smoke:
            rows.append(Case(f"ppo_{task}, with our settings on both sides", "s", ours.seconds(), {"stable-baselines3": same.seconds()}, "<= 0.667", runs=runs,
                             note=note, curve=same.curve))  # fmt: skip
            rows.append(Case(f"{task} of stable-baselines3's defaults", "s", ours.seconds(), {"stable-baselines3, its defaults": defaults.seconds()},
                             runs=runs, note=note, curve=defaults.curve))  # fmt: skip
    for precision in ("float32",) if smoke else ("float32", "bfloat16"):
        rows.append(pictures(smoke, precision))
        if not smoke:
            rows += [Case(f"ppo_pixels, {precision}, success of seed {seed}", "share", partial(pixels_learnt, seed, precision), target=">= 0.9",
                          target_of="value", runs=1, note="best of the evaluations, 50 episodes, within 20,480 steps") for seed in range(3)]  # fmt: skip
    cheetah = "HalfCheetah-v5"
    rows.append(Case("ppo_halfcheetah", "steps/s", partial(our_steps_per_second, cheetah, few // 5 or 1),
                     {"stable-baselines3, our settings": partial(sb3_steps_per_second, cheetah, 2048 * (few // 5 or 1))}, ">= 2", runs=runs))  # fmt: skip
    for where, most in (("kernel", 6), ("shell", 12)):
        rows.append(Case(f"time_to_first_update, {where}", "s", lambda where=where: float(_in_process("first")[where]), target=f"<= {most}",  # type: ignore[misc]
                         target_of="value", runs=runs))  # fmt: skip
    for task, least in (("CartPole-v1", 0.9), ("metaworld/button-press-v3", 0.95)):
        rows.append(Case(f"front_door_overhead, {task}", "steps per CPU second", partial(steps_per_cpu_second, task, few, False),
                         {"a bare loop with the same mathematics": partial(steps_per_cpu_second, task, few, True)}, f">= {least}", runs=runs,
                         note=f"iterations {STARTING + 1} to {STARTING + few}; the plan found is simulator and policy in one thread"))  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    print(json.dumps(first_update() if sys.argv[1] == "first" else child(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
