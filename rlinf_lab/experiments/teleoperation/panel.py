"""`teleoperate`: an environment driven in the notebook. What was done there is data to learn from."""

from __future__ import annotations

import atexit
import base64
import html
import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from numbers import Integral
from typing import Any

import traitlets
from gymnasium import Space

from rlinf_lab.datasets import DataSpec, Episode, EpisodeList
from rlinf_lab.errors import ConfigError, counted, shown
from rlinf_lab.experiments.collecting.collect import acting, id_of, in_own_units
from rlinf_lab.experiments.evaluation import check_counts
from rlinf_lab.experiments.film import alike
from rlinf_lab.experiments.teleoperation.controls import Controls
from rlinf_lab.experiments.teleoperation.saving import Saver
from rlinf_lab.experiments.teleoperation.seat import CLOSED, FAILED, KEEPS, RUNNING, SPEEDS, News, Seat, Settings
from rlinf_lab.notebook import side_by_side
from rlinf_lab.trees import Tree
from rlinf_lab.vecenv import EnvFactory, environment
from rlinf_lab.widgets import express, fallback
from rlinf_lab.widgets.assets import module, stylesheet
from rlinf_lab.widgets.pushed import PushedWidget

PICTURES_S = 1 / 30  # between two pictures
MOST_UNSEEN = 3  # pictures on their way to a page
READY_S = 30.0  # that the environment may take until it is shown
MOST_CHIPS = 24  # episodes that a page lists, the last ones
GONE_S = 3.0  # a page that has not seen a picture for so long is not looked at


def teleoperate(
    env: Any,
    policy: Any = None,
    *,
    seed: int = 0,
    max_episode_steps: int | None = None,
    keep: str = "ask",
    end_on_success: bool = False,
    realtime: bool = False,
    keys_to_action: Mapping[Any, Any] | None = None,
    action_names: Sequence[str] | None = None,
    task: str = "",
    save_to: str | os.PathLike[str] | None = None,
) -> Teleoperation:
    """Drive ``env`` in the notebook by keyboard, mouse or gamepad. Episodes are kept as data to learn from.

    Shows the environment, its controls and what comes of them. Time stands still while nobody holds a control, unless
    ``realtime``. With a ``policy`` (as in `collect`) it acts, and whoever holds a control takes over: ``corrections``
    are the stretches by hand (human-gated DAgger, Kelly et al., arXiv 1810.02890). The result's ``data`` goes into
    ``lab.train("clone", env, data=...)``, `datasets.write_lerobot` and whatever else takes episodes.

    ``keep``: "ask" after each episode, "success" (those that succeeded, without asking) or "all". ``end_on_success``:
    an episode ends with its first success, where the environment would go on; a policy that is cloned from such data
    has not seen how to stay there. ``keys_to_action``: as gymnasium's `play`
    takes it, ``{"a": 0, "d": 1}`` or ``{"w": [0, 1], ("a", "w"): ...}``, axes from -1 to 1; None: arrows, letters and
    digits, as the panel shows. ``action_names``: of the numbers of an action, or of its choices, where the environment
    does not say them: "right", "forward", "up" choose their keys, and a "gripper" stays where it was put. ``task``:
    what is to be done, in words. ``save_to``: folder of a LeRobotDataset in which every episode is written when it is
    kept; what is there already is the beginning of ``data``. Episode i begins as `collect`'s with this seed; with
    ``save_to`` those that are there count.

    Raises `ConfigError` for an action space without controls (Dict, Tuple, MultiDiscrete) and for bad settings.
    """
    check_counts("teleoperate", 1, seed)
    if max_episode_steps is not None and not (isinstance(max_episode_steps, Integral) and max_episode_steps >= 1):
        raise ConfigError(
            f"teleoperate(max_episode_steps={shown(max_episode_steps)}): a whole number of at least 1, or None."
        )
    if keep not in KEEPS:
        raise ConfigError(f"teleoperate(keep={shown(keep)}): {', '.join(map(repr, KEEPS))}.")
    for name, flag in (("end_on_success", end_on_success), ("realtime", realtime)):
        if not isinstance(flag, bool):
            raise ConfigError(f"teleoperate({name}={shown(flag)}): True or False.")
    if keys_to_action is not None and not (isinstance(keys_to_action, Mapping) and keys_to_action):
        raise ConfigError(
            f"teleoperate(keys_to_action={shown(keys_to_action)}): a dict from keys to actions. Next: "
            "{'a': 0, 'd': 1}."
        )
    factory = environment(env)
    if factory.size not in (None, 1):
        raise ConfigError(
            f"teleoperate({shown(env, 60)}): a vector of {factory.size} environments; one can be driven. Next: "
            "its id, or a function that makes one."
        )
    spec = factory.spec(max_episode_steps)
    names = None if action_names is None or isinstance(action_names, str) else tuple(action_names)
    controls = Controls.of(spec if names is None else replace(spec, action_names=names), keys_to_action)
    if action_names is not None and controls.names != names:
        raise ConfigError(
            f"teleoperate(action_names={shown(action_names)}): {counted(len(controls.names), 'name')} needed, of the "
            f"{'choices' if controls.are_choices else 'numbers'} of {spec.action_space}. Next: a list with each."
        )
    act, by = (None, "") if policy is None else acting(policy, factory, "teleoperate(policy")[:2]
    known = DataSpec(spec.observation_space, spec.action_space, id_of(env, spec.id), spec.max_episode_steps)
    own = replace(known, action_space=spec.native_action_space or spec.action_space)
    saver = None if save_to is None else Saver(save_to, own)
    first = 0 if saver is None else len(saver.before)
    settings = Settings(seed, max_episode_steps, keep, end_on_success, realtime, task or spec.id, first)
    return Teleoperation(factory, known, spec.native_action_space, controls, act, by, settings, saver)


