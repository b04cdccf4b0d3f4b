"""Entries of a profile that may be off, and the profile in which one is multiplied by a factor.

===============  ====================================================================================================
``seconds``      of all samples of a worker (so many ``calls`` more would be the same)
``memory``       of a worker: ``resident_gib``, ``per_item_gib`` and measured peaks, without what it shares
``switching``    ``onload_s`` and ``offload_s`` of a worker that may be offloaded
``length``       of a generator's responses, with the seconds of those who work on them where tokens are weights
``calibration``  of a cell
``handover``     ``seconds`` of a handover
``transfer``     ``item_mib`` of an edge
``link``         the seconds of whatever the link moves: ``latency_s``, and a part of ``gib_per_s``. One error of
                 measurement, of all edges together
``message``      ``latency_s`` and ``busy_s`` of a transport
===============  ====================================================================================================

An entry of 0 stays 0 and is left out; so is what cannot change a plan: memory without limits, switching of who never is
offloaded.

Not here, because a factor makes some plans slower and others faster: one sample alone, ``exponent``, the spread of
lengths and the model's shape, ``speed`` of a kind of device, ``shared_gib``. Nor what is counted or chosen and not
measured: items, groups, ranks, sub-batches, ``max_running``, ``in_turn``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rlinf_lab.planning.costs import GenerationModel, fit_worker
from rlinf_lab.planning.placement.search_space import Setting
from rlinf_lab.planning.profile.memory import limits
from rlinf_lab.planning.profile.profile import EdgeProfile, Profile


def longer(profile: Profile, generator: str, length: float = 1.0, tail: float = 1.0) -> Profile:
    """A profile with a generator's responses so many times as long. Their ratio to the median length is taken to the
    power ``tail`` (`profile.Lengths.factor`, `.tail`). Where tokens are weights, whoever works on them has more to do
    (`slower_with`)."""
    lengths = profile.workers[generator].lengths
    assert lengths is not None  # checked by the profile
    changed = profile.with_worker(
        generator, lengths=replace(lengths, factor=lengths.factor * length, tail=lengths.tail * tail)
    )
    others = slower_with(profile, generator) - {generator}
    if others:
        before, after = (_mean_length(p, generator) for p in (profile, changed))
        for name in others:
            changed = changed.scaled(name, after / before)
    return changed


def slower_with(profile: Profile, generator: str) -> frozenset[str]:
    """Workers whose seconds depend on the length of a generator's responses: itself, and batch work on them where
    tokens are weights.
    """
    reached, open_ = set[str](), [generator] if profile.weights == "tokens" else []
    while open_:
        here = open_.pop()
        for edge in profile.edges:
            if edge.producer == here and edge.consumer not in reached and edge.consumer != generator:
                reached.add(edge.consumer)
                open_.append(edge.consumer)
    return frozenset({generator, *(name for name in reached if profile.workers[name].kind == "batch")})


def _mean_length(profile: Profile, generator: str) -> float:
    """In tokens."""
    model = fit_worker(profile.workers[generator])
    assert isinstance(model, GenerationModel)
    return float(np.mean(model.asked))


SEARCHED = ("seconds", "memory", "switching", "length", "calibration")  # what the search's model knows
# what plans are followed and simulated with, when they have been found
AFTERWARDS = ("handover", "transfer", "link", "message")
KINDS = SEARCHED + AFTERWARDS


@dataclass(frozen=True)
class Entry:
    """``owner``: a worker, an edge, a handover, a cell, a transport or the link, for people. ``workers``: whom it
    concerns. ``times``: the profile in which it is multiplied. ``slower``: workers whose seconds of a call depend on
    it.
    """

    kind: str
    owner: str
    workers: frozenset[str]
    times: Callable[[Profile, float], Profile]
    slower: frozenset[str] = frozenset()


def of_kind(setting: Setting, kind: str) -> list[Entry]:
    """Those that can matter to plans of a setting."""
    return list(_OF[kind](setting))


# --- of workers ------------------------------------------------------------------------------------------------------
def _seconds(setting: Setting) -> Iterator[Entry]:
    for name, worker in setting.profile.workers.items():
        if any(s.seconds for s in worker.samples):
            yield Entry("seconds", name, frozenset({name}), partial(_slower, name), slower=frozenset({name}))


def _slower(name: str, profile: Profile, factor: float) -> Profile:
    return profile.scaled(name, factor)


def _memory(setting: Setting) -> Iterator[Entry]:
    limited = np.isfinite(max(map(setting.cap, setting.kinds)))
    for name, worker in setting.profile.workers.items():
        if limits(worker) and limited:
            yield Entry(
                "memory",
                name,
                frozenset({name}),
                partial(_larger, name),
                slower=frozenset(setting.profile.workers),
            )


def _larger(name: str, profile: Profile, factor: float) -> Profile:
    """What it holds together with others is no part of its error, nor of its peaks'."""
    memory, samples = profile.workers[name].memory, profile.workers[name].samples
    shared = memory.shared_gib
    return profile.with_worker(
        name,
        memory=replace(memory, resident_gib=memory.resident_gib * factor, per_item_gib=memory.per_item_gib * factor),
        samples=tuple(
            s if s.peak_gib is None else replace(s, peak_gib=shared + max(0.0, s.peak_gib - shared) * factor)
            for s in samples
        ),
    )


