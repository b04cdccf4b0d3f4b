"""A language model that was trained by name: kept, loaded and evaluated as a policy is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError
from rlinf_lab.tasks import make


def test_a_model_of_a_run_answers_and_is_kept(tmp_path: Path) -> None:
    small = {"prompts": 2, "group_size": 2, "minibatches": 1, "warm_up_steps": 2, "max_tokens": 8, "slots": 8, "progress": False}
    small["engine_options"] = {"slots": 4}  # in training and in what is kept
    run = lab.train("grpo", "reasoning/sorting", iterations=2, eval_every={"iterations": 1}, eval_episodes=6, folder=tmp_path / "run", **small).wait()
    assert run.metrics["eval_length"].notna().all() and run.policy().version == 2
    loaded = lab.load_policy(tmp_path / "run")
    found, again = run.evaluate(20, seed=3), loaded.evaluate(20, seed=3)
    assert np.array_equal(found.returns_E, again.returns_E) and np.array_equal(found.lengths_E, again.lengths_E)
    assert again["iteration"] == 2 and 1 <= again["length"] <= 8 and again["success_rate"] == np.mean(again.returns_E >= 1)
    problems = make("sorting").sample(np.random.default_rng(0), 3, 2)
    prompts = [p.prompt for p in problems]
    answers = loaded.answer(prompts, temperature=0.0)
    assert [loaded.answer(p, temperature=0.0) for p in prompts] == answers, "one by one as together"
    with pytest.raises(ConfigError, match="a prompt, or several"):
        loaded.answer([])
    # What it said is there after the kernel, too, and what it says after that comes behind.
    kept = pd.read_parquet(tmp_path / "run" / "samples.parquet")
    assert kept["text"].tolist() == run.samples["text"].tolist() and (len(kept), kept.attrs["total"]) == (8, 8)
    longer = lab.resume(tmp_path / "run", iterations=3, progress=False).wait()
    new = {f"2.{p}/{s}" for p in range(2) for s in range(2)}
    assert longer.samples["id"].tolist()[:8] == kept["id"].tolist() and set(longer.samples["id"][8:]) == new
    assert set(longer.samples["learnt_in"]) == {0, 1, 2} and longer.samples.attrs["total"] == 12
