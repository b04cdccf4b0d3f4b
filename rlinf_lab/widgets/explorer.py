"""What if? Sliders over a profile's plans: ranked plans, their schedules side by side, why each loses, over which error the choice stands."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import traitlets

from rlinf_lab.errors import ConfigError, RlinfLabError, shown
from rlinf_lab.planning.gantt import gantt
from rlinf_lab.planning.planner import Plans
from rlinf_lab.planning.sensitivity import Sensitivity, sensitivity
from rlinf_lab.planning.whatif import Question, Slider, described, moved, sliders
from rlinf_lab.timeline.svg import to_svg
from rlinf_lab.widgets import fallback
from rlinf_lab.widgets.assets import module, stylesheet
from rlinf_lab.widgets.pushed import PushedWidget
from rlinf_lab.widgets.schedules import schedules


class PlanExplorer(PushedWidget):
    """Explore what `lab.plan` found: ``PlanExplorer(plans)``.

    While a slider moves, plans are followed chunk by chunk (quick); when it rests, they are simulated. ``plans`` and ``question`` are what is
    shown now, so that what was found with the mouse can be run: ``lab.run(flow, explorer.plans.best)``.
    """

    _esm = module("base.js", "gantt.js", "explorer.js")
    _css = stylesheet()
    title = traitlets.Unicode(help="what is planned").tag(sync=True)
    sliders = traitlets.List(traitlets.Dict(), help="field, label, texts of the values, where it starts, a hint").tag(sync=True)

    def __init__(self, plans: Plans) -> None:
        if not isinstance(plans, Plans):
            raise ConfigError(f"PlanExplorer({str(plans)[:60]!r}): the plans of lab.plan are needed. Next: PlanExplorer(lab.plan(profile, devices=64)).")
        self.plans = plans
        self.question = Question.of(plans)
        self.problem = ""
        self._first = plans
        self._sliders = sliders(plans.profile, self.question)
        self._answered = 0
        self._ranges: list[dict[str, Any]] | None = None
        self._search: threading.Thread | None = None
        shown = [
            {"field": s.field, "label": s.label, "why": s.why, "at": s.at(self.question), "texts": [_text(s, v) for v in s.values]} for s in self._sliders
        ]
        super().__init__(title=plans.profile.name, sliders=shown)

    # --- asking ------------------------------------------------------------------------------------------------
    def ask(self, simulate: bool = True, **changes: Any) -> Plans:
        """Change fields of the question (`planning.whatif.Question`: ``items=``, ``memory_gib=`` ...) and show the answer, which is returned.

        ``devices``: how many, or how many of each kind; ``memory_gib``: of all kinds, or of some. Raises `PlanError` when nothing fits.
        """
        if isinstance(devices := changes.get("devices"), int):
            changes["devices"] = {next(iter(self.question.devices)): devices}
        if isinstance(memory := changes.get("memory_gib"), Mapping) and isinstance(before := self.question.memory_gib, Mapping):
            changes["memory_gib"] = {**before, **memory}
        for name in changes:
            if name not in (known := [f.name for f in dataclasses.fields(Question)]):
                raise ConfigError(f"ask({name}=...): a question has {', '.join(known)}.")
        question = dataclasses.replace(self.question, **changes)
        if set(question.devices) != set(self.question.devices):
            raise ConfigError(f"ask(devices={shown(question.devices)}): how many of each kind: {', '.join(map(repr, self.question.devices))}.")
        question.profile(self._first.profile)  # what cannot be asked leaves what is shown
        self._answer(question, simulate, self._answered + 1)
        if self.problem:
            raise self._error
        return self.plans

    def _answer(self, question: Question, simulate: bool, number: int) -> None:
        with self._push_lock:
            self._answered, self.question, self.problem = number, question, ""
            try:
                self.plans = question.answer(self._first.profile, simulate, self._first)
                self._ranges, self._search = None, None
            except RlinfLabError as error:
                self.problem, self._error = str(error), error
            self._publish(*self._history())

    # --- sensitivity ---------------------------------------------------------------------------------------------
    def sensitivity(self) -> Sensitivity:
        """Over which range of error of each worker's seconds the choice that is shown stands; shown too."""
        found = sensitivity(self.plans)
        with self._push_lock:
            self._ranges = [_range(r) for r in found.ranges]
            self._publish({"sensitivity": self._ranges, "running": False}, {})
        return found

    def _look_further(self) -> None:
        """In a thread, worker by worker, as long as nothing else is asked: a drag must not wait for it."""

        def search() -> None:
            me, plans, found = threading.current_thread(), self.plans, list[dict[str, Any]]()
            names = list(plans.profile.workers)
            for number, name in enumerate(names):
                ranges = sensitivity(plans, workers=[name]).ranges
                with self._push_lock:
                    if self._search is not me:
                        return
                    found = sorted([*found, *map(_range, ranges)], key=lambda r: min(r["high"], 1 / r["low"]))
                    running = number + 1 < len(names)
                    self._ranges = found
                    self._publish({"sensitivity": found, "running": running}, {})

        with self._push_lock:
            self._search = threading.Thread(target=search, name="sensitivity", daemon=True)
            self._publish({"sensitivity": [], "running": True}, {})
            self._search.start()

    # --- the page --------------------------------------------------------------------------------------------------
    def _handle(self, content: dict[str, Any]) -> None:
        if content.get("type") == "ask":
            question = self.question
            for slider in self._sliders:
                at = content["positions"].get(slider.field)
                if isinstance(at, int) and 0 <= at < len(slider.values) and at != slider.at(self.question):
                    question = moved(question, slider.field, slider.values[at])
            self._answer(question, bool(content.get("simulate")), int(content["id"]))
        elif content.get("type") == "sensitivity":
            self._look_further()

    def _history(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        pictures = [gantt(p) for p in self.plans]
        charts = [
            {"name": p.name, "mode": p.mode, "shape": p.shape, "seconds": p.seconds, "how": "followed" if p.simulated is None else "simulated",
             "lanes": g.lanes, "devices": g.devices, "workers": list(g.workers)}
            for p, g in zip(self.plans, pictures, strict=True)
        ]  # fmt: skip
        content = {
            "answer": {**described(self.plans), "charts": charts}, "answered": self._answered, "error": self.problem,
            "positions": {s.field: s.at(self.question) for s in self._sliders},
            "sensitivity": self._ranges, "running": self._search is not None and self._search.is_alive(),
        }  # fmt: skip
        return content, {f"bars{i}": g.bars.tobytes() for i, g in enumerate(pictures)}

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        picture = schedules(self.plans)
        return fallback.Still(f"{self.plans._repr_html_()}{to_svg(picture)}", repr(self), picture).beside(super()._repr_mimebundle_(**kwargs))

    def __repr__(self) -> str:
        best = self.plans.best
        return f"PlanExplorer({self.title!r}: {len(self.plans)} plans, {best.shape} {best.seconds:.4g} s" + f"; {self.problem}" * bool(self.problem) + ")"


def _range(r: Any) -> dict[str, Any]:
    return {"worker": r.worker, "low": r.low, "high": r.high, "below": r.instead[0], "above": r.instead[1]}


def _text(slider: Slider, value: float | None) -> str:
    if value is None:
        return "no limit"
    number = f"{value:,.6g}".replace(",", " ") if value >= 10_000 else f"{value:g}"
    return f"{slider.unit} {number}" if slider.unit in ("×", "power") else f"{number} {slider.unit}".strip()
