"""Pure mathematics: arrays in, arrays out. No devices, no channels, no state but what is passed in."""

from rlinf_lab.algorithms.advantages import gae
from rlinf_lab.algorithms.gaussian import entropy, log_prob
from rlinf_lab.algorithms.moments import Moments
from rlinf_lab.algorithms.ppo import PPOLoss, ppo_loss

__all__ = ["Moments", "PPOLoss", "entropy", "gae", "log_prob", "ppo_loss"]
