"""A film of a policy at work."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from rlinf_lab.errors import ConfigError, shown
from rlinf_lab.policies import PolicyWeights
from rlinf_lab.vecenv import VecEnv
from rlinf_lab.vecenv.stepping import is_chunk
from rlinf_lab.workers.seeds import Purpose, environment_seed

FRAMES_PER_SECOND = 25
LEAST_PIXELS = 240  # of the shorter side of a film: small pictures are enlarged, pixel by pixel
MACRO_BLOCK = 8  # sides of a film are multiples of it
MOST_EMBEDDED = 4_000_000  # bytes of a film that is kept in a notebook
ATTRIBUTES = 'controls muted loop autoplay style="max-width: 480px; width: 100%"'
DRAWN_WITH_PYGAME = ("classic_control", "box2d", "toy_text")
KINDS = (".mp4", ".gif")
LONGEST = 1000  # steps of a film of an episode that nothing limits


class Film(str):
    """What was written, or why nothing was; in a notebook it plays."""

    path: Path | None = None

    def _repr_html_(self) -> str | None:
        if self.path is None or not self.path.is_file() or self.path.stat().st_size > MOST_EMBEDDED:
            return None
        from IPython.display import Video

        video = Video(str(self.path), embed=True, html_attributes=ATTRIBUTES)._repr_html_()
        return f"{video}<div>{html.escape(self)}</div>"


def film(config: Any, weights: PolicyWeights, path: Path, episodes: int = 2) -> Film:
    """Greedy episodes as an MP4 or a GIF.

    Each up to one second after its success. Returns what was written, or why nothing was.
    """
    import imageio.v3 as imageio

    if isinstance(episodes, bool) or not isinstance(episodes, Integral) or episodes < 1:
        raise ConfigError(f"film(episodes={shown(episodes)}): a whole number of at least 1.")
    if path.suffix.lower() not in KINDS:
        raise ConfigError(
            f"film({shown(str(path))}): a film ends in {' or '.join(KINDS)}. Next: "
            f"film({shown(str(path.with_suffix('.mp4')))})."
        )
    env = config.factory(config.factory.size or 1, config.max_episode_steps)
    first = environment_seed(config.seed, Purpose.FILM)
    try:
        if not env.spec.renders:
            made_here = "" if config.factory.given is None else "it was made without render_mode='rgb_array', or "
            needs = (
                _needs(config.factory.id)
                or f"{made_here}this machine cannot. Next: rlinf-lab doctor says what is missing."
            )
            return Film(f"none, {config.factory.id} draws no pictures: {needs}")
        frames = [frame for e in range(episodes) for frame in _episode(config, weights, env, first + e)]
        if not frames:
            needs = _needs(config.factory.id)
            return Film(f"none, {config.factory.id} gave no picture{f': {needs}' if needs else '.'}")
        path.parent.mkdir(parents=True, exist_ok=True)
        imageio.imwrite(path, for_video(alike(frames)), fps=FRAMES_PER_SECOND, macro_block_size=MACRO_BLOCK, quality=7)
    finally:
        env.close()
    made = Film(f"{path.name}: {episodes} episodes of the learnt policy")
    made.path = path
    return made


def _needs(id: str) -> str:
    """The package that drawing lacks here; "" where it lacks none.

    Of those environments of gymnasium that are drawn with pygame.
    """
    spec = gymnasium.registry.get(id.removeprefix("gymnasium/"))
    group = next(
        (g for g in DRAWN_WITH_PYGAME if str(getattr(spec, "entry_point", "")).startswith(f"gymnasium.envs.{g}")), None
    )
    if group is None or find_spec("pygame") is not None:
        return ""
    return f"""the package 'pygame' is not installed. Next: pip install "gymnasium[{group.replace("_", "-")}]\""""


def alike(frames: Sequence[NDArray[Any]]) -> NDArray[np.uint8]:
    """Pictures of one size and of three colours, (T, H, W, C).

    Also of grey ones and those with an alpha channel.

    Numbers with a fraction are from 0 to 1, or to 255. Smaller pictures get a black border.
    """
    bright = 255 if max(np.max(frame) for frame in frames) <= 1 and frames[0].dtype.kind == "f" else 1
    height, width = (max(frame.shape[axis] for frame in frames) for axis in (0, 1))
    film_THWC = np.zeros((len(frames), height, width, 3), np.uint8)
    for whole_HWC, frame in zip(film_THWC, frames, strict=True):
        colours_HWC = frame[..., None] if frame.ndim == 2 else frame[..., :3] if frame.shape[2] > 2 else frame[..., :1]
        whole_HWC[: frame.shape[0], : frame.shape[1]] = (
            np.clip(colours_HWC * bright, 0, 255) if frame.dtype != np.uint8 else colours_HWC
        )
    return film_THWC


def for_video(frames_THWC: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Large enough to be seen, with sides that a video may have. What is missing repeats the border."""
    factor = -(-LEAST_PIXELS // min(frames_THWC.shape[1:3]))
    large = frames_THWC.repeat(factor, axis=1).repeat(factor, axis=2)
    missing = [-side % MACRO_BLOCK for side in large.shape[1:3]]
    return np.pad(large, ((0, 0), *((0, m) for m in missing), (0, 0)), mode="edge")


def _episode(config: Any, weights: PolicyWeights, env: VecEnv, seed: int) -> Iterator[NDArray[np.uint8]]:
    """The pictures of one greedy episode."""
    policy = config.make_policy()()
    policy.load(weights)
    obs_N, left = env.reset(seed=seed), env.spec.max_episode_steps or LONGEST
    while left > 0:
        action_N, _ = policy.act(obs_N, None)
        action_N = policy.executed(action_N) if hasattr(policy, "executed") else action_N
        chunk = list(np.swapaxes(action_N, 0, 1)) if is_chunk(env.spec.action_space, action_N) else [action_N]
        for one_N in chunk:  # a picture of each step
            picture = env.render()
            if picture is None or picture.ndim not in (2, 3) or not picture.size:
                return
            yield picture
            step = env.step(one_N)
            obs_N, left = step.obs_N, left - 1
            if step.success_N is not None and step.success_N[0]:
                left = min(left, FRAMES_PER_SECOND)
            if step.truncated_N[0] or step.terminated_N[0] or left <= 0:
                return
