"""How long one action of the policy takes, numpy against torch, by batch size. Run: python benchmarks/policy_inference.py"""

from __future__ import annotations

import timeit

import numpy as np
import torch

from rlinf_lab.policies import GaussianMLP


def main() -> None:
    torch.set_num_threads(1)
    policy, rng = GaussianMLP(39, 4), np.random.default_rng(0)

    def with_torch(obs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            mean = policy.policy(policy.normalise(torch.from_numpy(obs)))
            return torch.distributions.Normal(mean, policy.log_std.exp(), validate_args=False).sample().numpy()

    print("batch   numpy µs   torch µs")
    for batch in (1, 4, 8, 32, 128, 512):
        obs = rng.normal(size=(batch, 39)).astype(np.float32)
        numpy_s = min(timeit.repeat(lambda o=obs: policy.act(o, rng.standard_normal((len(o), 4), np.float32)), number=500, repeat=5)) / 500  # type: ignore[misc]
        torch_s = min(timeit.repeat(lambda o=obs: with_torch(o), number=500, repeat=5)) / 500  # type: ignore[misc]
        print(f"{batch:5d} {numpy_s * 1e6:10.1f} {torch_s * 1e6:10.1f}")


if __name__ == "__main__":
    main()
