"""Batch work (training, log-probabilities, rewards): ``seconds = fixed + each · items · devices^-exponent``.

Items are whole, and the rank with most of them decides: 10 on 4 ranks cost as much as 12.

The fixed part is told from the scaling by two sizes, the exponent by two device counts; what the samples cannot tell
comes from the profile or is assumed (perfect scaling) and said so. One size on each device count is met exactly; sizes
that lie on no line are met in the mean, and the estimate covers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rlinf_lab.planning.costs.base import (
    NOBODY,
    CostEstimate,
    Misfit,
    by_relative_error,
    estimated,
    nearest_colocation,
    of_a_rank,
)
from rlinf_lab.planning.profile.profile import Sample

EXPONENTS = np.linspace(0.0, 1.5, 301)
FIT_TOLERANCE = 1e-6  # errors of fits that are computed together are good to less


@dataclass(frozen=True)
class BatchModel:
    """``exponent``: of the devices, used where the samples have one device count only. ``group_size``: items come in
    groups of so many.
    """

    samples: tuple[Sample, ...]
    exponent: float | None = None
    devices_per_rank: int = 1
    group_size: int = 1

    def seconds(self, devices: np.ndarray, items: float | np.ndarray, beside: frozenset[str] = NOBODY) -> np.ndarray:
        return nearest_colocation(self.curves, beside).seconds(np.asarray(devices, float), items)

    def estimate(self, devices: int, items: float, beside: frozenset[str] = NOBODY) -> CostEstimate:
        curve = nearest_colocation(self.curves, beside)
        seconds = float(curve.seconds(np.array([float(devices)]), items)[0])
        elsewhere = curve.assumed and max(devices, 1) != max(curve.samples[0].devices, 1)
        return estimated(
            seconds,
            curve.samples,
            curve.misfit,
            devices,
            items,
            "scaling with devices assumed perfect" if elsewhere else "",
        )

    def of_a_part(
        self, devices: np.ndarray, items: float, parts: float | np.ndarray, beside: frozenset[str] = NOBODY
    ) -> np.ndarray:
        """Seconds of one of so many equal parts of all items. Each rank makes its share of it by itself: they are not
        divided anew for each part."""
        return nearest_colocation(self.curves, beside).seconds(np.asarray(devices, float), items, parts)

    def always(self, devices: int, beside: frozenset[str] = NOBODY) -> float:
        """Seconds of a batch that do not depend on its items."""
        return nearest_colocation(self.curves, beside).always(devices)

    def reach(self) -> float:
        return float("inf")

    @cached_property
    def curves(self) -> dict[frozenset[str], Curve]:
        """One curve for each co-location in which samples were taken."""
        groups: dict[frozenset[str], list[Sample]] = {}
        for sample in self.samples:
            groups.setdefault(frozenset(sample.beside), []).append(sample)
        return {
            colocated: Curve.fit(members, self.exponent, self.devices_per_rank, self.group_size)
            for colocated, members in groups.items()
        }


@dataclass(frozen=True)
class Curve:
    """A fitted curve. ``residuals``: logarithm of measured over fitted, at ``log_devices``: interpolated, so that
    samples are met.
    """

    samples: tuple[Sample, ...]
    fixed: float
    each: float
    exponent: float
    assumed: bool
    log_devices: tuple[float, ...]
    residuals: tuple[float, ...]
    devices_per_rank: int = 1
    group_size: int = 1

    @cached_property
    def misfit(self) -> Misfit:
        fitted = [self.seconds(np.array([float(s.devices)]), s.items)[0] for s in self.samples]
        return Misfit.of(np.array([s.seconds for s in self.samples]), np.array(fitted))

    def seconds(self, devices: np.ndarray, items: float | np.ndarray, parts: float | np.ndarray = 1.0) -> np.ndarray:
        n = np.maximum(devices, 1.0)  # 0 devices: a worker on the host, whose power does not depend on the plan
        fitted = (
            self.fixed
            + self.each
            * _whole(items, n, self.devices_per_rank, self.exponent, self.group_size)
            / parts
            * n**-self.exponent
        )
        return fitted * self._residual(n)

    def always(self, devices: int) -> float:
        """What a batch of no items would take."""
        return float(self.fixed * self._residual(np.array([max(devices, 1.0)]))[0])

    def _residual(self, devices: np.ndarray) -> np.ndarray:
        """Measured over fitted, between the device counts of the samples."""
        return np.exp(np.interp(np.log(devices), self.log_devices, self.residuals))

    @classmethod
    def fit(
        cls, samples: Sequence[Sample], exponent: float | None, devices_per_rank: int = 1, group_size: int = 1
    ) -> Curve:
        n = np.array([max(s.devices, 1) for s in samples], float)
        m = np.array([s.items for s in samples])
        t = np.array([s.seconds for s in samples])
        several = len(set(n)) > 1
        fixed_known = any(len(set(m[n == k])) > 1 for k in set(n))
        tried = EXPONENTS if several else np.array([1.0 if exponent is None else exponent])
        every = tried[:, None]
        about = _errors(_whole(m, n, devices_per_rank, every, group_size) * n**-every, t, fixed_known)
        near = tried[about <= about.min() * (1 + FIT_TOLERANCE) + FIT_TOLERANCE]  # few: each is fitted with care
        fits = [_affine(_whole(m, n, devices_per_rank, p, group_size) * n**-p, t, fixed_known) for p in near]
        best = int(np.argmin([f[2] for f in fits]))
        fixed, each, _ = fits[best]
        p = float(near[best])
        fitted = np.maximum(fixed + each * _whole(m, n, devices_per_rank, p, group_size) * n**-p, 1e-300)
        counts = np.unique(n)
        ratio = np.log(np.maximum(t, 1e-300) / fitted)
        residuals = [float(ratio[n == k].mean()) for k in counts]
        assumed = not several and exponent is None
        return cls(
            tuple(samples),
            fixed,
            each,
            p,
            assumed,
            tuple(np.log(counts)),
            tuple(residuals),
            devices_per_rank,
            group_size,
        )


def _whole(
    items: float | np.ndarray, devices: np.ndarray, devices_per_rank: int, exponent: float | np.ndarray, group_size: int
) -> np.ndarray:
    """Items that would cost as much if all ranks had as many as the fullest. What does not shrink with devices does not
    depend on ranks.
    """
    ranks = np.maximum(devices / devices_per_rank, 1.0)
    return np.asarray(items * (ranks * of_a_rank(items, ranks, group_size) / items) ** np.minimum(exponent, 1.0))


def _affine(x: np.ndarray, t: np.ndarray, with_fixed: bool) -> tuple[float, float, float]:
    """Fit a line by least squares of relative errors, neither part negative. Returns (fixed, each, root mean square of
    the relative error).
    """
    weight = by_relative_error(t)
    if with_fixed:
        design = np.stack([weight, x * weight], axis=1)
        fixed, each = np.linalg.lstsq(design, t * weight, rcond=None)[0]
        if fixed < 0:
            fixed, each = 0.0, _slope(x, t, weight)
        elif each < 0:
            fixed, each = float(np.average(t, weights=weight**2)), 0.0
    else:
        fixed, each = 0.0, _slope(x, t, weight)
    error = float(np.sqrt(np.mean(((fixed + each * x - t) * weight) ** 2)))
    return float(fixed), float(each), error


def _errors(x: np.ndarray, t: np.ndarray, with_fixed: bool) -> np.ndarray:
    """The errors of `_affine` for each row of ``x``, all together."""
    weight = by_relative_error(t)
    squared = weight**2
    slope = (x * t * squared).sum(axis=1) / ((x * weight) ** 2).sum(axis=1)
    fixed = np.zeros(len(x))
    if with_fixed:
        mean_x, mean_t = (x * squared).sum(axis=1) / squared.sum(), float((t * squared).sum() / squared.sum())
        off = x - mean_x[:, None]
        around = (off**2 * squared).sum(axis=1)
        vary = around > 1e-24 * (x**2 * squared).sum(axis=1)  # equal sizes differ by what their powers were rounded
        each = np.divide((off * (t - mean_t) * squared).sum(axis=1), around, out=np.zeros(len(x)), where=vary)
        fixed = mean_t - each * mean_x
        slope = np.where(fixed < 0, slope, np.where(each < 0, 0.0, each))
        fixed = np.where(fixed < 0, 0.0, np.where(each < 0, mean_t, fixed))
    return np.asarray(np.sqrt(np.mean(((fixed[:, None] + slope[:, None] * x - t) * weight) ** 2, axis=1)))


def _slope(x: np.ndarray, t: np.ndarray, weight: np.ndarray) -> float:
    return float(np.sum(x * t * weight**2) / np.sum((x * weight) ** 2))
