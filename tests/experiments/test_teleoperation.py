"""An environment at somebody's hands: what a page says, what a function does, what is kept of it."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, EnvError
from rlinf_lab.experiments.teleoperation.controls import Controls
from rlinf_lab.vecenv import EnvSpec

EXPERT = "numpy/ReachArm-v0"


class Line(gymnasium.Env):
    """A point on a line, from 0: it succeeds at 3, and ends beyond 5. ``wants``: what it takes."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space: Any = spaces.Box(-2.0, 2.0, (1,), np.float32)
    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = float(self.np_random.uniform(-0.5, 0.5))
        return np.array([self.x], np.float32), {}

    def step(self, action: Any) -> Any:
        self.x += float(action[0])
        return np.array([self.x], np.float32), self.x, abs(self.x) > 5, False, {"success": self.x > 3}

    def render(self) -> Any:
        return np.full((12, 12, 3), 128, np.uint8)


class Turns(Line):
    """The same by choices: back, none, on."""

    action_space = spaces.Discrete(3, start=1)

    def get_action_meanings(self) -> list[str]:
        return ["LEFT", "NOOP", "RIGHT"]

    def step(self, action: Any) -> Any:
        return super().step([2.0 * (int(action) - 2)])


@pytest.fixture
def seats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    monkeypatch.setattr("rlinf_lab.experiments.teleoperation.panel.GONE_S", 1e9)  # a busy machine is late to look
    made: list[Any] = []

    def make(*args: Any, **settings: Any) -> Any:
        made.append(lab.teleoperate(*args, **settings))
        return made[-1]

    yield make
    for seat in made:
        seat.close()


