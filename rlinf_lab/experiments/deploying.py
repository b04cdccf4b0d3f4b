"""A trained policy as a file for other programs.

torch.export, or ONNX where it is installed. Normalisation is inside.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rlinf_lab.errors import ConfigError, EnvError, MissingDependencyError, UnknownNameError, shown
from rlinf_lab.timeline.record.files import whole
from rlinf_lab.trees import leaves, map_tree
from rlinf_lab.vecenv.spaces import sampled

ENDINGS = (".pt2", ".onnx")
SAMPLES = 16
CLOSE = 1e-5  # between what the file's program and the policy answer


class _Rows(nn.Module):
    """Takes and gives the leaves one after another: what both formats know how to name."""

    def __init__(self, module: nn.Module, example: Any) -> None:
        super().__init__()
        self.module, self._example = module, example

    def forward(self, *parts: torch.Tensor) -> Any:
        rest = iter(parts)
        out = leaves(self.module(map_tree(lambda _: next(rest), self._example)))
        return out[0] if len(out) == 1 else tuple(out)


def export(policy: Any, path: str | Path) -> Path:
    """Write a `TrainedPolicy`; ``path`` ends in ".pt2" (`torch.export.load`) or ".onnx". Returns it.

    The program takes the leaves of a batch of observations (B, *shape) in the order of the space, and returns the
    leaves of greedy actions as `TrainedPolicy.act` does; the batch may have any size. It is run before the file is
    written: `EnvError` where its answers differ by more than 1e-5.
    """
    target = Path(path)
    _check_target(target)
    if target.suffix not in ENDINGS:
        raise UnknownNameError.of("ending of an exported policy", target.suffix, ENDINGS)
    example = sampled(policy.observation_space, np.random.default_rng(0), SAMPLES)
    parts = tuple(torch.as_tensor(np.asarray(leaf)) for leaf in leaves(example))
    expected = leaves(policy.act(example))
    module = _Rows(policy.module.as_deployable(), example).eval()
    batch = torch.export.Dim("batch", min=1)
    try:
        program = torch.export.export(module, parts, dynamic_shapes=(tuple({0: batch} for _ in parts),))
    except Exception as error:  # of many kinds: what a module of the user's cannot be traced by
        raise ConfigError(
            f"export({str(target)!r}): the policy cannot be traced: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    written, found = _onnx(program, parts) if target.suffix == ".onnx" else _torch(program, parts)
    far = max(
        float(np.abs(np.asarray(a, float) - np.asarray(b, float)).max()) for a, b in zip(found, expected, strict=True)
    )
    if not far <= CLOSE:
        raise EnvError(
            f"export({str(target)!r}): the program answers differently from the policy, by {far:.2g}. "
            "Nothing was written."
        )
    try:
        with whole(target) as part:
            part.write_bytes(written)
    except OSError as error:
        raise ConfigError(
            f"export({shown(str(target), 300)}): {error.strerror or error}. Nothing was written. Next: "
            f"{len(written) / 1e6:.1f} MB of room, or another path."
        ) from error
    return target


def _check_target(target: Path) -> None:
    """`ConfigError` where no file can be: before anything is computed for it."""
    why, step = "", "another path"
    try:
        if target.is_dir():
            why, step = "that is a folder", f"a file in it, {str(target / 'policy.pt2')!r}"
        elif not target.parent.is_dir():
            why, step = f"there is no folder {str(target.parent)!r}", f"mkdir -p {str(target.parent)!r}"
        else:
            target.stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:  # too long a name, a null character
        why = getattr(error, "strerror", None) or str(error)
    if why:
        raise ConfigError(f"export({shown(str(target), 300)}): {why}. Next: {step}.")


def _torch(program: torch.export.ExportedProgram, parts: tuple[torch.Tensor, ...]) -> tuple[bytes, list[Any]]:
    """The file's bytes, and what they answer. In memory: torch's writer ends the process where a disk is full."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    with torch.inference_mode():
        out = torch.export.load(file).module()(*parts)
    return file.getvalue(), [leaf.numpy() for leaf in (out if isinstance(out, tuple) else (out,))]


def _onnx(program: torch.export.ExportedProgram, parts: tuple[torch.Tensor, ...]) -> tuple[bytes, list[Any]]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  (what torch writes ONNX with)
    except ImportError as error:
        raise MissingDependencyError.of("onnxruntime", "onnx", "export to ONNX") from error
    model = torch.onnx.export(program, args=(), verbose=False)
    if model is None:
        raise ConfigError("export: torch.onnx.export gave no program. Next: a file that ends in '.pt2'.")
    written = model.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(written, providers=["CPUExecutionProvider"])
    given = {each.name: part.numpy() for each, part in zip(session.get_inputs(), parts, strict=True)}
    return written, list(session.run(None, given))
