"""Meta-World's task classes without most of a step's cost in Python.

Physics was a quarter of it. Observations, rewards and success stay the same.

A class is derived from each task's own. Two things happen to it:

    the frame of a step (mocap, physics, observation, stacking) is written anew with views of MuJoCo's memory that are looked up once
    the task's own methods (rewards, what the objects are) are taken as they are, and find cheaper helpers under the names that they use:
    lengths of vectors, tolerances and quaternions of one number or one matrix, for which numpy and scipy are made to take arrays

A task's scene is compiled once in a process, and its environments have copies: a tenth of the time of compiling it for each.

Left out: what only the dictionary of details would tell (whether the object is touched), and forces that nothing reads.
"""

from __future__ import annotations

import copy
import functools
import math
import types
from typing import Any

import numpy as np
from numpy.typing import NDArray

FINGERS = ("rightEndEffector", "leftEndEffector")


@functools.lru_cache(maxsize=4)  # 20 MB each, meshes mostly
def _compiled(path: str) -> Any:
    """Of a scene's file; nobody changes it."""
    import mujoco

    return mujoco.MjModel.from_xml_path(path)


class _QuickFrame:
    """Goes before a task's class. Names are metaworld's."""

    model: Any
    data: Any

    def _initialize_simulation(self: Any) -> tuple[Any, Any]:
        import mujoco

        model = copy.copy(_compiled(self.fullpath))
        # As gymnasium has it: pictures may be larger than the scene's file says.
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        return model, mujoco.MjData(model)

    def _views(self) -> dict[tuple[str, str], NDArray]:
        found: dict[tuple[str, str], NDArray] = self.__dict__.setdefault("_quick_views", {})
        return found

    def _view(self, kind: str, name: str) -> NDArray:
        """The live position of a body or a site in MuJoCo's memory."""
        views = self._views()
        view = views.get((kind, name))
        if view is None:
            view = views[kind, name] = getattr(self.data, kind)(name).xpos
        return view

    def _field(self, name: str) -> NDArray:
        views = self._views()
        view = views.get(("data", name))
        if view is None:
            view = views["data", name] = getattr(self.data, name)
        return view

    def get_body_com(self, body_name: str) -> NDArray:
        return self._view("body", body_name)

    def get_endeff_pos(self) -> NDArray:
        return self._view("body", "hand")

    def _get_site_pos(self, site_name: str) -> NDArray:
        return self._view("site", site_name).copy()

    @property
    def tcp_center(self) -> NDArray:
        right, left = (self._view("site", name) for name in FINGERS)
        return (right + left) / 2.0

    def touching_object(self, object_geom_id: int) -> bool:
        """Told in the details only, which nobody gets: not looked up."""
        return False

    def do_simulation(self: Any, ctrl: Any, n_frames: int) -> None:
        import mujoco

        self._field("ctrl")[:] = ctrl
        mujoco.mj_step(self.model, self.data, nstep=n_frames)

    def set_xyz_action(self: Any, action: NDArray) -> None:
        place = self._field("mocap_pos")[0]
        place += np.minimum(np.maximum(action, -1), 1) * self.action_scale
        np.maximum(place, self.mocap_low, out=place)
        np.minimum(place, self.mocap_high, out=place)
        self._field("mocap_quat")[:] = (1.0, 0.0, 1.0, 0.0)

    def _get_curr_obs_combined_no_goal(self: Any) -> NDArray[np.float64]:
        observed = np.zeros(4 + self._obs_obj_max_len)
        observed[:3] = self._view("body", "hand")
        apart = norm(self._view("body", "rightclaw") - self._view("body", "leftclaw"))
        observed[3] = min(max(apart / 0.1, 0.0), 1.0)
        position, quaternion = self._get_pos_objects(), self._get_quat_objects()
        for k in range(len(position) // 3):
            observed[4 + 7 * k : 7 + 7 * k] = position[3 * k : 3 * k + 3]
            observed[7 + 7 * k : 11 + 7 * k] = quaternion[4 * k : 4 * k + 4]
        return observed

    def _get_obs(self: Any) -> NDArray[np.float64]:
        goal = self._get_pos_goal()
        now = self._get_curr_obs_combined_no_goal()
        observed = np.concatenate((now, self._prev_obs, np.zeros_like(goal) if self._partially_observable else goal))
        self._prev_obs = now
        return observed

    def step(self: Any, action: NDArray) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        import mujoco

        if self.curr_path_length >= self.max_path_length:
            raise ValueError("You must reset the env manually once truncate==True")
        self.set_xyz_action(action[:3])
        self.do_simulation((action[-1], -action[-1]), self.frame_skip)
        self.curr_path_length += 1
        mujoco.mj_forward(self.model, self.data)
        space = self.sawyer_observation_space
        observed = self._get_obs()
        np.maximum(observed, space.low, out=observed)
        np.minimum(observed, space.high, out=observed)
        self._last_stable_obs = observed
        reward, info = self.evaluate_state(observed, action)
        return observed.copy(), reward, False, self.curr_path_length == self.max_path_length, info


# --- helpers under the names that the tasks use ------------------------------------------------------------------------------
def norm(x: Any, ord: Any = None, **options: Any) -> Any:
    """`numpy.linalg.norm`; of one vector as numpy computes it, without looking for axes."""
    if type(x) is np.ndarray and x.ndim == 1 and ord in (None, 2) and not options and x.dtype == np.float64:
        return np.sqrt(x.dot(x))
    return np.linalg.norm(x, ord, **options)


def tolerance(x: Any, bounds: Any = (0.0, 0.0), margin: Any = 0.0, sigmoid: str = "gaussian", value_at_margin: float = 0.1) -> Any:
    """metaworld's ``reward_utils.tolerance``; of one number in plain arithmetic."""
    from metaworld.utils import reward_utils

    lower, upper = bounds
    if isinstance(x, np.ndarray) or sigmoid != "long_tail" or lower > upper or margin < 0 or not 0 < value_at_margin < 1:
        return reward_utils.tolerance(x, bounds, margin, sigmoid, value_at_margin)  # type: ignore[arg-type]
    if lower <= x <= upper:
        return 1.0
    if margin == 0:
        return 0.0
    distance = float((lower - x if x < lower else x - upper) / margin)
    scale = math.sqrt(1 / value_at_margin - 1)
    return 1 / ((distance * scale) ** 2 + 1)


class _Quaternion:
    def __init__(self, number_4: NDArray[np.float64]) -> None:
        self._number_4 = number_4

    def as_quat(self) -> NDArray[np.float64]:
        return self._number_4


class Rotation:
    """scipy's, as far as tasks use it. The quaternion (x, y, z, w) of one orthogonal matrix."""

    @staticmethod
    def from_matrix(matrix: NDArray) -> Any:
        if matrix.shape != (3, 3):
            from scipy.spatial.transform import Rotation as Scipy

            return Scipy.from_matrix(matrix)
        (a, b, c), (d, e, f), (g, h, i) = matrix.tolist()
        trace = a + e + i
        largest = max(a, e, i, trace)
        if a == largest:
            found = (1 - trace + 2 * a, d + b, g + c, h - f)
        elif e == largest:
            found = (d + b, 1 - trace + 2 * e, h + f, c - g)
        elif i == largest:
            found = (g + c, h + f, 1 - trace + 2 * i, d - b)
        else:
            found = (h - f, c - g, d - b, 1 + trace)
        length = math.sqrt(found[0] * found[0] + found[1] * found[1] + found[2] * found[2] + found[3] * found[3])
        return _Quaternion(np.array([part / length for part in found]))


@functools.cache
def _helpers() -> dict[str, Any]:
    from metaworld.utils import reward_utils

    lengths = types.SimpleNamespace(**{**vars(np.linalg), "norm": norm})
    return {
        "np": types.SimpleNamespace(**{**vars(np), "linalg": lengths}), "Rotation": Rotation, "tolerance": tolerance,
        "reward_utils": types.SimpleNamespace(**{**vars(reward_utils), "tolerance": tolerance}),
    }  # fmt: skip


def _with_helpers(function: types.FunctionType) -> types.FunctionType:
    """The same code with the helpers of this module. It finds them where it names numpy's, scipy's and metaworld's."""
    inner = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)).get("func")
    if inner is not None and isinstance(inner.cell_contents, types.FunctionType):  # metaworld's check that a task was set: the adapter does set one
        return _with_helpers(inner.cell_contents)
    known = {name: helper for name, helper in _helpers().items() if name in function.__globals__}
    copy = types.FunctionType(function.__code__, {**function.__globals__, **known}, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@functools.cache
def quick(cls: type) -> type:
    """The class of a task, derived; see the top of this file."""
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("metaworld."):
            methods.update({name: _with_helpers(value) for name, value in vars(base).items() if isinstance(value, types.FunctionType)})
    for name in ("__init__", "__getstate__", "__setstate__", "step", "reset"):
        methods.pop(name, None)
    return type(cls.__name__, (_QuickFrame, type(cls.__name__, (cls,), methods)), {"__module__": cls.__module__})
