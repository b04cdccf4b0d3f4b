"""Perceptrons and squashed Gaussians, forwards and backwards in few steps.

At the sizes of off-policy actors and critics autograd's nodes and the memory that they allocate take longer than the
arithmetic (``benchmarks/off_policy.py``). As steps of autograd: `relu_perceptron` and `squashed_sample`; by hand:
`Perceptron` and `Squashed`. The mathematics is that of the layers; only first derivatives are there.
Legend: K critics, B batch, I inputs, U outputs of a layer, A components of an action.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

_LOG_2 = math.log(2.0)
_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
Layer = tuple[Tensor, Tensor]
"""weight and bias, as of `torch.nn.Linear`, (U, I) and (U); or of K nets side by side, (K, I, U) and (K, 1, U)"""


def applies(x: Tensor) -> bool:
    """Whether these are the better way now.

    Not under autocast, nor where torch compiles and fuses the layers itself.
    """
    return not torch.is_autocast_enabled(x.device.type) and not torch.compiler.is_compiling()


# --- perceptrons --------------------------------------------------------------------------------------------------
class Room:
    """Memory by name, taken again and again. Nets that are not needed at the same time may share one."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory of that ``shape`` and of the type of ``like``, with whatever is in it."""
        held = self._held.get(name)
        if held is None or held.shape != shape or held.dtype != like.dtype:
            held = self._held[name] = like.new_empty(shape)
        return held


class Perceptron:
    """Affine layers with relu (or ``activation="tanh"``) between them, without autograd. ``gradients``: where those of each layer are written.

    ``norms``: factors and offsets, (K, 1, U), of an ensemble whose hidden layers are normalised before relu; ``norm_gradients`` likewise.
    ``room``: what hidden layers give is written there, over what the last call of its shape wrote: at usual sizes the system takes longer to give
    memory than a core to fill it. Without one memory is new.
    """

    def __init__(
        self, layers: Sequence[Layer], gradients: Sequence[Layer] = (), norms: Sequence[Layer] = (), norm_gradients: Sequence[Layer] = (),
        activation: str = "relu", room: Room | None = None,
    ) -> None:  # fmt: skip
        self.is_tanh, self._room = activation == "tanh", room
        self.layers, self.gradients, self.norms, self.norm_gradients = layers, gradients, norms, norm_gradients
        self.is_ensemble = layers[0][0].dim() == 3

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The last layer's outputs, and what `backward` needs: the inputs of all. ``x``: (B, I), or (K, B, I)."""
        if self.is_ensemble and x.dim() == 2:
            x = x.expand(self.layers[0][0].shape[0], -1, -1)
        inputs, normal = [x], list[Tensor]()
        last = len(self.layers) - 1
        for i, (weight, bias) in enumerate(self.layers):
            out = self._out(f"forward {i}", x, bias.shape[-1]) if i < last else None
            x = torch.baddbmm(bias, x, weight, out=out) if self.is_ensemble else torch.addmm(bias, x, weight.t(), out=out)
            if i == last:
                break
            if self.norms:
                factor, offset = self.norms[i]
                unit, _, scale = torch.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)
                normal += [unit, scale]
                x = torch.addcmul(offset, unit, factor)
            inputs.append(x.tanh_() if self.is_tanh else x.relu_())
        return x, inputs + normal

    def backward(self, gradient: Tensor, inputs: list[Tensor], *, of_weights: bool = True, of_input: bool = False) -> Tensor | None:
        """From the outputs' ``gradient`` to that of the inputs. (B, I) or (K, B, I), if it is wanted."""
        for i in range(len(self.layers) - 1, -1, -1):
            x, weight = inputs[i], self.layers[i][0]
            if of_weights:
                of_weight, of_bias = self.gradients[i]
                if self.is_ensemble and gradient.shape[-1] == 1:  # a row each: a quarter of the time
                    torch.bmm(gradient.transpose(1, 2), x, out=of_weight.transpose(1, 2))
                    torch.sum(gradient, 1, keepdim=True, out=of_bias)
                elif self.is_ensemble:
                    torch.bmm(x.transpose(1, 2), gradient, out=of_weight)
                    torch.sum(gradient, 1, keepdim=True, out=of_bias)
                else:
                    torch.mm(gradient.t(), x, out=of_weight)
                    torch.sum(gradient, 0, out=of_bias)
            if not i and not of_input:
                return None
            out = self._out(f"backward {i}", x, x.shape[-1]) if i else None
            if self.is_ensemble:
                gradient = torch.bmm(gradient, weight.transpose(1, 2), out=out)
            else:
                gradient = torch.mm(gradient, weight, out=out)
            if i:  # in place: nobody else has it
                if self.is_tanh:
                    torch.ops.aten.tanh_backward.grad_input(gradient, x, grad_input=gradient)
                else:
                    torch.ops.aten.threshold_backward.grad_input(gradient, x, 0, grad_input=gradient)
                if self.norms:
                    unit, scale = inputs[len(self.layers) + 2 * (i - 1) :][:2]
                    gradient = self._through_norm(i - 1, gradient, unit, scale, of_weights)
        return gradient

    def _out(self, name: str, x: Tensor, units: int) -> Tensor | None:
        return None if self._room is None else self._room.take(name, (*x.shape[:-1], units), x)

    def _through_norm(self, i: int, gradient: Tensor, unit: Tensor, scale: Tensor, of_weights: bool) -> Tensor:
        """From behind a normalisation to before it. Source: Ba et al., Layer Normalization (arXiv 1607.06450), equation 4."""
        if of_weights:
            of_factor, of_offset = self.norm_gradients[i]
            torch.sum(gradient * unit, 1, keepdim=True, out=of_factor)
            torch.sum(gradient, 1, keepdim=True, out=of_offset)
        pull = gradient.mul_(self.norms[i][0])
        along = (pull * unit).mean(-1, keepdim=True)
        return pull.sub_(pull.mean(-1, keepdim=True)).addcmul_(unit, along, value=-1.0).mul_(scale)


