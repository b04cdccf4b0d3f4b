"""What if? Sliders over a profile's plans: ranked plans, their schedules side by side, why each loses."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import traitlets

from rlinf_lab.errors import ConfigError, RlinfLabError, shown
from rlinf_lab.planning.adapt.whatif import Question, Slider, described, moved, sliders
from rlinf_lab.planning.cancellation import check
from rlinf_lab.planning.planner.gantt import gantt
from rlinf_lab.planning.planner.planner import Plans, simulated_one_by_one
from rlinf_lab.timeline.draw.svg import shown_html
from rlinf_lab.widgets import fallback
from rlinf_lab.widgets.aside import Aside
from rlinf_lab.widgets.assets import module, stylesheet
from rlinf_lab.widgets.pushed import PushedWidget
from rlinf_lab.widgets.schedules import schedules

Drawn = tuple[dict[str, Any], dict[str, bytes]]  # what is said of plans, and the bars of each


class PlanExplorer(PushedWidget):
    """Explore what `lab.plan` found: ``PlanExplorer(plans)``.

    While a slider moves, plans are followed micro-batch by micro-batch (quick); when it rests, these are simulated, the
    best one first, and then `lab.plan` searches for better ones. ``plans`` and ``question`` are what is shown now, so
    that what was found with the mouse can be run: ``lab.run(flow, explorer.plans.best)``.

    What the page asks is answered in a thread. A newer question has the older one given up within milliseconds, so
    nobody waits for an answer that is not wanted any more.
    """

    _esm = module("base.js", "gantt.js", "explorer.js")
    _css = stylesheet()
    title = traitlets.Unicode(help="what is planned").tag(sync=True)
    pinned = traitlets.Dict(help="seconds and shape of the best plan at first, with which others are compared").tag(
        sync=True
    )
    sliders = traitlets.List(traitlets.Dict(), help="field, label, texts of the values, where it starts, a hint").tag(
        sync=True
    )

    def __init__(self, plans: Plans) -> None:
        if not isinstance(plans, Plans):
            raise ConfigError(
                f"PlanExplorer({str(plans)[:60]!r}): the plans of lab.plan are needed. Next: "
                "PlanExplorer(lab.plan(profile, devices=64))."
            )
        self.plans = plans
        self.question = Question.of(plans)
        self.problem = ""
        self._first = plans
        self._sliders = sliders(plans.profile, self.question)
        self._asked, self._newest = self.question, 0  # perhaps not answered yet
        self._answered = 0
        self._drawn: Drawn | None = None  # where somebody has looked at the plans
        self._aside = Aside("explorer")
        shown = [
            {
                "field": s.field,
                "label": s.label,
                "why": s.why,
                "at": s.at(self.question),
                "texts": [_text(s, v) for v in s.values],
            }
            for s in self._sliders
        ]
        pinned = {"seconds": plans.best.seconds, "shape": plans.best.shape}
        super().__init__(title=plans.profile.name, sliders=shown, pinned=pinned)

    # --- asking ------------------------------------------------------------------------------------------------
    def ask(self, simulate: bool = True, **changes: Any) -> Plans:
        """Change fields of the question and show the answer, which is returned. The fields are those of
        `planning.adapt.whatif.Question` (``items=``, ``memory_gib=`` ...).

        ``devices``: how many, or how many of each kind; ``memory_gib``: of all kinds, or of some; ``speed``: of some
        workers, ``{"rollout": 2.0}`` for twice as fast. Raises `PlanError`
        when nothing fits. What the page has asked meanwhile is given up.
        """
        if isinstance(devices := changes.get("devices"), int):
            changes["devices"] = {next(iter(self.question.devices)): devices}
        if isinstance(memory := changes.get("memory_gib"), Mapping) and isinstance(
            before := self.question.memory_gib, Mapping
        ):
            changes["memory_gib"] = {**before, **memory}
        if isinstance(speed := changes.get("speed"), Mapping):
            changes["speed"] = {**self.question.speed, **speed}
        for name in changes:
            if name not in (known := [f.name for f in dataclasses.fields(Question)]):
                raise ConfigError(f"ask({name}=...): a question has {', '.join(known)}.")
        question = dataclasses.replace(self.question, **changes)
        if set(question.devices) != set(self.question.devices):
            raise ConfigError(
                f"ask(devices={shown(question.devices)}): a number for each kind that is planned for. "
                f"Next: devices={dict(self.question.devices)}."
            )
        question.profile(self._first.profile)  # what cannot be asked leaves what is shown
        with self._push_lock:
            self._aside.give_up()
            self._take_on(question, self._newest + 1)
            number = self._newest
        self._answer(question, simulate, number)
        return self.plans

    def _take_on(self, question: Question, number: int) -> None:
        """Whatever was asked before is given up. A page that asked it hears of a number that is no smaller than its
        own.
        """
        self._asked, self._newest = question, max(self._newest, number)

    def _answer(self, question: Question, simulate: bool, number: int, first: Plans | None = None) -> None:
        """Whatever goes wrong is told to the page, which would wait for its answer otherwise. The plans that are shown
        stay. ``first``: plans that answer the question more roughly and are shown simulated before others are searched.
        """
        try:
            for better in simulated_one_by_one(first) if first is not None else ():
                self._show(question, None, "", better, _drawn(better))
            plans = question.answer(self._first.profile, simulate, self._first)
            drawn = _drawn(plans)
        except Exception as error:
            self._show(
                question, number, str(error) if isinstance(error, RlinfLabError) else f"{type(error).__name__}: {error}"
            )
            raise
        self._show(question, number, "", plans, drawn)

    def _show(
        self,
        question: Question,
        number: int | None,
        problem: str,
        plans: Plans | None = None,
        drawn: Drawn | None = None,
    ) -> None:
        """``number`` of the question that is answered with it. None while a better answer is on its way."""
        with self._push_lock:
            check()  # a newer question may have come, perhaps from a cell: its answer is not to be replaced by this one
            self.question, self.problem = question, problem
            self._answered = self._answered if number is None else number
            if plans is not None:
                self.plans, self._drawn = plans, drawn
            self._publish(*self._history())

    # --- the page --------------------------------------------------------------------------------------------------
    def _handle(self, content: dict[str, Any]) -> None:
        if content.get("type") == "ask":
            self._ask_page(content)

    def _ask_page(self, content: dict[str, Any]) -> None:
        with self._push_lock:
            question = self._asked
            for slider in self._sliders:
                at = content["positions"].get(slider.field)
                if isinstance(at, int) and 0 <= at < len(slider.values) and at != slider.at(self._asked):
                    question = moved(question, slider.field, slider.values[at])
            self._take_on(question, int(content["id"]))
            self._aside.instead(partial(self._answer_page, question, bool(content.get("simulate")), self._newest))

    def _answer_page(self, question: Question, simulate: bool, number: int) -> None:
        is_same = simulate and question == self.question and not self.problem and self.plans.quick
        with suppress(RlinfLabError):  # the page has been told
            self._answer(question, simulate, number, self.plans if is_same else None)

    def _history(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        if self._drawn is None:
            self._drawn = _drawn(self.plans)
        answer, bars = self._drawn
        content = {
            "answer": answer, "answered": self._answered, "error": self.problem,
            "positions": {s.field: s.at(self.question) for s in self._sliders},
        }  # fmt: skip
        return content, bars

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        picture = schedules(self.plans)
        return self._bundle_with(
            fallback.Still(f"{self.plans._repr_html_()}{shown_html(picture)}", repr(self), lambda: picture), **kwargs
        )

    def __repr__(self) -> str:
        best = self.plans.best
        return (
            f"PlanExplorer({self.title!r}: {len(self.plans)} plans, {best.shape} {best.seconds:.4g} s"
            + f"; {self.problem}" * bool(self.problem)
            + ")"
        )


def _drawn(plans: Plans) -> Drawn:
    """Plans as the page takes them."""
    pictures = [gantt(p) for p in plans]
    charts = [
        {
            "name": p.name,
            "mode": p.mode,
            "shape": p.shape,
            "seconds": p.seconds,
            "how": "followed" if p.simulated is None else "simulated",
            "lanes": g.lanes,
            "devices": g.devices,
            "workers": list(g.workers),
        }
        for p, g in zip(plans, pictures, strict=True)
    ]
    return {**described(plans), "charts": charts}, {
        f"bars{i}": g.bars.tobytes() for i, g in enumerate(pictures)
    }


def _text(slider: Slider, value: float | None) -> str:
    if value is None:
        return "no limit"
    unit = slider.unit.removesuffix("s") if value == 1 else slider.unit
    number = f"{value:,.6g}".replace(",", " ") if value >= 10_000 else f"{value:g}"
    return f"{unit} {number}" if unit in ("×", "power") else f"{number} {unit}".strip()
