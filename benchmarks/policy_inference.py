"""How long one action of a policy takes, numpy against torch, by batch size. Run: python benchmarks/policy_inference.py"""

from __future__ import annotations

import timeit

import numpy as np
import torch
from gymnasium import spaces

from rlinf_lab.policies import make_policy


def main() -> None:
    torch.set_num_threads(1)
    policy = make_policy(spaces.Box(-np.inf, np.inf, (39,)), spaces.Box(-1, 1, (4,)))
    rng = np.random.default_rng(0)

    def with_torch(obs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            mean = policy.policy(policy.encoder(policy.preprocess(torch.from_numpy(obs))))
            return torch.distributions.Normal(mean, policy.head.log_std.exp(), validate_args=False).sample().numpy()

    print("batch   numpy µs   torch µs")
    for batch in (1, 4, 8, 32, 128, 512):
        obs = rng.normal(size=(batch, 39)).astype(np.float32)
        numpy_s = _seconds(lambda o=obs: policy.act(o, policy.draw_noise(rng, len(o))))  # type: ignore[misc]
        torch_s = _seconds(lambda o=obs: with_torch(o))  # type: ignore[misc]
        print(f"{batch:5d} {numpy_s * 1e6:10.1f} {torch_s * 1e6:10.1f}")


def _seconds(call, number: int = 500) -> float:  # type: ignore[no-untyped-def]
    return min(timeit.repeat(call, number=number, repeat=5)) / number


if __name__ == "__main__":
    main()
