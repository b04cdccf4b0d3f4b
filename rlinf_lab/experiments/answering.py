"""A trained language model by itself: prompts in, answers out, and what its task's verifier says of them."""

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
from rlinf_lab.generation import Completion, Generator, Request, SamplingParams, generator
from rlinf_lab.policies.weights import PolicyWeights
from rlinf_lab.tasks import scored


class TrainedModel:
    """What `load_policy` and `run.policy()` give of a run on a task. ``model``: the `LanguageModel`; ``version``:
    updates that went into it.
    """

    def __init__(self, config: Any, weights: PolicyWeights) -> None:
        self.config, self.version = config, weights.version
        plain = dataclasses.replace(config, lora=None, gradient_checkpointing=False)  # that is in the weights
        self.model = plain.language_model()()
        self.model.module.load_state_dict({name: torch.from_numpy(np.array(v)) for name, v in weights.arrays.items()})
        self._generator: Generator = generator(config.engine, self.model, **config.generator_options())
        self._generator.load_weights(weights.arrays, weights.version)

    def answer(self, prompts: str | Sequence[str], temperature: float | None = None, seed: int = 0) -> Any:
        """The answer to a prompt, or a list of answers; ``temperature``: of sampling, 0 is greedy; None: as in
        training. `ConfigError` for a prompt that cannot be answered, such as one longer than the context.
        """
        one = isinstance(prompts, str)
        asked = [prompts] if isinstance(prompts, str) else list(prompts) if isinstance(prompts, Iterable) else []
        if not asked or not all(isinstance(p, str) for p in asked):
            raise ConfigError(
                f"answer({shown(prompts)}): a prompt, or several. Next: answer(task.sample(rng, 1)[0].prompt)."
            )
        completions = self._completions(asked, temperature, seed)
        for prompt, completion in zip(asked, completions, strict=True):
            if completion.failed:
                raise ConfigError(f"answer({shown(prompt, 60)}): {completion.error}")
        found = [self.model.decode(c.token_ids) for c in completions]
        return found[0] if one else found

    def evaluate(self, episodes: int = 1000, seed: int | None = None) -> Evaluation:
        """Answer ``episodes`` problems of the test split, sampled as in training: ``return`` is the reward, ``length``
        in tokens.

        ``seed``: of problems and sampling; None: the run's. ``success_rate``: of answers with the full reward.
        """
        seed = self.config.seed if seed is None else seed
        check_counts("evaluate", episodes, seed)
        task = self.config.task()
        problems = task.sample(np.random.default_rng([seed, 1]), episodes, self.config.level, split="test")
        completions = self._completions([p.prompt for p in problems], None, seed)
        values = [
            scored(task.reward, p, self.model.decode(c.token_ids)).value
            for p, c in zip(problems, completions, strict=True)
        ]
        rewards = np.array(values, float)
        return Evaluation(rewards, np.array([len(c) for c in completions]), rewards >= 1.0, Told(self.version, seed))

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write a folder in Hugging Face's format, which transformers, vLLM and ``model=`` take. Returns it."""
        return self.model.save(Path(path))

    def film(self, path: str | os.PathLike[str], episodes: int = 2) -> Any:
        """There is none: raises `ConfigError`."""
        raise ConfigError("Answers cannot be filmed. Next: run.samples, a table of them, or run.show().")

    def _completions(self, prompts: Sequence[str], temperature: float | None, seed: int) -> list[Completion]:
        temperature = self.config.temperature if temperature is None else temperature
        params = SamplingParams(max_tokens=self.config.max_tokens, temperature=temperature, seed=seed)
        requests = [Request(self.model.encode_prompt(prompt), params, str(i)) for i, prompt in enumerate(prompts)]
        found = {c.id: c for c in self._generator.sample(requests)}
        return [found[request.id] for request in requests]

    def __repr__(self) -> str:
        return f"TrainedModel({self.config.factory.id!r}, after {counted(self.version, 'update')})"
