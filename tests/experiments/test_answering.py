"""A language model that was trained by name: kept, loaded and evaluated as a policy is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.tasks import make


def test_a_model_of_a_run_answers_and_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"prompts": 2, "group_size": 2, "minibatches": 1, "warm_up_steps": 2, "max_tokens": 8, "slots": 8}
    small["engine_options"] = {"slots": 4}  # in training and in what is kept
    run = lab.train("grpo", "reasoning/sorting", iterations=2, eval_every={"iterations": 1}, eval_episodes=6, folder=tmp_path / "run", **small).wait()
    told, folder = capsys.readouterr().err.splitlines(), tmp_path / "run"
    assert told[0] == f"grpo reasoning/sorting: begins with 2 supervised steps of the small model, kept in {folder}"
    assert f", reward {run.metrics['reward'].iloc[-1]:.4g}" in repr(run)
    picture = run.show().still().html
    assert all(f">{name}" in picture for name in ("reward", "eval_return", "policy_loss", "response_tokens_p95"))
    assert run.metrics["eval_length"].notna().all() and run.policy().version == 2
    loaded = lab.load_policy(tmp_path / "run")
    found, again = run.evaluate(20, seed=3), loaded.evaluate(20, seed=3)
    assert np.array_equal(found.returns_E, again.returns_E) and np.array_equal(found.lengths_E, again.lengths_E)
    assert again["iteration"] == 2 and 1 <= again["length"] <= 8 and again["success_rate"] == np.mean(again.returns_E >= 1)
    problems = make("sorting").sample(np.random.default_rng(0), 3, 2)
    prompts = [p.prompt for p in problems]
    answers = loaded.answer(prompts, temperature=0.0)
    assert [loaded.answer(p, temperature=0.0) for p in prompts] == answers, "one by one as together"
    for prompts, why in (([], "a prompt, or several"), (["1<", ""], "an empty prompt"), ("1" * 600, "a prompt of 600 tokens")):
        with pytest.raises(ConfigError, match=why):
            loaded.answer(prompts)
    # Another program has the trained weights, and so has a run that begins with them.
    exported = run.export(tmp_path / "model")
    other = lab.generation.load_model(exported)
    for name, weight in other.state_dict().items():
        assert np.array_equal(weight.numpy(), run.policy().model.state_dict()[name].numpy())
    on = lab.train("grpo", "reasoning/sorting", model=exported, iterations=1, folder=False, progress=False, **(small | {"warm_up_steps": 0})).wait()
    assert on.metrics["mismatch_max"].iloc[0] < 1e-4 and lab.compare(run, run).metric == "eval_return"
    with pytest.raises(ConfigError, match="run.samples"):
        run.film(tmp_path / "film.mp4")
    # What it said is there after the kernel, too, and what it says after that comes behind.
    kept = pd.read_parquet(tmp_path / "run" / "samples.parquet")
    assert kept["text"].tolist() == run.samples["text"].tolist() and (len(kept), kept.attrs["total"]) == (8, 8)
    longer = lab.resume(tmp_path / "run", iterations=3).wait()
    assert "begins with" not in capsys.readouterr().err
    new = {f"2.{p}/{s}" for p in range(2) for s in range(2)}
    assert longer.samples["id"].tolist()[:8] == kept["id"].tolist() and set(longer.samples["id"][8:]) == new
    assert set(longer.samples["learnt_in"]) == {0, 1, 2} and longer.samples.attrs["total"] == 12


def test_any_task_is_trained_on_by_name_or_as_an_object(tmp_path: Path) -> None:
    """One that has no preset, a file, an object of it with a reward of one's own; variants of GRPO are algorithms."""
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{i}+1=", "answer": i + 1}) + "\n" for i in range(40)))
    small = {"iterations": 1, "prompts": 4, "minibatches": 1, "warm_up_steps": 1, "max_tokens": 4, "slots": 8}
    groups, quiet = {"group_size": 2}, {"progress": False, "plan": None}
    for algorithm, env, more in (
        ("grpo", "reasoning/countdown", groups), ("dapo", str(file), groups), ("ppo", "reasoning/sorting", {}),
    ):  # fmt: skip
        run = lab.train(algorithm, env, folder=tmp_path / algorithm, **small, **more, **quiet).wait()
        assert run.iteration == 1 and lab.load_policy(run.folder).config == run.config
        assert lab.resume(run.folder, iterations=2, progress=False).wait().iteration == 2
    assert run.config.critic and run.recipe.name == "token_ppo" and "value_loss" in run.metrics
    # The file is remembered: another one is not gone on with by mistake.
    folder = tmp_path / "dapo"
    file.write_text(file.read_text() + json.dumps({"prompt": "40+1=", "answer": 41}) + "\n")
    with pytest.raises(ConfigError, match=rf"another '{file}': 40 problems then, 41 now\. .*lab\.resume\('{folder}', env='{file}'\)"):
        lab.resume(folder, iterations=3)
    with pytest.warns(UserWarning, match="40 problems then, 41 now, and this one is used"):
        lab.load_policy(folder)
    with pytest.warns(UserWarning, match="and this one is used"):
        lab.resume(folder, env=str(file), iterations=3, progress=False).wait()
    lab.resume(folder, iterations=4, progress=False).wait()
    whole = file.read_text()
    file.write_text(whole + json.dumps({"prompt": "é", "answer": 41}) + "\n")
    with pytest.raises(ConfigError, match="not with the same characters"):
        lab.resume(folder, env=str(file), iterations=5)
    file.write_text(whole)
    calls: list[str] = []

    def reward(problem: lab.tasks.Problem, text: str) -> float:
        calls.append(text)
        if len(calls) == 3:
            raise ArithmeticError("this once")
        return float("1" in text)

    task = lab.tasks.Jsonl(file)
    run = lab.train("grpo", task, reward=reward, folder=tmp_path / "own", **small, **groups, **quiet).wait()
    assert run.run.failures["error"].tolist() == ["ArithmeticError: this once"] and len(calls) == 8
    assert lab.load_policy(run.folder, env=task).evaluate(5).of.iteration == 1, "the reward is needed to train alone"
    with pytest.raises(ConfigError, match="reward of the run in .* was an object"):
        lab.resume(run.folder, env=task, iterations=2)
    assert lab.resume(run.folder, env=task, reward=reward, iterations=2, progress=False).wait().iteration == 2
    with pytest.raises(ConfigError, match=r"a class; a task is an object of it. Next: Sorting\(\)"):
        lab.train("grpo", lab.tasks.Sorting)
    with pytest.raises(ConfigError, match="There is no file 'nowhere.jsonl'"):
        lab.train("grpo", "nowhere.jsonl")
    with pytest.raises(UnknownNameError, match=r"Did you mean 'reasoning/countdown'.*lab.train\('ppo'"):
        lab.train("grpo", "countdwn")


