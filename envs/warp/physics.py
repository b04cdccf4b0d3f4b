"""Two simulators of the same model.

MuJoCo Warp, all environments at once on a GPU, and MuJoCo itself, one after another on cores.

Both keep positions, velocities, controls and the place of the hand in tensors of N rows, which those who write to them and read them share with the simulator
(Warp) or which are copied (MuJoCo). Legend: N environments, Q positions, V velocities, U controls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

from envs.rendering import choose_renderer
from envs.warp.arm import HOME
from rlinf_lab.errors import EnvError, MissingDependencyError, said

HAND = "grasp_site"
SUBSTEPS = 8  # of 5 ms for each action


class Physics(Protocol):
    """N copies of a model. Tensors are float32, on one device."""

    device: torch.device
    qpos_NQ: Tensor
    qvel_NV: Tensor
    ctrl_NU: Tensor
    warmstart_NV: Tensor
    """accelerations that the solver begins with; they decide the last digits of the next step"""
    hand_N3: Tensor

    def advance(self) -> None:
        """`SUBSTEPS` steps with the controls as they are. Then all tensors are those of the new state."""
        ...

    def look(self) -> None:
        """Positions were written: the hand is where they put it."""
        ...

    def close(self) -> None: ...


class WarpPhysics:
    """MuJoCo Warp. On a GPU a step is one CUDA graph, recorded when it is made; nothing waits for the GPU.

    Source: MuJoCo Warp (google-deepmind/mujoco_warp). ``contacts``: contacts and rows of constraints that an environment may have; beyond, contacts are lost.
    """

    def __init__(self, model: Any, num_envs: int, device: str, contacts: tuple[int, int]) -> None:
        self._warp, self._library = libraries()
        self.device = torch.device(device)
        try:
            self._place = self._warp.get_device("cpu" if self.device.type == "cpu" else f"cuda:{self.device.index or 0}")
        except Exception as error:
            raise EnvError(f"Warp cannot use {device!r} here: {said(error)}. Next: device='cpu', or lab.doctor().") from error
        with self._warp.ScopedDevice(self._place):
            self._model = self._library.put_model(model)
            self._data = self._library.put_data(model, _at_home(model), nworld=num_envs, nconmax=contacts[0], njmax=contacts[1])
        data, tensor = self._data, self._warp.to_torch
        self.qpos_NQ, self.qvel_NV, self.ctrl_NU = tensor(data.qpos), tensor(data.qvel), tensor(data.ctrl)
        self.warmstart_NV = tensor(data.qacc_warmstart)
        self.hand_N3 = tensor(data.site_xpos)[:, model.site(HAND).id]
        self._step_graph = self._look_graph = None
        if self.device.type == "cuda":
            self._step_graph, self._look_graph = self._recorded(self._advance), self._recorded(self._look)

    def _recorded(self, work: Any) -> Any:
        with self._warp.ScopedDevice(self._place):
            work()  # kernels are compiled, which cannot be recorded
            self._warp.synchronize_device(self._place)
            with self._warp.ScopedCapture(device=self._place) as capture:
                work()
        return capture.graph

    def _advance(self) -> None:
        for _ in range(SUBSTEPS):
            self._library.step(self._model, self._data)
        self._look()

    def _look(self) -> None:
        self._library.kinematics(self._model, self._data)

    def advance(self) -> None:
        self._run(self._advance, self._step_graph)

    def look(self) -> None:
        self._run(self._look, self._look_graph)

    def _run(self, work: Any, graph: Any) -> None:
        with self._on_torchs_stream():
            if graph is None:
                work()
            else:
                self._warp.capture_launch(graph)

    @contextlib.contextmanager
    def _on_torchs_stream(self) -> Iterator[None]:
        """In the order of torch's own work.

        Whoever calls writes to the tensors before and reads them after, and nobody waits for the GPU.
        """
        if self.device.type == "cpu":
            with self._warp.ScopedDevice(self._place):
                yield
        else:
            with self._warp.ScopedStream(self._warp.stream_from_torch(torch.cuda.current_stream(self.device))):
                yield

    def close(self) -> None:
        """Give up the simulator's memory, of which the tensors here are views."""
        self._step_graph = self._look_graph = self._model = self._data = None
        for name in ("qpos_NQ", "qvel_NV", "ctrl_NU", "warmstart_NV", "hand_N3"):
            setattr(self, name, torch.zeros(0))


class MujocoPhysics:
    """MuJoCo in C, float64 inside. ``cores``: threads that share the environments."""

    def __init__(self, model: Any, num_envs: int, cores: int) -> None:
        import mujoco

        self._mujoco, self._model = mujoco, model
        # A state that diverges is told (`vector`), and not begun again in silence; Warp never does, and refuses the flag.
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self.device = torch.device("cpu")
        self._data = [_at_home(model) for _ in range(num_envs)]
        self.qpos_NQ, self.qvel_NV = torch.zeros(num_envs, model.nq), torch.zeros(num_envs, model.nv)
        self.ctrl_NU, self.warmstart_NV = torch.zeros(num_envs, model.nu), torch.zeros(num_envs, model.nv)
        self.hand_N3 = torch.zeros(num_envs, 3)
        self._hand = model.site(HAND).id
        self._rows = list(zip(*(t.numpy() for t in (self.qpos_NQ, self.qvel_NV, self.ctrl_NU, self.warmstart_NV, self.hand_N3)), strict=True))
        self.cores = max(1, min(cores, num_envs))
        self._threads = ThreadPoolExecutor(self.cores, "physics") if self.cores > 1 else None
        self._shares = [range(k, num_envs, self.cores) for k in range(self.cores)]

    def advance(self) -> None:
        self._all(self._advance)

    def look(self) -> None:
        self._all(self._look)

    def _all(self, work: Any) -> None:
        if self._threads is None:
            work(self._shares[0])
        else:
            list(self._threads.map(work, self._shares))

    def _advance(self, share: range) -> None:
        for i in share:
            data, (qpos, qvel, ctrl, warmstart, hand) = self._data[i], self._rows[i]
            data.qpos, data.qvel, data.ctrl, data.qacc_warmstart = qpos, qvel, ctrl, warmstart
            self._mujoco.mj_step(self._model, data, SUBSTEPS)
            self._mujoco.mj_kinematics(self._model, data)
            qpos[:], qvel[:], warmstart[:], hand[:] = data.qpos, data.qvel, data.qacc_warmstart, data.site_xpos[self._hand]

    def _look(self, share: range) -> None:
        for i in share:
            data, row = self._data[i], self._rows[i]
            data.qpos = row[0]
            self._mujoco.mj_kinematics(self._model, data)
            row[4][:] = data.site_xpos[self._hand]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()


def _at_home(model: Any) -> Any:
    import mujoco

    data = mujoco.MjData(model)
    data.qpos[: len(HOME)] = HOME
    data.ctrl[:] = HOME[: model.nu]
    mujoco.mj_forward(model, data)
    return data


def libraries() -> tuple[Any, Any]:
    """(warp, mujoco_warp). `MissingDependencyError` where they are not installed."""
    choose_renderer()  # before MuJoCo is imported, which looks then
    try:
        import mujoco_warp
        import warp
    except ImportError as error:
        raise MissingDependencyError(
            f"An environment of warp needs a package that is not installed here ({error}). Next: make env-warp (an environment of its own: it wants another "
            f"MuJoCo than metaworld does), or pip install 'rlinf-lab[warp]' without metaworld."
        ) from error
    warp.config.quiet = True
    return warp, mujoco_warp
