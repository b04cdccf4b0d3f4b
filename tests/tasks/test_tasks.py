"""Every task: its own solutions are right, spoilt ones are not, the splits share nothing, the same seed gives the same."""

from __future__ import annotations

import itertools
import string
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.tasks import Problem, RewardResult, Task, scored
from rlinf_lab.tasks.countdown import evaluated

NAMES = ["remainder", "countdown", "sorting", "shortest_path"]


@pytest.mark.parametrize("name", NAMES)
def test_solutions_are_right_and_spoilt_ones_are_not(name):
    task = lab.tasks.make(name)
    problems = [p for level in range(1, task.levels + 1) for p in task.sample(np.random.default_rng(level), 60, level)]
    longest = 0
    for problem in problems:
        solution = task.solution(problem)
        longest = max(longest, len(solution))
        assert task.reward(problem, solution) == RewardResult(1.0, "right"), (problem, solution)
        assert set(problem.prompt + solution) <= set(task.alphabet)
        for spoilt in (
            "",
            solution[:-1],
            solution + problem.answer[-1],
            "#",
            "#" + problem.prompt,
            solution.replace("#", ""),
        ):
            verdict = task.reward(problem, spoilt)
            assert verdict.value < 1.0 and verdict.detail and not verdict.failed, (problem, spoilt, verdict)
    assert longest <= task.max_length


@pytest.mark.parametrize("name", NAMES)
def test_splits_share_no_prompt_and_seeds_repeat(name):
    task = lab.tasks.make(name)
    train, test = (task.sample(np.random.default_rng(0), 300, split=split) for split in ("train", "test"))
    assert not {p.prompt for p in train} & {p.prompt for p in test}
    assert train == task.sample(np.random.default_rng(0), 300) and len({p.level for p in train}) == task.levels
    prompt, solution = next(task.examples(np.random.default_rng(0)))
    assert Problem(prompt, "").split == "train" and solution.count("#") == 1


def test_work_on_a_remainder_is_looked_at():
    task = lab.tasks.make("remainder")
    problem = Problem("874%6=", "4", 1, {"dividend": 874, "divisor": 6})
    for text in ("2:74,3:4,4#4", "#4", "6 times 145 is 870, so: #4"):
        assert task.reward(problem, text).value == 1.0
    part = {"2:74,3:4,4#3": 3, "2:74,1:4,4#4": 1, "2:74,3:4#4": 2, "3#4": 0, "2:74,3:4,4": 3, "2:74,3:4,4,4#4": 3, "": 0}
    assert {text: 4 * task.reward(problem, text).value for text in part} == part


def test_lengths_of_remainder_have_a_long_tail():
    task = lab.tasks.make("remainder")
    lengths = [len(task.solution(p)) for p in task.sample(np.random.default_rng(0), 2000, 3)]
    assert np.quantile(lengths, 0.99) > 4 * np.median(lengths)


def test_shortest_paths_against_all_paths():
    task = lab.tasks.make("shortest_path")
    for problem in task.sample(np.random.default_rng(1), 40, 2):
        edges, nodes = problem.detail["edges"], "".join(sorted(set("".join(problem.detail["edges"]))))
        inner = [n for n in nodes if n not in problem.answer[0] + problem.answer[-1]]
        for k in range(len(problem.answer) - 2):  # no shorter one
            for middle in itertools.permutations(inner, k):
                path = problem.answer[0] + "".join(middle) + problem.answer[-1]
                assert not all("".join(sorted(pair)) in edges for pair in itertools.pairwise(path))
        assert task.reward(problem, "#" + problem.answer[0] + problem.answer[-1]).value == (len(problem.answer) == 2)


@pytest.mark.parametrize(("expression", "says"), [
    ("2**99", "not an expression of whole"), ("__import__('os')", "not an expression of whole"), ("1/0", "divides by zero"),
    ("(" * 300, "300 characters"), ("1.5+1", "whole numbers"), ("3 +", "not an expression"), ("\0", "not an expression"),
    ("True+1", "whole numbers"), ("-3", "whole numbers"),
])  # fmt: skip
def test_countdown_reads_arithmetic_only(expression, says):
    with pytest.raises(ValueError, match=says):
        evaluated(expression)


def test_countdown_accepts_any_right_expression_and_no_number_twice():
    problem = Problem("2,4,6>4=", "", 2, {"numbers": (2, 4, 6), "target": 4})
    verdicts = {
        e: lab.tasks.Countdown().reward(problem, "#" + e) for e in ("(6*2)/(4-1)", "6-2", "8/2", "2+2", "6/4*2+1")
    }
    assert [v.value for v in verdicts.values()] == [0, 1, 0, 0, 0]
    assert verdicts["2+2"].detail == "uses 2 too often" and "gives 4" not in verdicts["6/4*2+1"].detail


@pytest.mark.parametrize(("function", "error"), [
    (lambda: 1 / 0, "ZeroDivisionError: division by zero"), (lambda: "well", "'well', not a number"),
    (lambda: float("nan"), "nan, not a finite"), (lambda: None, "None, not a number"),
    (lambda: RewardResult(None), "None, not a number"), (lambda: -1e39, "beyond the numbers of float32"),
    (lambda: RewardResult(1.0, error=KeyError("key")), "KeyError: 'key'"), (sys.exit, "SystemExit"),
    (lambda: RewardResult(1.0, error=["why"]), "['why']"),
])  # fmt: skip
def test_a_verifier_that_fails_is_data(function, error):
    result = scored(function)
    assert result.failed and result.value == 0.0 and error in result.error and error in repr(result)


def test_a_verdict_is_made_of_plain_values():
    result = scored(lambda: RewardResult("0.5", {"why": np.float32(1)}))
    assert result == RewardResult(0.5, "{'why': np.float32(1.0)}") and type(result.value) is float
    assert scored(lambda: RewardResult(np.float64(2), None)) == RewardResult(2.0, "")
    assert scored(lambda: RewardResult(1.0, "half \ud800")).detail == "half \\ud800"

    def interrupted():
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(scored, interrupted).result().failed
    with pytest.raises(KeyboardInterrupt):  # of the main thread: the user's own
        scored(interrupted)


def test_a_task_of_ones_own():
    @lab.tasks.register
    class Echo(Task):
        name = "echo_of_tests"
        alphabet = string.ascii_lowercase + "#"

        def problem(self, rng, level):
            letter = string.ascii_lowercase[rng.integers(26)]
            return Problem(letter, letter)

        def reward(self, problem, completion):
            return RewardResult(float(completion == f"#{problem.answer}"))

    task = lab.tasks.make("echo_of_tests")
    (problem,) = task.sample(np.random.default_rng(0), 1)
    assert task.reward(problem, task.solution(problem)).value == 1 and "echo_of_tests" in lab.tasks.list().index
    with pytest.raises(UnknownNameError, match="Did you mean 'remainder'"):
        lab.tasks.make("remaind")
    with pytest.raises(ConfigError, match="level 7; there are levels 1 to 3"):
        lab.tasks.make("remainder").sample(np.random.default_rng(0), 1, 7)
    with pytest.raises(ConfigError, match="split 'held_out'"):
        task.sample(np.random.default_rng(0), 1, split="held_out")
