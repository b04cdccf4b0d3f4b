"""Torch modules from observation to action, and the form in which their weights travel."""

from rlinf_lab.policies.gaussian_mlp import GaussianMLP
from rlinf_lab.policies.weights import Weights

__all__ = ["GaussianMLP", "Weights"]