class Page:
    """What a browser does: it sees each picture, and says what is held."""

    def __init__(self, seat: Any) -> None:
        self.seat = seat
        self.say({"type": "history"})

    def say(self, content: dict[str, Any]) -> None:
        self.seat._receive(self.seat, content, [])

    def sees(self) -> dict[str, Any]:
        content, _ = self.seat._history()
        self.say({"type": "seen", "number": content["number"]})
        return content

    def wait(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        end = time.monotonic() + 60
        while not what(found := self.sees()):
            assert time.monotonic() < end, found
            time.sleep(0.002)
        return found

    def hold(self, engaged: bool = True, **what: Any) -> None:
        self.say({"type": "hold", "engaged": engaged, **what})


def test_time_stands_still_until_something_is_held_and_an_episode_is_kept_when_asked(seats: Any) -> None:
    seat = seats(Line, seed=3, end_on_success=True)
    page = Page(seat)
    page.say({"type": "speed", "speed": 50})
    assert page.wait(lambda now: now["state"] == "ready")["step"] == 0
    page.hold(axes=[0.5])
    now = page.wait(lambda now: now["state"] == "over")
    page.hold(axes=[0.0], engaged=False)
    assert now["success"] and now["by"] == "person" and now["action"] == {"axes": [0.5]} and len(seat.data) == 0
    page.say({"type": "ask", "what": "keep"})
    page.wait(lambda now: now["state"] == "ready" and now["kept"] == 1)
    (episode,) = seat.data
    assert episode.action_T.tolist() == [[1.0]] * len(episode), "in the environment's own units"
    assert episode.success and not episode.terminated and not episode.truncated and episode.final_obs[0] > 3
    assert seat.data.replay(0, Line).differences(episode) == ""
    assert np.allclose(episode.obs_T[1:, 0] - episode.obs_T[:-1, 0], 1.0) and episode.success_T.tolist()[-2:] == [False, True]
    assert page.sees()["step"] == 0, "nothing is held, so nothing moves"


def test_a_key_that_was_let_go_of_at_once_counts_for_one_step(seats: Any) -> None:
    seat = seats(Turns, end_on_success=True)
    page = Page(seat)
    page.wait(lambda now: now["state"] == "ready")
    for steps, choice in enumerate((2, 0, 2), 1):
        page.hold(choice=choice)
        page.hold(choice=None, engaged=False)
        now = page.wait(lambda now, n=steps: now["step"] == n)
        assert now["action"] == {"choice": choice}
    page.say({"type": "ask", "what": "end"})
    page.wait(lambda now: now["state"] == "over")
    page.say({"type": "ask", "what": "discard"})
    page.wait(lambda now: now["state"] == "ready")
    page.hold(choice=2)
    page.wait(lambda now: now["state"] == "over")
    page.say({"type": "ask", "what": "keep"})
    page.wait(lambda now: now["kept"])
    assert [e.action_T.tolist() for e in seat.data] == [[3, 3]], "of the episode that was discarded nothing is there"


def test_a_policy_acts_and_whoever_holds_a_key_takes_over(seats: Any) -> None:
    seat = seats(Line, lambda obs_N: np.full((len(obs_N), 1), -0.05), end_on_success=True)
    page = Page(seat)
    page.say({"type": "speed", "speed": 50})
    page.wait(lambda now: now["state"] == "ready")
    page.say({"type": "go", "goes": True})
    page.wait(lambda now: now["by"] == "policy" and now["step"] >= 2)
    page.hold(axes=[0.25])
    page.wait(lambda now: now["by"] == "person")
    page.hold(axes=[0.0], engaged=False)
    page.wait(lambda now: now["by"] == "policy")
    page.hold(axes=[1.0])
    page.wait(lambda now: now["state"] == "over")
    page.hold(axes=[0.0], engaged=False)
    page.say({"type": "ask", "what": "keep"})
    page.wait(lambda now: now["kept"])
    page.say({"type": "go", "goes": False})
    (episode,), (first, last) = seat.data, seat.corrections
    by_hand = episode.action_T[:, 0] > 0
    assert len(first) + len(last) == by_hand.sum() and set(first.action_T[:, 0].tolist()) == {0.5} and set(last.action_T[:, 0].tolist()) == {2.0}
    began = int(np.argmax(by_hand))
    assert first.obs_T.tolist() == episode.obs_T[began : began + len(first)].tolist()
    assert first.final_obs == episode.obs_T[began + len(first)] and last.final_obs == episode.final_obs
    assert first.seed is None and last.success and not first.success


def test_a_page_that_is_gone_holds_nothing(seats: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import rlinf_lab.experiments.teleoperation.panel as panel

    monkeypatch.setattr(panel, "GONE_S", 0.2)
    seat = seats(Line, lambda obs_N: np.zeros((len(obs_N), 1)))
    page = Page(seat)
    page.wait(lambda now: now["state"] == "ready")
    page.say({"type": "go", "goes": True})
    end = time.monotonic() + 60
    while seat._history()[0]["goes"]:  # nobody says any more that a picture was seen
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_function_drives_whole_episodes(seats: Any) -> None:
    seat = seats(EXPERT, seed=1, max_episode_steps=8, keep="all")
    still = seat.drive(lambda obs_N: np.zeros((len(obs_N), 2)), episodes=2)
    assert len(still) == 2 and [e.truncated for e in still] == [True, True] and still[0].seed != still[1].seed
    ones = lambda obs_N: np.ones((len(obs_N), 2))  # noqa: E731
    again = seat.drive(ones)
    assert len(again) == 1 and len(seat.data) == 3 and again[0].action_T.max() == seat.data.spec.action_space.high.max()
    assert all(seat.data.replay(i).differences(seat.data[i]) == "" for i in range(3))
    collected = lab.collect(EXPERT, ones, 3, seed=1, max_episode_steps=8)
    assert [e.seed for e in collected] == [e.seed for e in seat.data] and collected[2].differences(again[0]) == ""
    with pytest.raises(ConfigError, match=r"drive\(act=3\)"):
        seat.drive(3)


def test_a_policy_of_chunks_is_asked_when_its_chunk_is_over(seats: Any) -> None:
    asked: list[float] = []

    def policy(obs_N: Any) -> Any:
        asked.append(float(obs_N[0, 0]))
        return np.tile(np.array([0.1, 0.2, 0.3], np.float32)[None, :, None], (len(obs_N), 1, 1))

    seat = seats(Line, policy, keep="all")
    taken = iter([None, None, [[0.5]], *[None] * 100])
    (episode,) = seat.drive(lambda obs_N: next(taken))
    found = (episode.action_T[:, 0] / 2).round(2).tolist()
    assert found[:9] == pytest.approx([0.1, 0.2, 0.5, 0.1, 0.2, 0.3, 0.1, 0.2, 0.3][: len(found)]), "what is left of a chunk is not taken afterwards"
    assert asked[1] == episode.obs_T[3, 0]


def test_after_so_many_steps_somebody_takes_over(seats: Any) -> None:
    seat = seats(Line, lambda obs_N: np.zeros((len(obs_N), 1)), keep="success", end_on_success=True)
    seat.drive(lambda obs_N: np.ones((len(obs_N), 1)), episodes=2, after=4)
    assert [(e.action_T[:, 0] == 0).sum() for e in seat.data] == [4, 4] and [len(e) for e in seat.corrections] == [len(e) - 4 for e in seat.data]
    assert seat.drive(lambda obs_N: -np.ones((len(obs_N), 1))).steps == 0 and len(seat.data) == 2, "none that failed"


@pytest.mark.parametrize(
    "act, says",
    [
        (lambda obs_N: 1 / 0, "division by zero"),
        (lambda obs_N: [[np.nan]], "not finite"),
        (lambda obs_N: [[0.0, 0.0]], "shape"),
        (lambda obs_N: None, "gave None"),
    ],
)
def test_what_a_function_does_wrong_is_its_callers_and_the_seat_goes_on(seats: Any, act: Any, says: str) -> None:
    seat = seats(Line, keep="all")
    with pytest.raises(Exception, match=says):
        seat.drive(act)
    assert len(seat.data) == 0 and len(seat.drive(lambda obs_N: np.ones((len(obs_N), 1)))) == 1


def test_an_environment_that_fails_says_so_and_what_was_kept_stays(seats: Any) -> None:
    class Breaks(Line):
        begun = 0

        def reset(self, **kwargs: Any) -> Any:
            Breaks.begun += 1
            if Breaks.begun > 3:  # one is made to look at its spaces
                raise RuntimeError("the arm is stuck")
            return super().reset(**kwargs)

    seat = seats(Breaks, keep="all")
    with pytest.raises(RuntimeError, match="the arm is stuck"):
        for _ in range(5):
            seat.drive(lambda obs_N: np.ones((len(obs_N), 1)))
    assert 1 <= len(seat.data) <= 3 and "the arm is stuck" in repr(seat)


def test_an_environment_that_hangs_hinders_nobody(seats: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stepping, goes_on = threading.Event(), threading.Event()

    class Hangs(Line):
        def step(self, action: Any) -> Any:
            stepping.set()
            goes_on.wait(60)
            return super().step(action)

    monkeypatch.setattr("rlinf_lab.experiments.teleoperation.seat.CLOSED_S", 0.1)
    seat = seats(Hangs)
    page = Page(seat)
    page.wait(lambda now: now["state"] == "ready")
    page.hold(axes=[1.0])
    assert stepping.wait(60) and page.sees()["state"] == "ready", "the page is answered"
    with pytest.warns(UserWarning, match="Hangs: it has not ended its step for 0.1 s"):
        seat.close()
    goes_on.set()
    seat._seat._thread.join(60)
    assert not seat._seat._thread.is_alive() and len(seat.data) == 0


def test_a_closed_one_says_so(seats: Any) -> None:
    seat = seats(Line)
    seat.close()
    with pytest.raises(EnvError, match=r"closed. Next: a new one"):
        seat.drive(lambda obs_N: np.ones((len(obs_N), 1)))
    seat.close()
    assert len(seat.data) == 0


@pytest.mark.parametrize(
    "content",
    [
        {"type": "hold", "engaged": True, "axes": [float("nan")]}, {"type": "hold", "engaged": True, "axes": "up"}, {"type": "hold", "engaged": True},
        {"type": "hold", "engaged": True, "axes": [1.0, 1.0]}, {"type": "hold", "engaged": True, "axes": [{}]}, {"type": "speed", "speed": 1e9},
        {"type": "speed", "speed": []}, {"type": "seen", "number": "x"}, {"type": "seen", "number": None}, {"type": "ask", "what": ["end"]}, {"type": 3}, {}, [],
    ],
)  # fmt: skip
def test_what_a_page_cannot_mean_is_not_taken(seats: Any, content: Any) -> None:
    seat = seats(Line)
    page = Page(seat)
    page.wait(lambda now: now["state"] == "ready")
    page.say(content)
    page.hold(axes=[0.5])
    page.wait(lambda now: now["step"] == 1)
    page.hold(axes=[0.0], engaged=False)
    assert seat._seat.speed == 10


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"env": "CartPole-v1", "keep": "some"}, "keep='some'.*'ask', 'success', 'all'"),
        ({"env": "CartPole-v1", "seed": -1}, "seed"),
        ({"env": "CartPole-v1", "realtime": 1}, "realtime=1"),
        ({"env": "CartPole-v1", "max_episode_steps": 0}, "max_episode_steps=0"),
        ({"env": "CartPole-v1", "keys_to_action": {}}, "a dict from keys to actions"),
        ({"env": "CartPole-v1", "keys_to_action": {"a": 2}}, r"an action of Discrete\(2\)"),
        ({"env": "CartPole-v1", "keys_to_action": {"?": 0}}, "a letter or a digit"),
        ({"env": "CartPole-v1", "keys_to_action": {"left": 0}}, "a letter or a digit.*ArrowLeft"),
        ({"env": "Pendulum-v1", "keys_to_action": {"a": [2.0]}}, "1 numbers from -1 to 1"),
        ({"env": "CartPole-v1", "policy": "expret"}, "teleoperate.*Did you mean 'expert'"),
        ({"env": "CartPole-v1", "policy": 3}, r"teleoperate\(policy=3\)"),
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        lab.teleoperate(settings.pop("env"), **settings)


def test_spaces_without_controls_are_refused() -> None:
    class Both(Line):
        action_space = spaces.Dict({"arm": Line.action_space})

    with pytest.raises(ConfigError, match=r"Dict\(.*Next: teleoperate on a wrapper"):
        lab.teleoperate(Both)


def test_corrections_need_a_policy(seats: Any) -> None:
    seat = seats(Line)
    with pytest.raises(ConfigError, match="no policy acts here"):
        _ = seat.corrections
    with pytest.raises(ConfigError, match=r"after=3\): no policy acts here"):
        seat.drive(lambda obs_N: obs_N, after=3)
    with pytest.raises(ConfigError, match="after=True"):
        seat.drive(lambda obs_N: obs_N, after=True)


# --- what somebody does at the wrong time ------------------------------------------------------------------------------------
def by_two(obs_N: Any) -> Any:
    return np.ones((len(obs_N), 1))


def test_a_function_drives_although_an_episode_waits_to_be_decided_on(seats: Any) -> None:
    seat = seats(Line)
    page = Page(seat)
    page.wait(lambda now: now["state"] == "ready")
    page.hold(axes=[0.5])
    page.wait(lambda now: now["state"] == "over")
    (driven,) = seat.drive(by_two)
    assert set(driven.action_T[:, 0].tolist()) == {2.0} and len(seat.data) == 1


def test_an_episode_that_was_interrupted_is_no_part_of_what_follows(seats: Any) -> None:
    seat, goes_on = seats(Line, keep="all"), threading.Event()

    def act(obs_N: Any) -> Any:
        if abs(obs_N[0, 0]) > 0.6:  # after a step or two
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            goes_on.wait(60)
        return np.full((len(obs_N), 1), 0.3)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            seat.drive(act)
    finally:
        signal.signal(signal.SIGINT, before)
        goes_on.set()
    page = Page(seat)
    page.wait(lambda now: now["state"] == "ready" and now["step"] == 0)
    page.hold(axes=[0.5])
    page.wait(lambda now: now["kept"] == 1)
    assert set(seat.data[0].action_T[:, 0].tolist()) == {1.0}


def test_a_function_that_leaves_is_its_callers_too(seats: Any) -> None:
    seat = seats(Line, keep="all")
    with pytest.raises(SystemExit):
        seat.drive(lambda obs_N: sys.exit(3))
    assert len(seat.drive(by_two)) == 1


def test_who_holds_a_key_to_the_end_does_not_begin_the_next_episode_with_it(seats: Any) -> None:
    seat = seats(Line, keep="all")
    page = Page(seat)
    page.say({"type": "speed", "speed": 50})
    page.wait(lambda now: now["state"] == "ready")
    page.hold(axes=[1.0])
    page.wait(lambda now: now["kept"] == 1 and now["state"] == "ready")
    page.hold(axes=[-0.5])
    page.hold(axes=[0.0], engaged=False)
    page.wait(lambda now: now["step"] == 1)
    page.say({"type": "ask", "what": "keep"})  # a second click on a button that was there a moment ago
    page.say({"type": "ask", "what": "end"})
    page.wait(lambda now: now["kept"] == 2)
    assert seat.data[1].action_T.tolist() == [[-1.0]]


def test_what_stays_where_it_was_put_does_not_stay_in_the_next_episode(seats: Any) -> None:
    seat = seats(Line, keep="all", realtime=True)
    page = Page(seat)
    page.say({"type": "speed", "speed": 50})
    page.wait(lambda now: now["state"] == "ready")
    page.hold(axes=[0.25], engaged=False)
    page.say({"type": "go", "goes": True})
    page.wait(lambda now: now["kept"] == 1)
    page.wait(lambda now: page.say({"type": "ask", "what": "end"}) or now["kept"] == 2)  # before it begins it is not heard
    assert [set(e.action_T[:, 0].tolist()) for e in seat.data[:2]] == [{0.5}, {0.0}]


def test_in_real_time_the_last_choice_goes_on_where_none_is_to_do_nothing(seats: Any) -> None:
    class Two(Turns):
        action_space = spaces.Discrete(2, start=2)

    seat = seats(Two, realtime=True, keep="all")
    page = Page(seat)
    page.say({"type": "speed", "speed": 50})
    page.wait(lambda now: now["state"] == "ready")
    page.say({"type": "go", "goes": True})
    page.hold(choice=1)
    page.hold(choice=None, engaged=False)
    page.wait(lambda now: now["kept"] == 1)
    assert page.wait(lambda now: now["state"] == "ready")["step"] == 0, "nobody has chosen yet in the next one"
    assert seat.data[0].action_T.tolist() == [3, 3, 3]


def test_the_last_step_before_a_rest_is_always_shown(seats: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_lab.experiments.teleoperation.panel.PICTURES_S", 1e9)  # a page that wants none
    seat = seats(Line)
    sent: list[dict[str, Any]] = []
    page = Page(seat)
    page.wait(lambda now: now["state"] == "ready")
    monkeypatch.setattr(seat, "_transmit", lambda kind, content, parts: sent.append(content))
    for step in (1, 2, 3):
        page.hold(axes=[0.1])
        page.hold(axes=[0.0], engaged=False)
        page.wait(lambda now, step=step: sent and sent[-1]["step"] == step)


def test_rewards_without_bounds_are_shown_and_kept(seats: Any) -> None:
    class Endless(Line):
        def step(self, action: Any) -> Any:
            obs, _, *ends = super().step(action)
            return obs, np.inf, *ends

    seat = seats(Endless, keep="all")
    page = Page(seat)
    assert len(seat.drive(by_two, 2)) == 2
    now = page.sees()
    assert json.dumps(now, allow_nan=False) and [e["return"] for e in now["last"]] == [None, None]


def test_of_many_episodes_a_page_is_told_the_last_ones(seats: Any) -> None:
    seat = seats(Line, by_two, keep="all")
    page = Page(seat)
    seat.drive(by_two, 30)
    now = page.sees()
    assert now["kept"] == 30 and [e["steps"] for e in now["last"]] == [len(e) for e in seat.data[6:]]
    assert now["corrections"] == [30, seat.data.steps]


def test_an_environment_is_made_to_look_at_it_and_to_drive_it_and_no_more(seats: Any) -> None:
    class Counted(Line):
        made = 0

        def __init__(self) -> None:
            Counted.made += 1

    seat = seats(Counted, keep="all", max_episode_steps=2)
    before = Counted.made
    seat.drive(lambda obs_N: np.zeros((len(obs_N), 1)))
    assert seat.data.spec.max_episode_steps == len(seat.data[0]) == 2 and Counted.made <= before + 1


def test_only_where_nothing_limits_an_episode_is_it_cut(seats: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlinf_lab.experiments.teleoperation.seat.LONGEST", 5)
    still = lambda obs_N: np.zeros((len(obs_N), 1))  # noqa: E731
    (cut,) = seats(Line, keep="all").drive(still)
    (limited,) = seats(Line, keep="all", max_episode_steps=9).drive(still)
    assert (len(cut), cut.terminated, cut.truncated) == (5, False, False) and (len(limited), limited.truncated) == (9, True)


# --- controls -------------------------------------------------------------------------------------------------------------
def controls(space: spaces.Space, names: tuple[str, ...] | None = None, keys: Any = None) -> Controls:
    return Controls.of(EnvSpec("mine/Own-v0", Line.observation_space, space, action_names=names), keys)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=2), st.sampled_from(["unit", "odd", "open", "whole"]))
def test_axes_reach_the_ends_of_their_range_and_come_back(axes: list[float], kind: str) -> None:
    space = {
        "unit": spaces.Box(-1, 1, (2,), np.float32), "odd": spaces.Box(np.array([0, -3]), np.array([5, 1]), dtype=np.float64),
        "open": spaces.Box(-np.inf, np.inf, (2,), np.float32), "whole": spaces.Box(0, 4, (2,), np.int64),
    }[kind]  # fmt: skip
    driven = controls(space)
    action = driven.action({"axes": axes})
    assert space.contains(action)
    if kind != "whole":
        assert driven.told(action)["axes"] == pytest.approx(np.clip(axes, -1, 1), abs=1e-6)
    if kind in ("unit", "odd"):
        assert (driven.action({"axes": [1, -1]}) == [space.high[0], space.low[1]]).all() and driven.rest() == pytest.approx((space.low + space.high) / 2)


def test_keys_follow_the_names_of_actions() -> None:
    lake = controls(spaces.Discrete(4), ("left", "down", "right", "up"))
    assert [b.keys[0] for b in sorted(lake.bindings, key=lambda b: b.does)] == ["ArrowLeft", "ArrowDown", "ArrowRight", "ArrowUp"] and lake.rest() is None
    pong = controls(spaces.Discrete(4), ("noop", "fire", "up", "upfire"))
    assert {b.keys: b.does for b in pong.bindings} == {("Space",): 0, ("KeyF",): 1, ("ArrowUp",): 2, ("ArrowUp", "KeyF"): 3} and pong.rest() == 0
    assert [b.keys for b in controls(spaces.Discrete(12)).bindings] == [(f"Digit{n}",) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 0)], "the others by mouse"
    hand = controls(spaces.Box(-1, 1, (4,)), ("x", "y", "z", "gripper"))
    assert hand.stays == (False, False, False, True) and {b.keys: b.does for b in hand.bindings}["KeyR",] == (0, 0, 0, 1)
    switches = controls(spaces.MultiBinary(2))
    assert controls(spaces.Box(-3, 3, ())).action({"axes": [-0.5]}) == -1.5
    assert switches.action({"axes": [0.5, -1]}).tolist() == [1, 0] and [b.keys[0] for b in switches.bindings] == ["ArrowRight", "ArrowUp", "Space"]
    own = controls(spaces.Box(-1, 1, (2,)), keys={ord('q'): [0, 0.1], "w": [0, 1], ("a", "w"): [-1, 1], "wd": [1, 1], "ArrowUp": [0, 0.5], " ": [0, 0]})
    assert [b.keys for b in own.bindings] == [("KeyQ",), ("KeyW",), ("KeyA", "KeyW"), ("KeyW", "KeyD"), ("ArrowUp",), ("Space",)]
    assert own.bindings[2].does == (-1, 1) and "KeyW: action 1 +1" in repr(own)


