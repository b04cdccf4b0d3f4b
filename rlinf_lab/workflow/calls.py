"""From a call as it is written to a call as data. What may be passed for which parameter is decided here."""

from __future__ import annotations

import inspect
from typing import Any

from rlinf_lab.errors import WorkflowError, shown
from rlinf_lab.workflow.annotations import channel_ends
from rlinf_lab.workflow.channel import Channel
from rlinf_lab.workflow.declaration import signature_of
from rlinf_lab.workflow.handles import Dispatcher, FlowBuilder, LoopPart, Ref, origin_of
from rlinf_lab.workflow.specs import CallSpec, ChannelArg, Hole, Nested, RefArg, WeightsArg
from rlinf_lab.workflow.structure import rebuilt
from rlinf_lab.workflow.symbol import Symbol, refuse_kept
from rlinf_lab.workflow.weights import WeightsHandle


def bind(
    owner: Dispatcher,
    flow: FlowBuilder,
    call_id: int,
    worker: str,
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    iteration: int,
) -> CallSpec:
    """Turn live arguments (channels, handles, values) into a `CallSpec` of ``owner``. Raises `WorkflowError` for a
    wrong call.
    """
    declaration = flow.declaration(worker)
    function = declaration.function(method)
    signature, ends = signature_of(function), channel_ends(function)
    try:
        bound = signature.bind(None, *args, **kwargs)  # None stands for self
    except TypeError as error:
        raise WorkflowError(
            f"Call of {worker}.{method}{declaration.signature(method)}: {error}. Got {len(args)} positional arguments "
            "and the keywords "
            f"{sorted(kwargs)}. Next: call it as the signature says; the worker itself is not an argument."
        ) from None
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    skipped = False  # a parameter has kept its default: those behind it must be given by name
    for name, parameter in list(signature.parameters.items())[1:]:
        if name not in bound.arguments:
            skipped = True
            continue
        value = bound.arguments[name]
        convert = _Argument(owner, flow, f"{worker}.{method}", parameter, ends.get(name)).converted
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            positional.extend(convert(v) for v in value)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            keywords.update({k: convert(v) for k, v in value.items()})
        elif skipped or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keywords[name] = convert(value)
        else:
            positional.append(convert(value))
    return CallSpec(
        call_id, worker, method, tuple(positional), keywords, iteration, declaration.starts_on_device(method)
    )


class _Argument:
    """One parameter of a method: what may be passed for it, and how that travels."""

    def __init__(
        self, owner: Dispatcher, flow: FlowBuilder, method: str, parameter: inspect.Parameter, direction: str | None
    ) -> None:
        self._owner, self._flow, self._method, self._parameter = owner, flow, method, parameter
        self._name = parameter.name
        self._direction = direction

    def converted(self, value: Any) -> Any:
        if isinstance(value, Channel):
            return self._channel(value)
        if isinstance(value, WeightsHandle):
            self._refuse_foreign(value, f"the weights {value.name!r}")
            return WeightsArg(value.name)
        if self._direction is not None:
            if value is not None or self._parameter.default is not None:  # an optional channel may be left out by None
                raise WorkflowError(
                    f"{self._method}: {self._name!r} must be a channel of this workflow, not {shown(value)}. Next: "
                    "pass what flow.channel() returned."
                )
            return None
        if isinstance(value, Ref):
            return self._ref(value)
        refs: list[RefArg] = []

        def leaf(inner: Any) -> Any:
            if isinstance(inner, Ref):
                refs.append(self._ref(inner))
                return Hole(len(refs) - 1)
            if isinstance(inner, Channel):
                raise WorkflowError(
                    f"{self._method}: {self._name!r} contains the channel {inner.name!r}. Next: pass each channel as "
                    "an argument of its own, "
                    f"annotated lab.Inbox or lab.Outbox (`*sources: lab.Inbox` takes several)."
                )
            self._refuse_parts_of_the_loop(inner)
            return inner

        template = rebuilt(value, leaf)
        return Nested(template, tuple(refs)) if refs else value

    def _channel(self, channel: Channel) -> ChannelArg:
        if self._direction is None:
            raise WorkflowError(
                f"{self._method}: the channel {channel.name!r} is passed as {self._name!r}, which is not annotated as "
                "an "
                f"Inbox or an Outbox. Next: write `{self._name}: lab.Inbox` to read from it, `{self._name}: "
                "lab.Outbox` to write."
            )
        self._refuse_foreign(channel, f"channel {channel.name!r}")
        return ChannelArg(channel.name, self._direction)

    def _refuse_foreign(self, part: Channel | WeightsHandle, what: str) -> None:
        if part._flow is not self._flow:
            raise WorkflowError(
                f"{self._method}: {self._name!r} is {what} of another workflow ({part._flow.name!r}). Next: run the "
                "cells "
                f"that declare channels and workers again, after the one that makes the Workflow."
            )

    def _ref(self, value: Ref) -> RefArg:
        maker, call, path = origin_of(value)
        if maker is self._owner:
            return RefArg(call.call_id, path, call.worker, call.iteration)
        if self._owner.is_dry and maker.is_dry:  # kept from the iteration before
            return RefArg(-1, path, call.worker)
        raise WorkflowError(
            f"{self._method}: {self._name!r} is {value!r} of "
            f"{'the dry run' if maker.is_dry else 'another run'}. Next: keep "
            "handles inside the iteration function, and values (wait()) outside of it; clear what the dry run has "
            "left there."
        )

    def _refuse_parts_of_the_loop(self, value: Any) -> None:
        if isinstance(value, LoopPart):
            raise WorkflowError(
                f"{self._method}: {self._name!r} is {shown(value)}; workers do not call each other. Next: give them a "
                "channel, or pass "
                f"the value that one call returns to the other call."
            )
        if isinstance(value, Symbol) and not self._owner.is_dry:
            refuse_kept(value)
