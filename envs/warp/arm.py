"""The arm as a MuJoCo model, on a floor.

I2RT's YAM, six joints and a gripper, whose description comes in the wheel of mjlab, with a cube where a task has one.

Gains are those of its maker as mjlab has them, four times as stiff: a step of ours is 40 ms, and the arm should be where it is told to be by its end.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlinf_lab.errors import MissingDependencyError

JOINTS = 6
FINGERS = ("left_finger", "right_finger")
OPEN_M = 0.0374  # of a finger from its closed position
HOME = (0.0, 1.047, 1.05, -0.9, 0.0, 0.0, OPEN_M / 2, -OPEN_M / 2)
INERTIA = (0.123153, 0.277411, 0.232763, 0.030154, 0.009126, 0.002868)  # kg m², effective, of each joint
FORCE = (28.0, 28.0, 28.0, 10.0, 10.0, 10.0)  # N m at most
ARMATURE = (0.032, 0.032, 0.032, 0.0018, 0.0018, 0.0018)  # kg m²
FREQUENCY_HZ, DAMPING, STIFFER = 2.0, 2.0, 4.0
FINGER_MASS, FINGER_ARMATURE, FINGER_FORCE = 2.781624, 2.6, 40.0  # kg, kg, N
TIMESTEP_S = 0.005
CUBE_M = 0.02  # half of its edge
CUBE_KG = 0.05
FLOOR_FRICTION, PART_FRICTION, TIP_FRICTION = (0.8, 5e-3, 1e-4), (0.6, 5e-3, 1e-4), (1.0, 5e-3, 5e-4)
FINGERTIPS = frozenset(f"{side}f_down{k}_collision" for side in "lr" for k in range(6, 12))
ARM, WORLD = 1, 2  # groups of collision: the gripper touches the world, not itself; the cube touches both


def description() -> Path:
    """The arm's MJCF. `MissingDependencyError` where mjlab's wheel is not installed."""
    found = find_spec("mjlab")
    places = [] if found is None else [Path(p) / "asset_zoo" / "robots" / "i2rt_yam" / "xmls" / "yam.xml" for p in found.submodule_search_locations or ()]
    path = next((p for p in places if p.exists()), None)
    if path is None:
        raise MissingDependencyError(
            "An environment of warp needs the arm that comes with mjlab, which is not installed here. Next: make env-warp (an environment of its own), or "
            "pip install 'rlinf-lab[warp]' without metaworld."
        )
    return path


def model(with_cube: bool, grips: bool) -> Any:
    """A compiled ``mujoco.MjModel``. ``grips``: contacts hold what is pressed between the fingertips (elliptic cones), at half the speed."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(description()))
    _without_meshes(spec, mujoco)
    for geom in spec.geoms:
        touches = with_cube and geom.name.startswith(("link6", "lf_", "rf_"))
        geom.contype, geom.conaffinity = (ARM, WORLD) if touches else (0, 0)
        at_tip = geom.name in FINGERTIPS
        geom.condim, geom.friction, geom.priority = (6, TIP_FRICTION, 1) if at_tip else (3, PART_FRICTION, 0)
    _add_motors(spec, mujoco)
    spec.worldbody.add_geom(
        name="floor", type=mujoco.mjtGeom.mjGEOM_PLANE, size=(2, 2, 0.1), contype=WORLD, conaffinity=ARM | WORLD, friction=FLOOR_FRICTION,
        rgba=(0.8, 0.8, 0.78, 1),
    )  # fmt: skip
    if with_cube:
        body = spec.worldbody.add_body(name="cube", pos=(0.3, 0, CUBE_M))
        body.add_freejoint(name="cube")
        body.add_geom(
            name="cube", type=mujoco.mjtGeom.mjGEOM_BOX, size=(CUBE_M,) * 3, mass=CUBE_KG, contype=ARM | WORLD, conaffinity=ARM | WORLD,
            friction=FLOOR_FRICTION, rgba=(0.8, 0.3, 0.2, 1),
        )  # fmt: skip
    made = spec.compile()
    made.opt.timestep, made.opt.integrator = TIMESTEP_S, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    made.opt.iterations, made.opt.ls_iterations = 8, 16
    made.opt.cone, made.opt.impratio = (mujoco.mjtCone.mjCONE_ELLIPTIC, 10.0) if grips else (mujoco.mjtCone.mjCONE_PYRAMIDAL, 1.0)
    return made


def _without_meshes(spec: Any, mujoco: Any) -> None:
    """They are for looks only, and take megabytes; shapes for collision are drawn instead."""
    for geom in [g for g in spec.geoms if g.type == mujoco.mjtGeom.mjGEOM_MESH]:
        spec.delete(geom)
    for mesh in list(spec.meshes):
        spec.delete(mesh)
    for geom in spec.geoms:
        geom.group = 0


def _add_motors(spec: Any, mujoco: Any) -> None:
    """Position control of six joints and of the left finger, which the right one mirrors."""
    rate = 2 * math.pi * FREQUENCY_HZ
    for k in range(JOINTS):
        stiffness, damping = STIFFER * INERTIA[k] * rate**2, math.sqrt(STIFFER) * 2 * DAMPING * INERTIA[k] * rate
        _add_motor(spec, mujoco, f"joint{k + 1}", stiffness, damping, FORCE[k])
        spec.joint(f"joint{k + 1}").armature = ARMATURE[k]
    _add_motor(spec, mujoco, FINGERS[0], FINGER_MASS * rate**2, 2 * DAMPING * FINGER_MASS * rate / 2, FINGER_FORCE)
    for finger in FINGERS:
        spec.joint(finger).armature = FINGER_ARMATURE


def _add_motor(spec: Any, mujoco: Any, joint: str, stiffness: float, damping: float, force: float) -> None:
    motor = spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    motor.set_to_position(kp=stiffness, kv=damping)
    motor.forcerange, motor.forcelimited = (-force, force), True