@pytest.mark.parametrize("id, count", [("CartPole-v1", 2), ("MountainCar-v0", 3), ("FrozenLake-v1", 4), ("Pendulum-v1", 1), ("metaworld/push-v3", 4)])
def test_known_tasks_say_what_their_actions_are_called(id: str, count: int) -> None:
    names = lab.envs.make_vec(id, 1).spec.action_names
    assert names is not None and len(names) == count == len(set(names))


@pytest.mark.parametrize("told", [lambda self, action: "left", lambda self: {1: "back"}, lambda self: ["one"], lambda self: None])
def test_what_somebody_means_otherwise_by_that_name_hinders_nobody(told: Any) -> None:
    assert lab.envs.make_vec(type("Own", (Turns,), {"get_action_meanings": told}), 1).spec.action_names is None


def test_taps_are_steps_in_their_order_and_a_key_that_is_held_repeats_later(seats: Any) -> None:
    seat = seats(Turns)
    page = Page(seat)
    page.say({"type": "speed", "speed": 50})
    page.wait(lambda now: now["state"] == "ready")
    for choice in (2, 0, 0, 2):  # quicker than steps are
        page.hold(choice=choice)
        page.hold(choice=None, engaged=False)
    page.wait(lambda now: now["step"] == 4)
    page.hold(choice=1)  # held: once at first, then again and again
    page.wait(lambda now: now["step"] >= 7)
    page.hold(choice=None, engaged=False)
    page.say({"type": "ask", "what": "end"})
    page.wait(lambda now: now["state"] == "over")
    page.say({"type": "ask", "what": "keep"})
    page.wait(lambda now: now["kept"] == 1)
    actions = seat.data[0].action_T.tolist()
    assert actions[:4] == [3, 1, 1, 3] and set(actions[4:]) == {2}