class Teleoperation(PushedWidget):
    """An environment at somebody's hands: ``data`` and ``corrections`` are what was kept. Made by `teleoperate`."""

    _esm = module("base.js", "teleoperation.js")
    _css = stylesheet()
    title = traitlets.Unicode(help="the environment").tag(sync=True)
    controls = traitlets.Dict(help="names, keys and kinds of the controls").tag(sync=True)
    policy = traitlets.Unicode(help="who acts while nobody holds a control; empty: nobody").tag(sync=True)
    autonomous = traitlets.Bool(help="whether steps are taken while nobody holds a control").tag(sync=True)
    speeds = traitlets.List(traitlets.Int(), help="steps a second that can be chosen").tag(sync=True)

    def __init__(
        self,
        factory: EnvFactory,
        known: DataSpec,
        native: Space | None,
        controls: Controls,
        act: Callable[[Tree], Tree] | None,
        by: str,
        settings: Settings,
        saver: Saver | None = None,
    ) -> None:
        self._saver = saver
        self._factory, self._known, self._native, self._by = factory, known, native, by
        self._unseen: deque[tuple[int, float]] = deque()  # numbers of pictures on their way, and since when
        self._told_at, self._news, self._kept = 0.0, News(), 0
        self._pictures_sent = 0
        self._jpeg = b""
        super().__init__(
            title=factory.id, controls=controls.for_page(), policy=by,
            autonomous=act is not None or settings.realtime, speeds=list(SPEEDS),
        )  # fmt: skip
        self._seat = Seat(factory, controls, act, settings, self._tell, self._wants_picture)
        self._seat.start()
        atexit.register(self._end)

    # --- what was done ------------------------------------------------------------------------------------------
    @property
    def data(self) -> EpisodeList:
        """The episodes that were kept, in order. Actions are in the environment's own units."""
        kept = self._since(0)
        return self._saver.before + kept if self._saver is not None and self._before else kept

    @property
    def corrections(self) -> EpisodeList:
        """Stretches of kept episodes in which a person acted instead of the policy. They cannot be replayed: they
        begin in the midst of an episode.
        """
        if not self._by:
            raise ConfigError("corrections: no policy acts here. Next: data; or teleoperate(env, policy=run).")
        return self._list(self._seat.corrections, list(dict.fromkeys(self._seat.kept_by)))

    @property
    def _before(self) -> int:
        """Episodes that were there."""
        return 0 if self._saver is None else len(self._saver.before)

    def _since(self, number: int) -> EpisodeList:
        who = list(dict.fromkeys(self._seat.kept_by[number:]))
        return self._list(self._seat.kept[number:], [*who, self._by] if self._by else who)

    def _list(self, episodes: list[Episode], by: list[str]) -> EpisodeList:
        data = EpisodeList(replace(self._known, by=" and ".join(by)), list(episodes))
        return data if self._native is None else in_own_units(data, self._native)

    def drive(self, act: Any, episodes: int = 1, *, after: int = 0) -> EpisodeList:
        """Have ``act`` at the controls for whole episodes, as fast as it goes. Returns those that were kept.

        ``act``: as the policy of `collect`; a function may also give None, which leaves the step to the policy.
        ``after``: steps of each episode that the policy takes first, as if a person watched it for so long. Raises what
        ``act`` raises; its episode is discarded then, as is one that a person has begun or has not decided on.
        """
        check_counts("drive", episodes, 0)
        if isinstance(after, bool) or not isinstance(after, Integral) or after < 0 or (after and not self._by):
            why = "no policy acts here" if isinstance(after, Integral) and after > 0 else "a number of steps"
            raise ConfigError(f"drive(after={shown(after)}): {why}. Next: after=0, or teleoperate(env, policy=run).")
        chosen, by, _ = acting(act, self._factory, "drive(act")
        before = len(self._seat.kept)
        for _ in range(episodes):
            waits = iter(range(int(after)))
            self._seat.drive(lambda obs_N, w=waits: chosen(obs_N) if next(w, None) is None else None, by)
        return self._since(before)

    def close(self) -> None:
        """Close the environment, and its view. ``data`` stays."""
        self._end()
        atexit.unregister(self._end)
        super().close()

    def _end(self) -> None:
        self._seat.close()
        if self._saver is not None:
            self._saver.close()

    # --- the page -----------------------------------------------------------------------------------------------
    def _wants_picture(self) -> bool:
        now = time.monotonic()
        return self._on_page and len(self._unseen) < MOST_UNSEEN and now - self._told_at >= PICTURES_S

    def _tell(self, news: News) -> None:
        """From the seat's thread, after each step."""
        self._leave_if_nobody_looks()
        is_quiet = news.state == RUNNING == self._news.state  # one step among many
        if news.picture is not None and news.picture is not self._news.picture:
            self._jpeg = side_by_side([*alike([news.picture])])
        has_more = len(self._seat.kept) != self._kept
        self._news, self._kept = news, len(self._seat.kept)
        if has_more and self._saver is not None:
            self._saver.save(self.data)
        if has_more or news.state in (FAILED, CLOSED):
            self.renew_pictures(self._still())
        if self._on_page and (news.is_drawn or not is_quiet):
            self._publish_now()

    def _publish_now(self) -> None:
        with self._push_lock:
            self._told_at = time.monotonic()
            self._pictures_sent += 1
            self._unseen.append((self._pictures_sent, self._told_at))
            self._publish(*self._history())

    def _leave_if_nobody_looks(self) -> None:
        """A page that was closed with a key held must not drive on."""
        with self._push_lock:
            is_gone = bool(self._unseen) and time.monotonic() - self._unseen[0][1] > GONE_S
            if is_gone:
                self._unseen.clear()
        if is_gone:
            self._seat.let_go()

    def _handle(self, content: dict[str, Any]) -> None:
        kind = content.get("type")
        if kind == "seen" and isinstance(number := content.get("number"), int):
            with self._push_lock:
                while self._unseen and self._unseen[0][0] <= number:
                    self._unseen.popleft()
        elif kind == "hold":
            with suppress(ValueError):  # of a page that has gone wrong: what is no action is not taken
                self._seat.hold(content, bool(content.get("engaged")))
        elif kind == "go":
            self._seat.go(bool(content.get("goes")))
        elif kind == "speed" and content.get("speed") in SPEEDS:
            self._seat.speed = float(content["speed"])
        elif kind == "ask" and content.get("what") in ("end", "discard", "keep"):
            self._seat.ask(content["what"])

    def _history(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        news, kept, corrections = self._news, self._seat.kept, self._seat.corrections
        last = [{"steps": len(e), "return": _told(e.return_), "success": e.success} for e in kept[-MOST_CHIPS:]]
        content = {
            "number": self._pictures_sent, "state": news.state, "step": news.step, "return": _told(news.return_),
            "folder": "" if self._saver is None else str(self._saver.folder),
            "success": news.success, "by": news.by, "action": news.action,
            "message": news.message or ("" if self._saver is None else self._saver.problem),
            "numbers": news.numbers, "kept": self._before + len(kept), "last": last, "speed": self._seat.speed,
            "goes": self._seat.goes, "corrections": [len(corrections), sum(map(len, corrections))],
        }  # fmt: skip
        return content, {"picture": self._jpeg} if self._jpeg else {}

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        if not express.attended():  # a program that runs the notebook for its file shows what it begins with
            self._seat.wait_ready(READY_S)
        return self._bundle_with(self._still(), **kwargs)

    def _still(self) -> fallback.Still:
        """What a saved notebook shows: the last picture, and what was kept."""
        picture = base64.b64encode(self._jpeg).decode()
        image = f'<img style="max-width: 360px" src="data:image/jpeg;base64,{picture}">' if picture else ""
        return fallback.Still(f"<div>{image}<div>{html.escape(repr(self))}</div></div>", repr(self))

    def __repr__(self) -> str:
        seat, state = self._seat, self._news.state
        kept = counted(self._before + len(seat.kept), "episode") + " kept"
        kept += "" if self._saver is None else f" in {self._saver.folder}"
        corrected = f", {counted(len(seat.corrections), 'correction')}" if self._by else ""
        message = f": {self._news.message}" if self._news.message else ""
        return f"Teleoperation({self.title!r}, {kept}{corrected}, {state}{message})"


def _told(number: float) -> float | None:
    """As JSON can hold it; None for what is not finite."""
    return number if math.isfinite(number) else None