def _switching(setting: Setting) -> Iterator[Entry]:
    for name, worker in setting.profile.workers.items():
        if (
            worker.resource != "host"
            and worker.onload_s + worker.offload_s > 0
            and setting.optional_stays >> setting.home[name] & 1
        ):
            yield Entry("switching", name, frozenset({name}), partial(_switched, name))


def _switched(name: str, profile: Profile, factor: float) -> Profile:
    worker = profile.workers[name]
    return profile.with_worker(name, onload_s=worker.onload_s * factor, offload_s=worker.offload_s * factor)


def _length(setting: Setting) -> Iterator[Entry]:
    for name in setting.profile.workers:
        if isinstance(setting.models[name, setting.kinds[0]], GenerationModel):
            yield Entry(
                "length",
                name,
                frozenset({name}),
                partial(_lengthened, name),
                slower=slower_with(setting.profile, name),
            )


def _lengthened(name: str, profile: Profile, factor: float) -> Profile:
    return longer(profile, name, factor)


# --- of what lies between them ---------------------------------------------------------------------------------------
def _part(field: str, i: int, numbers: Sequence[str], profile: Profile, factor: float) -> Profile:
    """Some numbers of one of the profile's cells, handovers, edges or messages."""
    parts = list(getattr(profile, field))
    parts[i] = replace(parts[i], **{name: getattr(parts[i], name) * factor for name in numbers})
    return profile.replace(**{field: tuple(parts)})


def _calibration(setting: Setting) -> Iterator[Entry]:
    for i, cell in enumerate(setting.profile.cells):
        yield Entry(
            "calibration",
            "+".join(cell.members),
            frozenset(cell.members),
            partial(_part, "cells", i, ("calibration",)),
            slower=frozenset(cell.members),
        )


def _handover(setting: Setting) -> Iterator[Entry]:
    for i, h in enumerate(setting.profile.handovers):
        if h.seconds:
            yield Entry(
                "handover",
                f"{h.worker}.{h.method}()",
                frozenset({h.worker, *h.after}),
                partial(_part, "handovers", i, ("seconds",)),
            )


def _transfer(setting: Setting) -> Iterator[Entry]:
    for i, edge in enumerate(setting.profile.edges):
        if _moves(setting, edge):
            yield Entry(
                "transfer",
                f"{edge.producer} --> {edge.consumer}",
                frozenset({edge.producer, edge.consumer}),
                partial(_part, "edges", i, ("item_mib",)),
            )


def _moves(setting: Setting, edge: EdgeProfile) -> bool:
    """Whether its items may go over the link."""
    return (
        setting.profile.link is not None
        and bool(edge.item_mib)
        and setting.home[edge.producer] != setting.home[edge.consumer]
    )


def _link(setting: Setting) -> Iterator[Entry]:
    ends = frozenset(name for e in setting.profile.edges if _moves(setting, e) for name in (e.producer, e.consumer))
    if ends:
        yield Entry("link", "all edges", ends, _slower_link)


def _slower_link(profile: Profile, factor: float) -> Profile:
    assert profile.link is not None  # else there is no such entry
    return profile.replace(
        link=replace(profile.link, gib_per_s=profile.link.gib_per_s / factor, latency_s=profile.link.latency_s * factor)
    )


def _message(setting: Setting) -> Iterator[Entry]:
    ends = frozenset(name for e in setting.profile.edges for name in (e.producer, e.consumer))
    for i, message in enumerate(setting.profile.messages):
        if message.latency_s or message.busy_s:
            yield Entry("message", message.transport, ends, partial(_part, "messages", i, ("latency_s", "busy_s")))


_OF: dict[str, Callable[[Setting], Iterator[Entry]]] = {
    "seconds": _seconds, "memory": _memory, "switching": _switching, "length": _length, "calibration": _calibration,
    "handover": _handover, "transfer": _transfer, "link": _link, "message": _message,
}  # fmt: skip