def test_who_was_at_the_controls_is_told(seats: Any) -> None:
    seat = seats(Line, lambda obs_N: np.ones((len(obs_N), 1)), keep="all")
    assert seat.drive(lambda obs_N: np.ones((len(obs_N), 1))).spec.by == "<lambda> and <lambda>" and seat.corrections.spec.by == "<lambda>"


def test_names_choose_keys(seats: Any) -> None:
    seat = seats(lambda: gymnasium.make("Reacher-v5"), action_names=["up", "right"])
    assert seat.controls["names"] == ["up", "right"]
    hand = controls(spaces.Box(-1, 1, (5,)), ("forward, x", "right, y", "tilt", "left gripper", "up"))
    keys = {b.keys[0]: b.does.index(1.0) for b in hand.bindings if 1.0 in b.does}
    assert keys == {"KeyW": 0, "ArrowUp": 0, "KeyD": 1, "ArrowRight": 1, "KeyE": 4, "KeyR": 3, "KeyT": 2} and hand.stays == (False, False, False, True, False)
    for names in (["up"], "up", ["a", "b", "c"]):
        with pytest.raises(ConfigError, match=r"2 names needed, of the numbers of Box"):
            lab.teleoperate("Reacher-v5", action_names=names)


def test_pictures_whose_colours_come_first_are_shown(seats: Any) -> None:
    from rlinf_lab.experiments.teleoperation.seat import _picture
    from rlinf_lab.vecenv import make_vec

    env = make_vec("atari/Pong-v5", 1)
    shown = _picture(env, env.reset(seed=0))
    assert shown is not None and shown.shape == (84, 84) and env.spec.action_names[0] == "noop"


