"""Files of problems: good lines are problems, bad ones are named."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest

import rlinf_lab as lab
from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.recipes.grpo import GRPOConfig
from rlinf_lab.tasks import Jsonl

GOOD = {"prompt": "1+1=", "answer": 2, "level": 2, "source": "book"}


@pytest.mark.parametrize(("line", "says"), [
    ("{oops", "not JSON"), ("[1]", r"\[1\] is no object"), ('{"prompt": "a"}', "no field 'answer', only 'prompt'"),
    ('{"prompt": "", "answer": "1"}', "'prompt' is '', not a text"), ('{"prompt": "a", "answer": null}', "'answer' is None"),
    ('{"prompt": "a", "answer": "1", "level": 0}', "'level' is 0"),
])  # fmt: skip
def test_a_bad_line_is_named_or_left_out(tmp_path, line, says):
    path = tmp_path / "problems.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{line}\n")
    with pytest.raises(ConfigError, match=rf"problems\.jsonl, line 3: .*{says}"):
        Jsonl(path)
    with pytest.warns(UserWarning, match=rf"1 lines left out: line 3: .*{says}"):
        task = Jsonl(path, on_error="skip")
    assert len(task.problems) == 1


def test_what_to_write_instead_is_a_whole_expression(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"question": "1+1=", "answer": "2"}\n')
    with pytest.raises(ConfigError, match="Next: name the field that has it, such as ") as raised:
        Jsonl(path)
    expression = str(raised.value).partition("such as ")[2].partition(", or lab")[0]
    assert eval(expression, {"lab": lab}).problems[0].prompt == "1+1="
    path.write_text('{oops\n{"prompt": "1+1=", "answer": "2"}\n')
    with pytest.raises(ConfigError, match="Next: mend it, or ") as raised:
        Jsonl(path)
    with pytest.warns(UserWarning, match="1 lines left out"):
        assert len(eval(str(raised.value).partition("mend it, or ")[2][:-1], {"lab": lab}).problems) == 1


def test_problems_and_their_verifier(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps({**GOOD, "prompt": f"{i}+0=", "answer": i}) + "\n" for i in range(40)))
    task = Jsonl(path, verifier=lambda problem, text: text == problem.answer)
    drawn = task.sample(np.random.default_rng(0), 30)
    assert {p.prompt for p in drawn} < {f"{i}+0=" for i in range(40)} and all(
        p.detail == {"source": "book"} for p in drawn
    )
    assert (
        task.reward(drawn[0], drawn[0].answer).value == 1
        and Jsonl(path).reward(drawn[0], "#" + drawn[0].answer).value == 1
    )
    with pytest.raises(UnknownNameError, match="exact"):
        Jsonl(path, verifier="exactly")
    with pytest.raises(ConfigError, match="There is no file"):
        Jsonl(tmp_path / "none.jsonl")
    path.write_text("\n")
    with pytest.raises(ConfigError, match="no problem in it"):
        Jsonl(path)


@pytest.mark.parametrize("field", ["prompt", "answer"])
def test_half_of_a_character_is_refused_where_it_is_read(tmp_path, field):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps({**GOOD, field: "ab\ud83d"}) + "\n")
    with pytest.raises(ConfigError, match=rf"line 2: '{field}' has half of a character, '\\ud83d' at 2"):
        Jsonl(path)


def test_a_prompt_that_leaves_no_room_for_an_answer_is_named_by_its_line(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n" + json.dumps({**GOOD, "prompt": "1" * 200_000}) + "\n")
    with pytest.raises(ConfigError, match=r"problems\.jsonl, line 3: the prompt has 200,000 tokens, .* 512 together") as raised:
        GRPOConfig(env=str(path))
    expression = str(raised.value).partition("such lines out: ")[2][:-1]
    with pytest.warns(UserWarning, match=r"line 3: 'prompt' has 200,000 characters, and max_prompt is 511"):
        task = eval(expression, {"lab": lab})
    assert GRPOConfig(env=task).task().lines == [1]
    Jsonl(path).check_fits(512, tokens=lambda text: len(text) // 1000)  # as the tokenizer of a large model counts


def test_the_source_is_the_file_as_it_was_read(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(GOOD) + "\n")
    task = Jsonl(path)
    path.write_text(json.dumps({**GOOD, "answer": 3}) + "\n")
    assert task.source["problems"] == 1 and task.source["blake2b"] != Jsonl(path).source["blake2b"]
    path.write_text(json.dumps(GOOD) + "\n")
    assert pickle.loads(pickle.dumps(task)).source == Jsonl(path).source
