"""Tasks whose answers a program can check.

Problems made offline, by level, and a reward for every completion.

task = lab.tasks.make("remainder")
problems = task.sample(np.random.default_rng(0), 4, level=2)
task.reward(problems[0], task.solution(problems[0]))
"""

from rlinf_lab.tasks.countdown import Countdown
from rlinf_lab.tasks.graphs import ShortestPath
from rlinf_lab.tasks.gym import ReasoningGym
from rlinf_lab.tasks.isolated import Isolated
from rlinf_lab.tasks.jsonl import Jsonl
from rlinf_lab.tasks.math import math_reward
from rlinf_lab.tasks.program import ProgramResult, Sandbox, program_reward
from rlinf_lab.tasks.registry import list, make, register
from rlinf_lab.tasks.remainder import Remainder
from rlinf_lab.tasks.sorting import Sorting
from rlinf_lab.tasks.task import Problem, RewardResult, Task, scored
from rlinf_lab.tasks.tools import Calculator, Products, PythonProgram, Search, Tool, ToolResult

__all__ = [
    "Calculator",
    "Countdown",
    "Isolated",
    "Jsonl",
    "Problem",
    "Products",
    "ProgramResult",
    "PythonProgram",
    "ReasoningGym",
    "Remainder",
    "RewardResult",
    "Sandbox",
    "Search",
    "ShortestPath",
    "Sorting",
    "Task",
    "Tool",
    "ToolResult",
    "list",
    "make",
    "math_reward",
    "program_reward",
    "register",
    "scored",
]
