"""The environment that somebody drives. It lives in a thread of its own: OpenGL wants one.

    page, or a function ──held──▶ Seat ──news──▶ page
                                   │
                                   └──kept──▶ episodes, corrections

Nobody waits here for a page: what is held is looked at when a step is due. While nobody acts, time stands still.
"""

from __future__ import annotations

import functools
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlinf_lab.datasets import Episode
from rlinf_lab.datasets.playing import Recording, row
from rlinf_lab.errors import EnvError, RlinfLabError, said
from rlinf_lab.experiments.teleoperation.controls import Controls
from rlinf_lab.trees import Tree, leaves, map_tree, named_leaves
from rlinf_lab.vecenv import EnvFactory, VecEnv
from rlinf_lab.vecenv.base import LONGEST
from rlinf_lab.vecenv.spaces import checked_batch
from rlinf_lab.vecenv.stepping import is_chunk
from rlinf_lab.vecenv.stepping.on_host import on_host
from rlinf_lab.workers.seeds import Purpose, environment_seed

PERSON = "person"
STARTING, READY, RUNNING, OVER, FAILED, CLOSED = "starting", "ready", "running", "over", "failed", "closed"
CLOSED_S = 10.0  # that an environment may take to end a step and to close
KEEPS = ("ask", "success", "all")
REPEAT_S = 0.25  # that a key of choices is held until it counts again, as keyboards have it
MOST_TAPS = 8  # that wait for their step
SPEEDS = (1, 2, 5, 10, 20, 30, 50)  # steps a second that a page offers


@dataclass(frozen=True)
class Settings:
    """What `teleoperate` is asked for, checked."""

    seed: int
    max_episode_steps: int | None
    keep: str
    end_on_success: bool
    realtime: bool
    task: str
    first: int = 0
    """the number of the first episode, after those that were there"""


@dataclass
class News:
    """What a page shows: replaced as a whole, never changed."""

    state: str = STARTING
    step: int = 0
    return_: float = 0.0
    success: bool | None = None
    by: str = ""
    """who took the last step: "person", "policy", or "" before the first one"""
    action: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    picture: NDArray[np.uint8] | None = None
    numbers: list[str] = field(default_factory=list)
    """the observation in words, where there is no picture"""
    is_drawn: bool = False
    """whether picture and numbers are of this step"""


class _End(Exception):
    """The seat is closed."""


@dataclass(eq=False)
class _Hand:
    """A function at the controls for one episode."""

    act: Callable[[Tree], Tree]
    by: str
    is_done: bool = False
    error: BaseException | None = None


