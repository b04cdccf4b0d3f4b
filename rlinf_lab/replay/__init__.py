"""Memory of past transitions: bounded trees of arrays.

Sampled uniformly or by priority, kept in files without pickle.
"""

from rlinf_lab.replay.buffer import ReplayBuffer, Sample
from rlinf_lab.replay.demonstrations import demonstrations
from rlinf_lab.replay.n_step import NStep
from rlinf_lab.replay.prioritised import PrioritisedReplayBuffer

__all__ = ["NStep", "PrioritisedReplayBuffer", "ReplayBuffer", "Sample", "demonstrations"]