@pytest.mark.parametrize("env", ["reasoning/sorting", pytest.param("reasoning/products", marks=pytest.mark.long)])
def test_an_evaluation_is_that_of_the_recipe(env: str, tmp_path: Path) -> None:
    """Answer by answer: with tools, too, which a loaded model calls itself. A bad prompt costs its own answer alone."""
    small = {"prompts": 4, "group_size": 2, "minibatches": 1, "warm_up_steps": 30, "max_tokens": 20, "slots": 64, "iterations": 1}
    run = lab.train("grpo", env, **small, folder=False, progress=False, plan=None).wait()
    with lab.session(run.workflow, run.plan) as session:
        session.step("train")
        told = session.step("evaluate")
    found = run.evaluate(1000, seed=0)
    assert found["return"] == pytest.approx(told["reward"]) and found["length"] == pytest.approx(told["response_tokens"])
    assert run.save(tmp_path / "run") and lab.load_policy(tmp_path / "run").config == run.config
    if run.config.tools:
        answers = run.policy().answer([f"{n}*7=" for n in range(10, 40)])
        assert any("]" in answer and ";" in answer for answer in answers), "what the calculator said is in an answer"
        other = [lab.tasks.Search(["7 is a number"])]
        again = lab.train("grpo", env, **small, tools=other, loss=lab.algorithms.reinforce_loss, folder=tmp_path / "two", progress=False, plan=None)
        with pytest.raises(ConfigError, match="tools of the run in .* was an object of its program, Search"):
            lab.load_policy(again.wait().folder)
        assert lab.load_policy(again.folder, tools=other).answer("3*7=")
