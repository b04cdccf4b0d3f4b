"""A made-up run that looks like a real one: simulator and policy answer each other, then the learner trains."""

from __future__ import annotations

import io
import math
import random

from PIL import Image, ImageDraw

from rlinf_lab.timeline import Recorder, SpanKind, Timeline

DEVICES = ("cpu:0", "cpu:1")
MS = 1_000_000


class SampleRun:
    """Records iteration after iteration on two devices; `step` returns the iteration's metrics."""

    def __init__(self, start_ns: int = 5_000_000_000, seed: int = 0, steps: int = 24, ranks: int = 2) -> None:
        self.recorder = Recorder()
        self.timeline = Timeline(DEVICES)
        self.random = random.Random(seed)
        self.now, self.iteration, self.steps = start_ns, 0, steps
        track, name = self.recorder.track, self.recorder.name
        self.simulators = [track("simulator", r, (DEVICES[r % 2],)) for r in range(ranks)]
        self.policy, self.learner = track("policy", 0, ("cpu:0",)), track("learner", 0, ("cpu:1",))
        self.driver = track("driver", 0, ())
        self.names = {n: name(n) for n in ("step", "act", "train", "load_weights", "loss", "iteration", "obs", "traj", "onload")}

    def add(self, track: int, kind: SpanKind, name: str, start: float, end: float, channel: str = "", items: int = 0) -> None:
        number = self.names[channel] if channel else -1
        self.recorder.add(track, kind, self.names[name], int(start), int(end), self.iteration, items, 0, number)

    def step(self) -> dict[str, float]:
        begin = t = self.now
        for _ in range(self.steps):
            sim = [(4 + self.random.random() * 1.5) * MS for _ in self.simulators]
            for rank, length in zip(self.simulators, sim, strict=True):
                self.add(rank, SpanKind.RUN, "step", t, t + length, items=4)
            ready = t + max(sim)
            for rank, length in zip(self.simulators, sim, strict=True):
                self.add(rank, SpanKind.GET, "step", t + length, ready + 0.9 * MS, "obs")
            self.add(self.policy, SpanKind.GET, "act", t, ready, "obs")
            self.add(self.policy, SpanKind.RUN, "act", ready, ready + 0.9 * MS, items=8)
            t = ready + 0.9 * MS
        self.add(self.learner, SpanKind.GET, "train", begin, t, "traj")
        self.add(self.learner, SpanKind.ONLOAD, "onload", t, t + 3 * MS)
        t += 3 * MS
        length = (44 + self.random.random() * 8) * MS
        self.add(self.learner, SpanKind.RUN, "train", t, t + length, items=800)
        for k in range(4):
            self.add(self.learner, SpanKind.LABEL, "loss", t + length * (0.05 + k * 0.24), t + length * (0.2 + k * 0.24))
        t += length
        self.add(self.policy, SpanKind.RUN, "load_weights", t, t + 1.2 * MS)
        t += 1.2 * MS
        self.add(self.driver, SpanKind.MARK, "iteration", begin, t)
        self.now = int(t)
        self.tell()
        row = self._metrics((t - begin) / 1e9)
        self.iteration += 1
        return row

    def tell(self) -> None:
        self.timeline.extend(self.recorder.drain())

    def _metrics(self, seconds: float) -> dict[str, float]:
        i, noise = self.iteration, self.random.gauss
        success = 1 / (1 + math.exp(-(i - 17) / 3.2))
        return {
            "iteration": i,
            "seconds": seconds,
            "success_rate": min(1.0, max(0.0, success + noise(0, 0.025))),
            "return": 120 + 900 * success + noise(0, 25),
            "loss": 1.4 * math.exp(-i / 9) + 0.12 + abs(noise(0, 0.03)),
            "env_steps_per_second": 800 / seconds,
        }


def pipeline(slow_ns: int = 40 * MS) -> Timeline:
    """A simulator feeds a policy, the policy a learner; the learner waits for the policy, which waits for the simulator.

    One step, the eighth of iteration 1, is slow.
    """
    recorder = Recorder()
    sim, policy, learner = recorder.track("simulator", 0, ("cpu:0",)), recorder.track("policy", 0, ("cpu:1",)), recorder.track("learner", 0, ("cpu:2",))
    driver = recorder.track("driver", 0, ())
    step, act, train, iteration, obs, traj = (recorder.name(n) for n in ("step", "act", "train", "iteration", "obs", "traj"))
    t = 0
    for i in range(2):
        begin, before = t, t
        for k in range(10):
            length = slow_ns if (i, k) == (1, 7) else 5 * MS
            recorder.add(sim, SpanKind.RUN, step, t, t + length, i, 4)
            t += length
            recorder.add(sim, SpanKind.PUT, step, t, t, i, 4, 0, obs, 4 * k)
            recorder.add(policy, SpanKind.GET, act, before, t, i, 4, 0, obs, 4 * k)
            recorder.add(policy, SpanKind.RUN, act, t, t + MS, i, 4)
            recorder.add(policy, SpanKind.PUT, act, t + MS, t + MS, i, 4, 0, traj, 4 * k)
            before = t + MS
        recorder.add(learner, SpanKind.GET, train, begin, t + MS, i, 40, 0, traj, 0)
        recorder.add(learner, SpanKind.RUN, train, t + MS, t + 21 * MS, i, 40)
        t += 21 * MS
        recorder.add(driver, SpanKind.MARK, iteration, begin, t, i)
    timeline = Timeline(["cpu:0", "cpu:1", "cpu:2"])
    timeline.extend(recorder.drain())
    return timeline


def picture(phase: float = 0.0, size: int = 240) -> bytes:
    """A PNG of four little tables with an arm and a button each, in the manner of a simulator's tiled view."""
    image = Image.new("RGB", (size, size), "#20242a")
    draw = ImageDraw.Draw(image)
    half = size // 2
    for k in range(4):
        x, y = (k % 2) * half, (k // 2) * half
        draw.rectangle([x + 1, y + 1, x + half - 2, y + half - 2], fill="#c9b18a")
        draw.rectangle([x + 1, y + 1, x + half - 2, y + half * 0.42], fill="#8fa3b5")
        draw.rectangle([x + half * 0.62, y + half * 0.34, x + half * 0.86, y + half * 0.62], fill="#e0c13a")
        draw.ellipse([x + half * 0.7, y + half * 0.43, x + half * 0.79, y + half * 0.53], fill="#b3261e")
        a = 0.9 * math.sin(phase + k) - 0.4
        elbow = (x + half * 0.25, y + half * 0.3)
        hand = (elbow[0] + half * 0.4 * math.cos(a), elbow[1] + half * 0.4 * abs(math.sin(a)) + 6)
        draw.line([x + half * 0.14, y + half * 0.84, *elbow, *hand], fill="#6b2f2f", width=max(2, half // 14), joint="curve")
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


class LiveRun(SampleRun):
    """Its spans come as those of a run in this process: as they wait in the recorder, and checked."""

    def tell(self) -> None:
        self.timeline.extend(self.recorder.drain(), checked=True)
