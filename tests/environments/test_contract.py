"""What an environment is: how it is found, called and read, and that its random numbers are its attempt's."""

import asyncio
import random
import re

import numpy as np
import pytest

from stretto.environments.contract import Stage, resolve_environment, said_of
from stretto.environments.faults import Fault
from stretto.errors import ConfigError
from stretto.testing import make_prompt
from stretto.types import Message


def ask(made, *verbs, seed=7, **settings):
    """The answers of one episode to ``verbs`` (a text is a reply)."""

    async def main():
        stage = Stage(made, settings)
        answers = []
        for verb in verbs:
            known = verb if verb in ("start", "end") else "reply"
            argument = make_prompt() if verb == "start" else verb
            answers.append(await stage.call(1, known, argument, seed))
        return answers

    return asyncio.run(main())


def saying(value, score=None):
    class Says:
        def __init__(self, prompt):
            self.prompt = prompt

        def start(self):
            return None

        def reply(self, text):
            return value

        def score(self):
            return score

    return Says


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("again", "again"),
        (None, None),
        ({"role": "user", "content": "no"}, (Message(role="user", content="no"),)),
        (Message(role="tool", content="4"), (Message(role="tool", content="4"),)),
        ([Message(role="tool", content="4"), {"role": "user", "content": "?"}], 2),
    ],
)
def test_what_may_be_said(value, said):
    first, reply = ask(saying(value), "start", "x")
    assert first is None
    heard = said_of(reply)
    assert heard == said or len(heard) == said


@pytest.mark.parametrize("value", [3, b"x", [], ["x"], {"role": "user"}, [{"role": "user", "content": 1}], {1, 2}])
def test_nonsense_is_a_fault(value):
    _, fault = ask(saying(value), "start", "x")
    assert isinstance(fault, Fault)
    assert "it returned" in fault.cause and '"role": ..., "content": ...' in fault.cause


@pytest.mark.parametrize(
    ("score", "read"), [(1, 1.0), (np.float32(0.5), 0.5), ({"a": 1, "b": None}, {"a": 1.0, "b": None})]
)
def test_scores(score, read):
    assert ask(saying(None, score), "start", "end")[-1] == read


@pytest.mark.parametrize("score", ["1", float("nan"), {"a": float("inf")}, [1.0], {3: 1.0}])
def test_a_score_is_a_finite_number(score):
    fault = ask(saying(None, score), "start", "end")[-1]
    assert isinstance(fault, Fault) and "its score() returned" in fault.cause


def test_settings_async_methods_and_close():
    seen = []

    class Slow:
        def __init__(self, prompt, low, high=9):
            self.range = (low, high)

        async def start(self):
            await asyncio.sleep(0)
            return f"{self.range}"

        async def reply(self, text):
            return None

        async def score(self):
            return {"x": 1}

        def close(self):
            seen.append("closed")

    assert ask(Slow, "start", "x", "end", low=2) == ["(2, 9)", None, {"x": 1.0}]
    assert seen == ["closed"]


def test_random_numbers_are_the_attempts_own():
    class Dice:
        def __init__(self, prompt):
            self.first = random.random()

        def start(self):
            return f"{self.first} {random.random()} {np.random.rand()}"

        def reply(self, text):
            return None

    random.seed(1)
    before = random.getstate()
    assert ask(Dice, "start", seed=5) == ask(Dice, "start", seed=5) != ask(Dice, "start", seed=6)
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (lambda prompt: 3, "it made a int, which has no method start"),
        (lambda: 3, "takes 0 positional arguments"),
    ],
)
def test_a_factory_that_makes_no_environment(made, cause):
    (fault,) = ask(made, "start")
    assert isinstance(fault, Fault) and cause in fault.cause


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("game", "is not module:Class"),
        ("python:Game", "passed to stretto.train"),
        ("not_there:Game", "there is no module 'not_there'"),
        ("json:JSONDecodr", "has no 'JSONDecodr'. Did you mean 'JSONDecoder'?"),
        ("json:JSONDecoder", "has no method start and no method reply"),
        ("math:pi", "is a float, not a class"),
    ],
)
def test_names_that_are_no_environment(use, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolve_environment(use)
