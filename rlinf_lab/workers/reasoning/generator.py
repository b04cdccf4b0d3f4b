"""The worker that generates: continuous batching, each response put as soon as it is finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rlinf_lab.errors import ConfigError
from rlinf_lab.generation import Completion, Generator, LanguageModel, Request, SamplingParams, generator
from rlinf_lab.workers.reasoning.records import Asked, ModelWeights, Response
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker


class GeneratorWorker(Worker):
    """Answers prompts with the newest weights.

    ``model`` constructs the language model (called in `setup`, where the worker lives), ``weights`` replace its own.
    ``engine`` names the generator, ``options`` go to it. Noise is keyed by seed, round, prompt, sample and position:
    what is sampled does not depend on the plan, nor on which rank answers (own engine, float32).
    """

    def __init__(
        self,
        model: Callable[[], LanguageModel],
        params: SamplingParams,
        *,
        engine: str = "own",
        weights: ModelWeights | None = None,
        **options: Any,
    ) -> None:
        self._make, self._params, self._engine, self._options = model, params, engine, options
        self._start = weights
        self.generator: Generator | None = None

    def setup(self) -> None:
        if self.device == "cpu":
            torch.set_num_threads(1)  # a CPU device of a plan is one core
        self.model = self._make()
        self.model.module.to(self.device)
        self.generator = generator(self._engine, self.model, **self._options)
        if self._start is not None:
            self.generator.load_weights(self._start.state, self._start.version)

    def generate(self, asked: Inbox[Asked], responses: Outbox[Response], weights: Weights) -> None:
        """Answer everything of this iteration. A prompt that cannot work is a response, too."""
        wanted = asked.get_all()
        self._update(weights)
        assert self.generator is not None
        for one in wanted:
            try:
                self.generator.add(Request(self.model.encode(one.problem.prompt), self._params, one.id, item=one))
            except ConfigError as error:  # characters that the tokenizer does not know
                refused = Completion.refused(Request(np.zeros(0, np.int64), self._params, one.id, item=one), str(error))
                responses.put(Response(one, refused, ""))
        try:
            while self.generator.pending:
                for completion in self.generator.step():
                    responses.put(Response(completion.item, completion, self.model.decode(completion.token_ids)))
        finally:
            self.generator.abort()  # nobody wants the rest where a put has ended this call

    def _update(self, weights: Weights) -> None:
        published: ModelWeights | None = weights.pull().state
        assert self.generator is not None
        if published is not None and published.version != self.generator.version:
            self.generator.load_weights(published.state, published.version)

    def offload(self) -> None:
        if self.generator is not None:
            self.model.module.to("cpu")
            self.generator.offload()

    def onload(self) -> None:
        if self.generator is not None:
            self.generator.onload()
