"""The worker that generates: continuous batching, each response put as soon as it is finished."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from rlinf_lab.errors import ConfigError, WorkflowError
from rlinf_lab.generation import Completion, Generator, LanguageModel, Request, SamplingParams, generator
from rlinf_lab.planning.simulator.staleness import StalenessPolicy
from rlinf_lab.workers.reasoning.lengths import LengthPredictor
from rlinf_lab.workers.reasoning.making import GroupsInTheMaking, dealt
from rlinf_lab.workers.reasoning.prompts import EVALUATION
from rlinf_lab.workers.reasoning.records import Asked, ModelWeights, Response, live_completion, plain_completion
from rlinf_lab.workers.reasoning.start import made
from rlinf_lab.workflow.weights import Weights
from rlinf_lab.workflow.worker import Inbox, Outbox, Worker

DEFAULT_SLOTS = 128
"""of a generator that is not told otherwise"""


class GeneratorWorker(Worker):
    """Answers prompts with the newest weights.

    ``model`` constructs the language model (called in `setup`, where the worker lives), ``weights`` replace its own.
    ``engine`` names the generator, ``options`` go to it. Noise is keyed by seed, round, prompt, sample and position:
    what is sampled does not depend on the plan, nor on which rank answers (own engine, float32). ``longest_first``: of
    what a rank has been given, answers begin first whose like were long before. ``log_completions``:
    each completion of training is a bar of the timeline and a row of the run's ``samples``.
    """

    def __init__(
        self,
        model: Callable[[], LanguageModel],
        params: SamplingParams,
        *,
        engine: str = "own",
        weights: ModelWeights | None = None,
        dispatch: str = "even",
        longest_first: bool = False,
        log_completions: bool = True,
        **options: Any,
    ) -> None:
        self._log_completions, self.longest_first = log_completions, longest_first
        self._lengths = LengthPredictor()
        self._make, self._params, self._engine, self._options = model, params, engine, options
        self._start, self.dispatch = weights, dispatch
        self.generator: Generator | None = None

    def setup(self) -> None:
        if self.device == "cpu":
            torch.set_num_threads(1)  # a CPU device of a plan is one core
        self.model = made(self._make, self)
        self.model.module.to(self.device)
        self.generator = generator(self._engine, self.model, **self._options)
        if self._log_completions:
            self.generator.on_begin = self._has_begun
        if self._start is not None:
            self.generator.load_weights(self._start.state, self._start.version)

    def sample_with(self, params: SamplingParams) -> None:
        """How answers are sampled that begin from here on."""
        self._params = params

    def generate(self, asked: Inbox[Asked], responses: Outbox[Response], weights: Weights) -> None:
        """Answer this rank's share of the iteration. A prompt that cannot work is a response, too.

        The share is even, or with ``dispatch="shortest_queue"`` what this rank has had room for.
        """
        room = self._room if self.dispatch == "shortest_queue" else None
        wanted = asked.get_all() if room is None else asked.get(room)
        self._update(weights)
        self._answer(wanted, responses, None if room is None else asked)

    def _answer(self, wanted: list[Asked], responses: Outbox[Response], more: Inbox[Asked] | None = None) -> None:
        """``more``: take from there whenever there is room."""
        assert self.generator is not None
        steps = 0
        try:
            while (wanted or self.generator.pending) and responses.is_wanted():
                for refused in self._begin_all(wanted):
                    responses.put(refused)
                steps += bool(self.generator.pending)
                for response in self._responses(self.generator.step()):
                    responses.put(response)
                free = self._room - self.generator.pending
                wanted = []
                if more is not None and free > 0:  # what runs waits for nobody
                    wanted = more.get_nowait(free) if self.generator.pending else more.get(free)
        finally:
            self._tell_discarded(self.generator.abort(), "enough groups were there")  # nobody wants the rest
            self.log(decode_steps=steps)

    @property
    def _room(self) -> int:
        """Responses that run at once."""
        return int(self._options.get("slots", DEFAULT_SLOTS))

    def _begin_all(self, asked: list[Asked]) -> list[Response]:
        """Have them answered; the answers of those that cannot be."""
        if self.longest_first:
            asked = sorted(asked, key=lambda one: -self._lengths.of(one.problem))  # among equals as they came
        return [r for r in map(self._begin, asked) if r is not None]

    def _begin(self, one: Asked) -> Response | None:
        """Have it answered; the answer of one whose characters the tokenizer does not know."""
        assert self.generator is not None
        try:
            self.generator.add(Request(self.model.encode_prompt(one.problem.prompt), self._params, one.id, item=one))
        except ConfigError as error:
            refused = Completion.refused(Request(np.zeros(0, np.int64), self._params, one.id, item=one), str(error))
            self._tell([refused], [""])
            return Response(one, refused, "")
        return None

    def _responses(self, completions: Sequence[Completion]) -> list[Response]:
        """Of those that are over together."""
        texts = [self.model.decode(completion.token_ids) for completion in completions]
        for completion in completions if self.longest_first else ():
            if completion.item.round != EVALUATION:
                self._lengths.tell(completion.item.problem, len(completion))
        self._tell(completions, texts)
        return [Response(c.item, c, text) for c, text in zip(completions, texts, strict=True)]

    # --- what a run shows of completions ------------------------------------------------------------------------
    def _has_begun(self, request: Request) -> None:
        if request.item.round != EVALUATION:
            self.sample_log.begin(request.id)

    def _tell(self, completions: Sequence[Completion], texts: Sequence[str], **more: str) -> None:
        """They are over. Those of evaluations are not told: their ids come again."""
        if not self._log_completions:
            return
        told = [(c, text) for c, text in zip(completions, texts, strict=True) if c.item.round != EVALUATION]
        if not told:
            return
        every = [c for c, _ in told]
        self.sample_log.end(
            [c.id for c in every], "completion", prompt=[c.item.problem.prompt for c in every], text=[t for _, t in
            told], tokens=[len(c) for c in every], finish_reason=[c.finish_reason for c in every],
            oldest_version=[c.oldest for c in every], newest_version=[c.newest for c in every], **more,
        )  # fmt: skip

    def _tell_discarded(self, broken_off: Iterable[Completion], why: str) -> None:
        """Of those that had begun."""
        begun = [completion for completion in broken_off if len(completion)]
        self._tell(begun, [self.model.decode(c.token_ids) for c in begun], discarded=why)

    def _update(self, weights: Weights) -> bool:
        """Take the newest weights; whether they were new."""
        published: ModelWeights | None = weights.pull().state
        assert self.generator is not None
        if published is None or published.version == self.generator.version:
            return False
        self.generator.load_weights(published.state, published.version)
        return True

    def offload(self) -> None:
        if self.generator is not None:
            self.model.module.to("cpu")
            self.generator.offload()

    def onload(self) -> None:
        if self.generator is not None:
            self.generator.onload()


class ContinuingGenerator(GeneratorWorker):
    """Ends a call as soon as an iteration has its groups. What runs goes on in the next one (partial rollouts).

    ``batch``: groups that an iteration hands over. In the making are ``concurrency`` times as many; ``oversample``
    times as many are made whole, of which "drop_oldest" keeps the newest. A response's budget of tokens counts once,
    however often it goes on. `StalenessPolicy` says what is too stale, and what new weights do to what runs.
    ``rollouts``: what `rollouts` gave in an earlier run, to go on from; of each rank, or of the only one.
    """

    def __init__(
        self,
        model: Callable[[], LanguageModel],
        params: SamplingParams,
        *,
        policy: StalenessPolicy,
        batch: int,
        concurrency: float = 2.0,
        oversample: float = 1.0,
        longest_first: bool = False,
        rollouts: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(model, params, **options)
        self._rollouts = rollouts
        self.policy, self.batch, self.groups_longest_first = policy, batch, longest_first
        self.concurrency, self.oversample = concurrency, oversample
        self._suspended: list[Request] = []

    def preflight(self) -> None:
        if self.batch % self.ranks:
            raise WorkflowError(
                f"{self!r} has {self.ranks} ranks, which cannot share {self.batch} groups of an iteration evenly. "
                f"Next: as many prompts as a multiple of {self.ranks}."
            )

    def setup(self) -> None:
        super().setup()
        share = self.batch // max(1, self.ranks)
        self._groups = GroupsInTheMaking(
            self.policy,
            batch=share,
            whole=math.ceil(share * self.oversample),
            concurrency=math.ceil(share * self.concurrency),
            longest_first=self.groups_longest_first,
        )
        if self._rollouts is not None:
            self._go_on_from(self._rollouts if isinstance(self._rollouts, list) else [self._rollouts])

    def generate(self, asked: Inbox[Asked], responses: Outbox[Response], weights: Weights) -> None:
        """Hand over the groups of this iteration."""
        wanted = asked.get_all()
        assert self.generator is not None
        if wanted and wanted[0].round == EVALUATION:
            self._suspend()
            self._update(weights)
            self._answer(wanted, responses)
            return
        groups = self._groups
        # Here versions count updates, as rounds do: round n is learnt from by version n.
        stale = groups.enter(wanted, max((one.round for one in wanted), default=groups.learning + 1))
        self._give_up(stale)
        self._renew(weights)
        place, steps = self.rank * groups.batch, 0
        for group in groups.take() if groups.streams else ():
            place += self._hand_over(group, place, responses)
        while not groups.satisfied:
            ready = self._begin_all(groups.begin(self.generator.version))
            if not ready and not self.generator.pending and not groups.satisfied:
                raise WorkflowError(f"{self!r} has nothing to answer: {groups!r}. Next: do the prompts reach it?")
            steps += bool(self.generator.pending)
            ready += self._responses(self.generator.step() if self.generator.pending else [])
            for response in ready:
                for group in groups.finished(response):
                    place += self._hand_over(group, place, responses)
        for group in groups.take():
            place += self._hand_over(group, place, responses)
        self.log(decode_steps=steps, **groups.told())
        if self._log_completions and groups.lost:
            self.sample_log.log(*groups.lost, discarded=groups.why_lost)

    # --- a checkpoint -------------------------------------------------------------------------------------------
    def rollouts(self) -> dict[str, Any]:
        """What goes on in the next iteration.

        Groups in the making, and the tokens of answers so far.

        Nothing is changed by it. {"why": in words} where problems hold what no file does: who goes on begins them anew.
        """
        assert self.generator is not None
        running = [*self.generator.partials(), *(Completion.broken_off(r) for r in self._suspended)]
        try:
            partials = [plain_completion(c) for c in running if c.item.round != EVALUATION]
            return {"version": self.generator.version, "groups": self._groups.state(), "partials": partials}
        except TypeError as error:
            return {"why": str(error)}

    def _go_on_from(self, rollouts: list[dict[str, Any]]) -> None:
        """Each rank goes on with its own, where there are as many. Else they are dealt out anew."""
        assert self.generator is not None
        known = [r for r in rollouts if "why" not in r]
        if len(known) == self.ranks or self.ranks < 2:
            mine = known if self.ranks < 2 else [known[self.rank]]
            self._groups.load([r["groups"] for r in mine], self._params)
        else:
            self._groups.load([dealt(r["groups"], self.rank, self.ranks) for r in known], self._params)
        running = {one.id for one in self._groups.running}
        partials = [live_completion(c, self._params) for r in known for c in r["partials"]]
        self._suspended = [c.resumed() for c in partials if c.id in running]
        older = any(r["version"] != self.generator.version for r in known)
        if older and self.policy.while_generating == "retract":
            self._retract()

    def _retract(self) -> None:
        """What is suspended begins anew, under the weights of now."""
        assert self.generator is not None
        self._suspended = [dataclasses.replace(r, prefix=None) for r in self._suspended]
        self._groups.renewed(self.generator.version)

    # --- parts --------------------------------------------------------------------------------------------------
    def _hand_over(self, group: list[Response], place: int, responses: Outbox[Response]) -> int:
        responses.put_all([dataclasses.replace(r, place=place) for r in group])
        return 1

    def _renew(self, weights: Weights) -> None:
        """Take new weights, and do with what runs what the policy says."""
        assert self.generator is not None
        how = self.policy.while_generating
        published: ModelWeights | None = weights.pull().state
        new = published is not None and published.version != self.generator.version
        if new and how != "in_place":
            self._suspend()
        if new and published is not None:
            self.generator.load_weights(published.state, published.version)
        if new and how == "retract":
            self._retract()
        for request in self._suspended:
            self.generator.add(request)
        self._suspended = []

    def _give_up(self, asked: list[Asked]) -> None:
        assert self.generator is not None
        ids = {one.id for one in asked}
        suspended = [r.prefix for r in self._suspended if r.id in ids and r.prefix is not None]
        self._tell_discarded([*self.generator.abort(ids), *suspended], self._groups.why_lost)
        self._suspended = [r for r in self._suspended if r.id not in ids]

    def _suspend(self) -> None:
        """Break off what runs, to go on with it later."""
        assert self.generator is not None
        self._suspended += [c.resumed() for c in self.generator.abort()]

    def offload(self) -> None:
        if self.generator is not None:
            self._suspend()
        super().offload()
