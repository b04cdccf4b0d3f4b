"""A trained language model by itself: prompts in, answers out. With what its task's verifier says of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlinf_lab.errors import ConfigError, counted, shown
from rlinf_lab.experiments.evaluation import Evaluation, Told, check_counts
from rlinf_lab.generation import SamplingParams
from rlinf_lab.policies.weights import PolicyWeights
from rlinf_lab.tasks import Problem, scored
from rlinf_lab.workers.reasoning import AgentGenerator, Asked, GeneratorWorker, ModelWeights, Response, ToolDesk
from rlinf_lab.workers.reasoning.prompts import EVALUATION
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Collected, Scripted


class TrainedModel:
    """What `load_policy` and `run.policy()` give of a run on a task. ``model``: the `LanguageModel`; ``version``:
    updates that went into it.
    """

    def __init__(self, config: Any, weights: PolicyWeights) -> None:
        self.config, self.version = config, weights.version
        plain = dataclasses.replace(config, lora=None, gradient_checkpointing=False)  # that is in the weights
        self.model = plain.language_model()()
        self.model.module.load_state_dict({name: torch.from_numpy(np.array(v)) for name, v in weights.arrays.items()})
        kind: Any = AgentGenerator if config.tools else GeneratorWorker
        options = config.generator_options() | ({"max_calls": config.max_calls} if config.tools else {})
        self._worker: GeneratorWorker = kind(
            lambda: self.model, self._sampled(None, config.seed), engine=config.engine, log_completions=False,
            weights=ModelWeights(weights.version, weights.arrays), **options,
        )  # fmt: skip
        threads = torch.get_num_threads()
        self._worker.setup()
        torch.set_num_threads(threads)  # a worker has one core, which this is none of

    def answer(self, prompts: str | Sequence[str], temperature: float | None = None, seed: int = 0) -> Any:
        """The answer to a prompt, or a list of answers.

        ``temperature``: of sampling, 0 is greedy; None: as in training. `ConfigError` for a prompt that cannot be
        answered, such as one longer than the context.
        """
        one = isinstance(prompts, str)
        asked = [prompts] if isinstance(prompts, str) else list(prompts) if isinstance(prompts, Iterable) else []
        if not asked or not all(isinstance(p, str) for p in asked):
            raise ConfigError(
                f"answer({shown(prompts)}): a prompt, or several. Next: answer(task.sample(rng, 1)[0].prompt)."
            )
        answers = self._answers([Problem(prompt, "") for prompt in asked], temperature, seed)
        for prompt, answer in zip(asked, answers, strict=True):
            if answer.completion.failed:
                raise ConfigError(f"answer({shown(prompt, 60)}): {answer.completion.error}")
        found = [answer.text for answer in answers]
        return found[0] if one else found

    def evaluate(self, episodes: int = 1000, seed: int | None = None) -> Evaluation:
        """Answer ``episodes`` problems of the test split, sampled as in training.

        ``return`` is the reward, ``length`` is in tokens.

        ``seed``: of problems and sampling; None: the run's. ``success_rate``: of answers with the full reward.
        """
        seed = self.config.seed if seed is None else seed
        check_counts("evaluate", episodes, seed)
        task = self.config.task()
        problems = task.sample(np.random.default_rng([seed, 1]), episodes, self.config.level, split="test")
        answers = self._answers(problems, None, seed)
        values = [0.0 if a.completion.failed else scored(task.reward, a.asked.problem, a.text).value for a in answers]
        rewards = np.array(values, float)
        return Evaluation(rewards, np.array([len(a) for a in answers]), rewards >= 1.0, Told(self.version, seed))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write a folder in Hugging Face's format, which transformers, vLLM and ``model=`` take. Returns it."""
        return self.model.save(Path(path))

    def film(self, path: str | os.PathLike[str], episodes: int = 2) -> Any:
        """There is none: raises `ConfigError`."""
        raise ConfigError("Answers cannot be filmed. Next: run.samples, a table of them, or run.show().")

    def _sampled(self, temperature: float | None, seed: int) -> SamplingParams:
        temperature = self.config.temperature if temperature is None else temperature
        return SamplingParams(max_tokens=self.config.max_tokens, temperature=temperature, seed=seed)

    def _answers(self, problems: Sequence[Problem], temperature: float | None, seed: int) -> list[Response]:
        """In their order, as an evaluation of the recipe's own has them. Tools are called here."""
        self._worker.sample_with(self._sampled(temperature, seed))
        asked, found = Scripted([Asked(p, EVALUATION, i, 0) for i, p in enumerate(problems)]), Collected[Response]()
        if isinstance(self._worker, AgentGenerator):
            desk: Any = ToolDesk(self.config.tools, concurrency=self.config.tool_concurrency)
            try:
                self._worker.generate_with_tools(asked, desk, desk, found, Weights())
            finally:
                desk.close()
        else:
            self._worker.generate(asked, found, Weights())
        return sorted(found, key=lambda response: response.asked.prompt)

    def __repr__(self) -> str:
        return f"TrainedModel({self.config.factory.id!r}, after {counted(self.version, 'update')})"
