"""The generator of answers that call tools.

Several turns, one text, never made from text again.

    decode ──call──▶ tools ──result──▶ decode ...

What a tool says is put into the answer as tokens that nobody sampled (their version is -1): the model reads them, and
does not learn from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from rlinf_lab.errors import ConfigError, WorkflowError
from rlinf_lab.generation import NOT_SAMPLED, Completion, LanguageModel, SamplingParams
from rlinf_lab.tasks.tools import CALLED, FAILED, RESULT_END, ToolResult, call_of
from rlinf_lab.workers.reasoning.generator import GeneratorWorker
from rlinf_lab.workers.reasoning.records import Asked, ModelWeights, Response
from rlinf_lab.workers.reasoning.tool_worker import ToolAnswers, ToolTurn
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox, Outbox


class AgentGenerator(GeneratorWorker):
    """Answers that may call tools up to ``max_calls`` times. One rank.

    ``patience_s``: how long a decode step is put off for results that are out (`planning.ToolCell.best` finds it); 0:
    they are taken as they come.
    """

    def __init__(
        self, model: Callable[[], LanguageModel], params: SamplingParams, *, max_calls: int = 4, patience_s: float =
        0.0, engine: str = "own", weights: ModelWeights | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if max_calls < 1 or not patience_s >= 0:
            raise ConfigError(
                f"AgentGenerator(max_calls={max_calls}, patience_s={patience_s}). Next: at least 1 call, and 0 s or "
                "more."
            )
        super().__init__(model, params, engine=engine, weights=weights, **options)
        self.max_calls, self.patience_s = max_calls, patience_s

    def preflight(self) -> None:
        if self.ranks > 1:
            raise WorkflowError(
                f"{self!r} has {self.ranks} ranks; answers with tools are generated on one. Next: one device for it."
            )

    def setup(self) -> None:
        super().setup()
        (self._called,) = self.model.encode(CALLED)
        self._ends = self.model.stop_ids
        self.sample_with(self._params)

    def sample_with(self, params: SamplingParams) -> None:
        """How answers are sampled that begin from here on."""
        self._params = dataclasses.replace(params, stop_ids=(*self._ends, int(self._called)))

    def generate_with_tools(
        self, asked: Inbox[Asked], answers: Inbox[ToolAnswers], turns: Outbox[ToolTurn], responses: Outbox[Response],
        weights: Weights ) -> None:  # fmt: skip
        """Answer everything of this iteration."""
        wanted = asked.get_all()
        self._update(weights)
        assert self.generator is not None
        for refused in self._begin_all(wanted):
            responses.put(refused)
        out: dict[str, Completion] = {}
        new: list[tuple[str, str]] = []
        steps = 0
        try:
            while self.generator.pending or out:
                if out:
                    turns.put(ToolTurn(tuple(new), self.patience_s, idle=not self.generator.pending))
                    new = []
                    for key, result in answers.take().results:
                        self._go_on(out.pop(key), result, responses)
                steps += bool(self.generator.pending)
                over = []
                for completion in self.generator.step() if self.generator.pending else ():
                    call = self._call(completion)
                    if call is None:
                        over.append(completion)
                    else:
                        out[completion.id] = completion
                        new.append((completion.id, call))
                for response in self._responses(over):
                    responses.put(response)
        finally:
            self.generator.abort()
            self.log(decode_steps=steps)

    def _call(self, completion: Completion) -> str | None:
        """What a completion calls; None: it is over."""
        ids = completion.token_ids
        if completion.finish_reason != "stop" or not len(ids) or ids[-1] != self._called:
            return None
        if np.sum((ids == self._called) & completion.sampled) > self.max_calls:
            return None
        # Only its own tokens call: a tool that says "[" does not.
        turn = np.flatnonzero(~completion.sampled)
        return call_of(self.model.decode(ids[turn[-1] + 1 if len(turn) else 0 :])) or ""

    def _go_on(self, completion: Completion, result: ToolResult, responses: Outbox[Response]) -> None:
        assert self.generator is not None
        said = self._encoded(result.text + RESULT_END)
        n, length = len(said), len(completion) + len(said)
        longer = Completion(
            completion.prompt_ids, np.concatenate([completion.token_ids, said]), np.concatenate([completion.log_probs,
            np.zeros(n, np.float32)]), np.concatenate([completion.versions, np.full(n, NOT_SAMPLED)]), "abort",
            completion.id, completion.params, completion.item, )  # fmt: skip
        if length >= self._params.max_tokens or length + len(completion.prompt_ids) >= self.generator.context:
            for response in self._responses([dataclasses.replace(completion, finish_reason="length")]):
                responses.put(response)  # no room for what it said
        else:
            self.generator.add(longer.resumed())

    def _encoded(self, text: str) -> np.ndarray:
        """A tool may say what the tokenizer does not know: that becomes a failure."""
        try:
            return self.model.encode(text)
        except ConfigError:
            return self.model.encode(FAILED + RESULT_END)