def ones(obs_N: Any) -> Any:
    return np.ones((len(obs_N), 1))


def test_episodes_are_on_disk_when_they_are_kept_and_the_next_seat_goes_on(seats: Any, tmp_path: Path) -> None:
    folder = tmp_path / "demos" / "line"
    seat = seats(Line, keep="all", save_to=folder)
    seat.drive(ones, episodes=2)
    end = time.monotonic() + 60
    while not folder.exists() or len(lab.datasets.read_lerobot(folder)) < 2:  # while it is open
        assert time.monotonic() < end
        time.sleep(0.01)
    seat.close()
    on_disk = lab.datasets.read_lerobot(folder)
    assert [mine.differences(theirs) for mine, theirs in zip(seat.data, on_disk, strict=True)] == ["", ""] and "line" in repr(seat)
    again = seats(Line, keep="all", save_to=folder)
    assert len(again.data) == 2 and Page(again).wait(lambda now: now["state"] == "ready")["kept"] == 2
    assert len(again.drive(ones)) == 1
    again.close()
    seeds = [e.seed for e in lab.datasets.read_lerobot(folder)]
    assert len(seeds) == len(set(seeds)) == 3 and seeds[:2] == [e.seed for e in seat.data], "it begins where no episode has begun"
    assert [p.name for p in folder.parent.iterdir()] == ["line"], "nothing is left aside"