class Seat:
    """One environment and whoever acts in it.

    ``tell``: called with `News` from the seat's thread. ``wants_picture``: whether a step among many is to be drawn.
    """

    def __init__(
        self,
        factory: EnvFactory,
        controls: Controls,
        policy: Callable[[Tree], Tree] | None,
        settings: Settings,
        tell: Callable[[News], None],
        wants_picture: Callable[[], bool],
    ) -> None:
        self.controls, self.settings = controls, settings
        self.kept: list[Episode] = []
        self.kept_by: list[str] = []
        """who was at the controls of each"""
        self.corrections: list[Episode] = []
        self.error: Exception | None = None
        self.speed = 10.0
        self._factory, self._policy, self._tell, self._wants_picture = factory, policy, tell, wants_picture
        self._changed = threading.Condition()
        self._held: Any = None  # the action of the person, while something is held
        self._taps: deque[Any] = deque()  # those of keys that were pressed since the last step, even if let go of
        self._repeats_at = 0.0  # from when on a key that is held counts for more than one step
        self._rest: Any = None  # and while nothing is; None: there is no such action
        self._goes = False  # the policy acts, or time goes on, without anybody holding anything
        self._asked = ""  # "end", "discard" or "keep": what somebody wants of this episode
        self._hand: _Hand | None = None  # a function that is to drive an episode
        self._driver: _Hand | None = None  # the one that has driven this episode from its beginning
        self._checked: Callable[[Tree], Tree] = _batch  # actions as the environment takes them, once it is made
        self._planned: dict[str, list[Tree]] = {}  # what is left of a chunk of actions
        self._closing = False
        self._is_stale = False  # a step has not been drawn
        self._news = News()
        self._thread = threading.Thread(target=self._run, name="teleoperation", daemon=True)

    def start(self) -> None:
        self._thread.start()

    # --- asked from other threads ---------------------------------------------------------------------------------
    @property
    def is_autonomous(self) -> bool:
        """Whether steps are taken while nobody holds anything."""
        return self._policy is not None or self.settings.realtime

    @property
    def goes(self) -> bool:
        """Whether they are taken now."""
        return self._goes and self.is_autonomous

    def hold(self, told: Mapping[str, Any], engaged: bool) -> None:
        """What is held now. `ValueError` for what is no action."""
        choices = self.controls.are_choices
        action = self.controls.action(told) if engaged or not choices else None
        with self._changed:
            if engaged and (self._held is None or choices):
                self._taps = deque([*self._taps, action], MOST_TAPS) if choices else deque([action])
                self._repeats_at = time.monotonic() + (REPEAT_S if choices and not self.is_autonomous else 0.0)
            self._held = action if engaged else None
            if (engaged and self.controls.idle is None) if choices else not engaged:
                self._rest = action  # axes as they were left; the last choice, where none is to do nothing
            self._changed.notify_all()

    def let_go(self) -> None:
        """Nobody holds anything, and nothing goes on by itself."""
        with self._changed:
            self._held = None
            self._taps.clear()
            self._goes = False

    def go(self, goes: bool) -> None:
        with self._changed:
            self._goes = goes
            self._changed.notify_all()

    def ask(self, what: str) -> None:
        """ "end" the episode, "discard" it, or "keep" one that is over."""
        with self._changed:
            self._asked = what
            self._changed.notify_all()

    def wait_ready(self, seconds: float) -> None:
        """Until there is an environment, or none will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._news.state != STARTING, seconds)

    def drive(self, act: Callable[[Tree], Tree], by: str) -> None:
        """Have ``act`` at the controls for one whole episode. As fast as it goes; returns when it is over."""
        hand = _Hand(act, by)
        with self._changed:
            if self._hand is not None:
                raise EnvError(f"{self._factory.id}: somebody drives it already. Next: wait until that call returns.")
            self._hand = hand
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: hand.is_done or self._closing or self.error is not None)
            finally:
                self._hand = None if self._hand is hand else self._hand
                self._changed.notify_all()  # where this was interrupted
            error = hand.error or self.error
        if error is not None:
            raise error
        if not hand.is_done:
            raise EnvError(f"{self._factory.id}: this teleoperation was closed. Next: a new one, lab.teleoperate(...).")

    def close(self) -> None:
        """End the thread and close the environment. What was kept stays."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSED_S)
            if self._thread.is_alive():
                warnings.warn(
                    f"{self._factory.id}: it has not ended its step for {CLOSED_S:g} s; it is closed when it does. "
                    "Next: nothing, or another kernel where it never will.", stacklevel=3,
                )  # fmt: skip

    # --- the seat's thread ----------------------------------------------------------------------------------------
    def _run(self) -> None:
        env: VecEnv | None = None
        try:
            env = on_host(self._factory(1, self.settings.max_episode_steps))
            self._checked = functools.partial(checked_batch, env.spec.action_space, 1, id=env.spec.id)
            first, number = environment_seed(self.settings.seed, Purpose.DEMONSTRATIONS), self.settings.first
            while True:
                self._episode(env, first + number)
                number += 1
        except _End:
            self._show(state=CLOSED)
        except Exception as error:  # whatever an environment, or a policy, raises
            self.error = error
            words = str(error) if isinstance(error, RlinfLabError) else f"{type(error).__name__}: {said(error)}"
            self._show(state=FAILED, message=words)
        finally:
            with self._changed:
                self._closing = self._closing or self.error is None
                self._changed.notify_all()
            if env is not None:
                env.close()

    def _episode(self, env: VecEnv, seed: int) -> None:
        """One episode, from its beginning until somebody has said what becomes of it."""
        obs_N = env.reset(seed=seed)
        whole, stretch, corrections = Recording(), Recording(), list[Episode]()
        self._planned = {"policy": [], "hand": []}
        with self._changed:  # who held something to the end of an episode does not begin the next one with it
            self._taps.clear()
            self._held, self._rest, self._asked = None, self.controls.rest(), ""
        self._show(env, obs_N, state=READY, step=0, return_=0.0, success=None, by="", action={}, message="")
        due = 0.0
        terminated = truncated = False
        succeeded: bool | None = None
        final = row(obs_N, 0)
        while True:
            asked, action, by = self._next(due, obs_N, len(whole) > 0)
            if asked == "look":
                self._show(env, obs_N)
                continue
            if asked == "keep" or (asked and not len(whole)):
                continue  # it is not over yet, or there is nothing to end or to discard
            if asked == "discard":
                self._leave()
                return
            if asked:
                self._show(env, obs_N, state=OVER)
                break
            due = time.monotonic() + (0.0 if by == "hand" else 1 / self.speed)
            before = row(obs_N, 0)
            if by == "policy":
                self._correct(stretch, corrections, before, False, False)
                stretch = Recording()
            step = env.step(action)
            whole.add(before, action, step)
            obs_N, final = step.obs_N, row(step.final_obs_N, 0)
            terminated, truncated = bool(step.terminated_N[0]), bool(step.truncated_N[0])
            if by != "policy":
                stretch.add(before, action, step)
            over = terminated or truncated or (env.spec.max_episode_steps is None and len(whole) >= LONGEST)
            succeeded = None if step.success_N is None else bool(succeeded or step.success_N[0])
            over = over or (self.settings.end_on_success and bool(succeeded))
            self._show(
                env if not (terminated or truncated) else None, obs_N, state=OVER if over else RUNNING, step=len(whole),
                return_=self._news.return_ + whole.reward[-1],
                success=succeeded, by="policy" if by == "policy" else "person",
                action=self.controls.told(row(action, 0)),
            )  # fmt: skip
            if over:
                break
        self._correct(stretch, corrections, final, terminated, truncated)
        self._keep(whole.episode(terminated, truncated, final, seed, self.settings.task), corrections)

    def _next(self, due: float, obs_N: Tree, has_begun: bool) -> tuple[str, Tree, str]:
        """(what is asked, action_N, by whom) of the next step. Waits until there is one."""
        with self._changed:
            while True:
                if self._closing:
                    raise _End
                if self._hand is not self._driver:  # functions drive whole episodes
                    if has_begun:
                        return "discard", None, ""
                    self._driver = self._hand
                if self._asked:
                    asked, self._asked = self._asked, ""
                    return asked, None, ""
                is_held = self._held is not None or len(self._taps) > 0
                goes_on = self.goes and (self._policy is not None or self._rest is not None)
                left = max(due, 0.0 if self._taps or goes_on else self._repeats_at) - time.monotonic()
                if self._driver is not None or ((is_held or goes_on) and left <= 0):
                    break
                if not (is_held or goes_on) and self._is_stale:
                    return "look", None, ""
                self._changed.wait(left if is_held or goes_on else None)
            tapped = self._taps.popleft() if self._taps else None
            held = tapped if self.controls.are_choices and tapped is not None else self._held
            held, rest = tapped if held is None else held, self._rest
        if self._driver is not None:
            return self._by_hand(self._driver.act, obs_N)
        if held is not None:
            self._planned["policy"].clear()
            return "", _batch(held), "person"
        if self._policy is not None:
            return "", self._planned_or(self._policy, obs_N, "policy"), "policy"
        return "", _batch(rest), "person"

    def _by_hand(self, act: Callable[[Tree], Tree], obs_N: Tree) -> tuple[str, Tree, str]:
        """A function's action; None of it leaves the step to the policy. What goes wrong there is its caller's."""
        try:
            action = self._planned_or(act, obs_N, "hand")
            if action is None and self._policy is None:
                raise EnvError("drive: the function gave None, and no policy acts. Next: teleoperate(env, policy).")
        except BaseException as error:
            self._leave(error)
            return "discard", None, ""
        if action is None and self._policy is not None:
            return "", self._planned_or(self._policy, obs_N, "policy"), "policy"
        self._planned["policy"].clear()
        return "", action, "hand"

    def _leave(self, error: BaseException | None = None) -> None:
        """The function at the controls, if any, has driven its episode."""
        with self._changed:
            hand, self._driver = self._driver, None
            if hand is not None:
                hand.is_done, hand.error = True, error
                self._hand = None if self._hand is hand else self._hand
                self._changed.notify_all()

    def _planned_or(self, choose: Callable[[Tree], Tree], obs_N: Tree, who: str) -> Tree:
        """The next action of a chunk that was chosen before, or of a new one. None where None is chosen."""
        planned = self._planned[who]
        if not planned:
            chosen = choose(obs_N)
            if chosen is None:
                return None
            is_many = is_chunk(self.controls.space, chosen)
            planned += [self._checked(one) for one in (np.swapaxes(chosen, 0, 1) if is_many else [chosen])]
        return planned.pop(0)

    def _correct(
        self, stretch: Recording, corrections: list[Episode], final: Tree, terminated: bool, truncated: bool
    ) -> None:
        """A stretch by hand, where a policy acts otherwise. It begins in the midst of an episode: no seed."""
        if self._policy is not None and len(stretch):
            corrections.append(stretch.episode(terminated, truncated, final, None, self.settings.task))

    def _keep(self, episode: Episode, corrections: list[Episode]) -> None:
        """Keep the episode, or not. Where nothing says so, somebody is asked."""
        keeps = self.settings.keep == "all" or (self.settings.keep == "success" and bool(episode.success))
        with self._changed:
            if self._driver is not None:  # one that was interrupted has driven for nobody
                keeps = self._driver is self._hand and (keeps or self.settings.keep == "ask")
            elif self.settings.keep == "ask":
                self._changed.wait_for(
                    lambda: self._closing or self._hand is not None or self._asked in ("keep", "discard")
                )
                keeps = self._asked == "keep"
            if keeps:
                self.kept_by.append(PERSON if self._driver is None else self._driver.by)
                self.kept.append(episode)
                self.corrections += corrections
            self._leave()
            if self._closing:
                raise _End

    def _show(self, env: VecEnv | None = None, obs_N: Tree = None, **changes: Any) -> None:
        is_drawn = env is not None and (changes.get("state") != RUNNING or self._wants_picture())
        self._is_stale = env is not None and not is_drawn
        news = News(**{**vars(self._news), **changes, "is_drawn": is_drawn})
        if env is not None and is_drawn:
            news.picture = _picture(env, obs_N)
            news.numbers = [] if news.picture is not None else _numbers(obs_N)
        self._tell(news)
        with self._changed:
            self._news = news
            self._changed.notify_all()


def _batch(action: Any) -> Any:
    return np.asarray(action)[None]


def _picture(env: VecEnv, obs_N: Tree) -> NDArray[np.uint8] | None:
    """What the environment draws, else the first picture that it shows its policy."""
    drawn = env.render() if env.spec.renders else None
    if drawn is not None and drawn.ndim in (2, 3) and drawn.size:
        return drawn
    for leaf in leaves(map_tree(lambda part: np.asarray(part)[0], obs_N)):
        if leaf.dtype == np.uint8 and leaf.ndim == 3 and min(leaf.shape[:2]) >= 8:
            return leaf
        if leaf.dtype == np.uint8 and leaf.ndim == 3 and leaf.shape[0] in (1, 3, 4):  # colours, or frames, come first
            return np.moveaxis(leaf, 0, -1) if leaf.shape[0] == 3 else leaf[-1]
    return None


def _numbers(obs_N: Tree) -> list[str]:
    rows = ((name or "observation", np.asarray(leaf)[0]) for name, leaf in named_leaves(obs_N))
    return [f"{name}: {np.array2string(one, precision=3, threshold=24, max_line_width=60)}" for name, one in rows]