def relu_perceptron(x: Tensor, layers: Sequence[Layer]) -> Tensor:
    """What `Perceptron.forward` gives, as one step of autograd. ``x``: (B, I), which all nets read, or (K, B, I)."""
    if layers[0][0].dim() == 3 and x.dim() == 2:
        x = x.expand(layers[0][0].shape[0], -1, -1)
    found: Tensor = _Perceptron.apply(x, *(tensor for layer in layers for tensor in layer))
    return found


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *flat: Tensor) -> Tensor:
        out, inputs = Perceptron(list(zip(flat[::2], flat[1::2], strict=True))).forward(x)
        ctx.save_for_backward(*inputs, *flat)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.saved_tensors) // 3
        inputs, flat = list(ctx.saved_tensors[:count]), ctx.saved_tensors[count:]
        of_weights, of_input = ctx.needs_input_grad[1], ctx.needs_input_grad[0]
        made: list[Tensor] = [torch.empty_like(tensor) for tensor in flat] if of_weights else []
        values, gradients = (list(zip(part[::2], part[1::2], strict=True)) for part in (flat, made))
        net = Perceptron(values, gradients)
        first = net.backward(gradient.contiguous(), inputs, of_weights=of_weights, of_input=of_input)
        return (first, *made) if made else (first, *([None] * len(flat)))


# --- squashed Gaussians ---------------------------------------------------------------------------------------------
class Squashed(NamedTuple):
    """``tanh(u)``, ``u = mean + exp(log_std) · noise``. Source: Haarnoja et al. (arXiv 1801.01290), appendix C."""

    action_BA: Tensor
    log_prob_BA: Tensor
    """of each component"""
    away_BA: Tensor
    """from the mean, before squashing"""
    inside_BA: Tensor
    """where the log standard deviation was not cut"""

    @classmethod
    def of(cls, mean: Tensor, log_std: Tensor, noise: Tensor, bounds: tuple[float, float]) -> Squashed:
        """Log standard deviations are cut to ``bounds``."""
        cut = log_std.clamp(*bounds)
        away = cut.exp().mul_(noise)
        u = mean + away
        log_prob = F.softplus(u.mul(-2.0)).add_(u).sub_(_LOG_2).mul_(2.0)  # -log(1 - tanh²u)
        log_prob.addcmul_(noise, noise, value=-0.5).sub_(cut).sub_(_LOG_SQRT_2PI)
        return cls(torch.tanh_(u), log_prob, away, cut == log_std)

    def backward(self, of_action: Tensor, of_log_prob: Tensor | float) -> tuple[Tensor, Tensor]:
        """Gradients of means and log standard deviations."""
        of_mean = of_action * (1.0 - self.action_BA.square()) + 2.0 * of_log_prob * self.action_BA
        return of_mean, (of_mean * self.away_BA - of_log_prob) * self.inside_BA


def squashed_sample(mean_BA: Tensor, log_std_BA: Tensor, noise_BA: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Action and log-density of each component of `Squashed`, both (B, A). As one step of autograd."""
    found: tuple[Tensor, Tensor] = _SquashedSample.apply(mean_BA, log_std_BA, noise_BA, bounds)
    return found


class _SquashedSample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, noise: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
        drawn = Squashed.of(mean, log_std, noise, bounds)
        ctx.save_for_backward(*drawn)
        return drawn.action_BA, drawn.log_prob_BA

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_action: Tensor, of_log_prob: Tensor) -> tuple[Tensor | None, ...]:
        return (*Squashed(*ctx.saved_tensors).backward(of_action, of_log_prob), None, None)
