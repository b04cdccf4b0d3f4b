"""A task of pictures, drawn with numpy: catch the ball. 64×64 grey pixels; where the ball is only the picture tells."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

CELLS, SCALE = 8, 8


class CatchPixels(gymnasium.Env):
    """A ball falls one row a step; the paddle moves left or right to be below it in the end. Reward 1 for a ball that is caught, in the last step."""

    observation_space = Box(0, 255, (CELLS * SCALE, CELLS * SCALE, 1), np.uint8)
    action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.ball, self.paddle, self.row = int(self.np_random.integers(CELLS)), CELLS // 2, 0
        return self.picture(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), CELLS - 1)
        self.row += 1
        landed = self.row == CELLS - 1
        caught = landed and self.paddle == self.ball
        return self.picture(), float(caught), landed, False, {"is_success": caught} if landed else {}

    def picture(self) -> np.ndarray:
        seen = np.zeros((CELLS * SCALE, CELLS * SCALE, 1), np.uint8)
        for row, column, shade in ((self.row, self.ball, 255), (CELLS - 1, self.paddle, 128)):
            seen[row * SCALE : (row + 1) * SCALE, column * SCALE : (column + 1) * SCALE] = shade
        return seen