def test_what_was_between_two_renames_is_found_and_another_environments_data_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "line"
    seat = lab.teleoperate(Line, keep="all", save_to=folder)
    seat.drive(ones)
    seat.close()
    folder.rename(tmp_path / ".line.before")
    seat = lab.teleoperate(Line, keep="all", save_to=folder)
    seat.close()
    assert len(seat.data) == 1 and folder.exists()
    with pytest.raises(ConfigError, match="save_to=.*Next: another folder"):
        lab.teleoperate("Pendulum-v1", save_to=folder)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError):
        lab.teleoperate(Line, save_to=tmp_path / "text")
    assert (tmp_path / "text" / "notes.txt").read_text() == "mine"


def test_a_disk_that_is_full_loses_nothing_and_is_told(seats: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rlinf_lab.experiments.teleoperation.saving as saving

    write, full = saving.write_lerobot, [True]

    def sometimes(*args: Any, **kwargs: Any) -> Any:
        if full[0]:
            raise OSError(28, "No space left on device")
        return write(*args, **kwargs)

    monkeypatch.setattr(saving, "write_lerobot", sometimes)
    seat = seats(Line, keep="all", save_to=tmp_path / "line")
    page = Page(seat)
    seat.drive(ones)
    assert "No space left on device" in page.wait(lambda now: now["message"] != "")["message"] and len(seat.data) == 1
    full[0] = False
    seat.drive(ones)
    page.wait(lambda now: now["message"] == "")
    seat.close()
    assert len(lab.datasets.read_lerobot(tmp_path / "line")) == 2


def test_two_seats_of_one_folder_overwrite_nothing(seats: Any, tmp_path: Path) -> None:
    first, second = (seats(Line, keep="all", save_to=tmp_path / "line", seed=seed) for seed in (0, 1))
    first.drive(ones, episodes=2)
    first.close()
    second.drive(ones)
    second.close()
    on_disk = lab.datasets.read_lerobot(tmp_path / "line")
    assert [e.seed for e in on_disk] == [e.seed for e in first.data] and len(second.data) == 1
    assert "somebody else writes there" in second._history()[0]["message"]
