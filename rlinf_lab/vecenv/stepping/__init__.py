"""Other steps of a vector than one action with the task's reward. Chunks of actions, success alone."""

from rlinf_lab.vecenv.stepping.chunks import StepsChunks, is_chunk, step_chunk
from rlinf_lab.vecenv.stepping.success import SuccessVecEnv, rewarded_for_success

__all__ = ["StepsChunks", "SuccessVecEnv", "is_chunk", "rewarded_for_success", "step_chunk"]
