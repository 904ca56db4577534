"""The contract of a reward: what counts as a number, what as a failure, and how rewards are found."""

import asyncio
import math
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.environments.faults import Fault
from stretto.environments.rewards import Part, Rewards, bind, reward_name
from stretto.environments.rewards.builtin import BUILTIN
from stretto.environments.rewards.calling import Calls, call_rewards, read_answer, settle
from stretto.environments.rewards.contract import Signature
from stretto.environments.rewards.resolve import resolve_reward
from stretto.errors import ConfigError
from stretto.types import Occasion

EXACT = BUILTIN["exact_match"]()


def call(reward, group, settled=False):
    """What the reward gives for each sibling, or the Fault; awaited if ``settled``."""
    rewards = Rewards(parts=(bind(reward),))
    called = call_rewards(rewards, group, Occasion())
    if settled and not isinstance(called, Fault):
        called = asyncio.run(settle(rewards, called, group))
    return called if isinstance(called, Fault) else called[0].values


def named(name):
    """Rewards of one part, whose values are given rather than called for."""
    signature = Signature(form="trajectory", names=frozenset({"prompt", "trajectory"}), plain=True)
    return Rewards(parts=(Part(name=name, function=print, signature=signature),))


def read(values, group):
    """The scores in ``values`` by the name "r", or the Fault."""
    rewards = named("r")
    part = rewards.parts[0]
    answer = read_answer(rewards, [Calls(part=part, whole=False, values=values, contexts=[])], group)
    return answer if isinstance(answer, Fault) else answer.rows


def total(scores):
    return named("r").total(scores)


def test_exact_match_strips_and_reads_answers_that_are_no_strings(make_group):
    group = make_group(texts=("12", " 12\n", "012", ""), answer=12)
    assert call(EXACT, group) == [1.0, 1.0, 0.0, 0.0]


def test_exact_match_without_an_answer_is_a_failure_not_a_zero(make_group):  # pitfall 2
    fault = call(EXACT, make_group())
    assert isinstance(fault, Fault)
    assert fault.cause == (
        "the prompt 'p0' has no answer to match. Give every prompt an answer, or use another reward."
    )


@pytest.mark.parametrize(
    ("value", "scores", "reward"),
    [
        (0.5, {"r": 0.5}, 0.5),
        (True, {"r": 1.0}, 1.0),
        (3, {"r": 3.0}, 3.0),
        (np.float32(0.25), {"r": 0.25}, 0.25),
        (np.bool_(True), {"r": 1.0}, 1.0),
        (Fraction(1, 4), {"r": 0.25}, 0.25),
        ({"a": 1, "b": None, "c": False}, {"a": 1.0, "b": None, "c": 0.0}, 1.0),
    ],
)
def test_numbers(make_group, value, scores, reward):
    rows = read([value], make_group(texts=("x",)))
    assert rows == [scores]
    assert all(s is None or type(s) is float for s in rows[0].values())
    assert total(rows[0]) == reward


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (math.nan, "it returned nan. Return a finite number"),
        (np.float64("inf"), "it returned inf. Return a finite number"),
        (10**400, "Return a finite number"),
        ("1.0", "it returned '1.0', a str. Return a number"),
        (np.ones(1), "a ndarray"),
        ({"a": "x"}, "it returned 'x', a str"),
        ({1: 0.5}, "a dict with the key 1. Keys are names"),
        (None, "it returned None: no reward applies. Return a number on every path through it."),
        ({}, "it returned {}: no reward applies. Return a number for at least one name."),
        ({"a": None}, "no reward applies"),
        (1e39, "it returned 1e+39, beyond what float32 holds. Return a smaller number."),
        ({"a": 3e38, "b": 3e38}, "whose sum is beyond what float32 holds"),
        ([1.0], "a list"),
    ],
)
def test_what_is_no_number_is_a_failure(make_group, value, cause):  # pitfall 2
    fault = read([1.0, value], make_group())
    assert isinstance(fault, Fault)
    assert cause in fault.cause
    assert fault.sample == 1


def test_a_value_that_raises_when_it_is_looked_at_is_a_failure(make_group):
    class Spiteful:
        def __repr__(self):
            raise KeyError("no")

    fault = read([Spiteful()], make_group(texts=("x",)))
    assert isinstance(fault, Fault)
    assert "KeyError: 'no'" in fault.cause


@given(st.dictionaries(st.text(min_size=1), st.none() | st.floats(-1e6, 1e6), min_size=1))
def test_the_reward_is_the_sum_of_what_applies(scores):
    applies = [s for s in scores.values() if s is not None]
    assert total(scores) == pytest.approx(sum(applies))
    assert total(dict(reversed(scores.items()))) == total(scores)


def test_a_failure_names_the_error_the_line_and_the_sibling(make_group):
    def reward(prompt, trajectory):
        return 1 / 0 if trajectory.text == "b" else 1.0

    fault = call(reward, make_group())
    assert isinstance(fault, Fault)
    assert fault.cause.startswith("ZeroDivisionError: division by zero (")
    assert "test_rewards_reading.py:" in fault.cause
    assert fault.sample == 1
    assert "1 / 0" in fault.traceback


def test_leaving_the_process_is_a_failure(make_group):
    def reward(prompt, trajectory):
        raise SystemExit(0)

    assert "SystemExit" in call(reward, make_group()).cause


def test_async_rewards_wait_at_the_same_time_and_keep_their_order(make_group):
    waiting = []

    async def reward(prompt, trajectory):
        waiting.append(trajectory.text)
        while len(waiting) < 3:
            await asyncio.sleep(0)
        if trajectory.text == "c":
            await asyncio.sleep(0.01)
        return float(ord(trajectory.text))

    group = make_group(texts=("c", "a", "b"))
    assert call(reward, group, settled=True) == [99.0, 97.0, 98.0]


def test_of_several_async_failures_the_first_sibling_is_told(make_group):
    async def reward(prompt, trajectory):
        await asyncio.sleep(0.02 if trajectory.text == "b" else 0)
        raise ValueError(trajectory.text)

    group = make_group(texts=("b", "a"))
    fault = call(reward, group, settled=True)
    assert fault.sample == 0
    assert fault.cause.startswith("ValueError: b")


def test_rewards_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_rewards_for_test.py").write_text("LIMIT = 3\ndef shout(prompt, trajectory):\n    return 1.0\n")
    (tmp_path / "my_broken_rewards.py").write_text("import not_there_at_all\n")
    (tmp_path / "my_unclosed_rewards.py").write_text("LIMIT = 3\ndef shout(\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert resolve_reward("exact_match") == EXACT
    assert reward_name(resolve_reward("my_rewards_for_test:shout")) == "shout"
    for use, message in {
        "exact_mach": "no built-in reward and not module:function. Did you mean 'exact_match'",
        "my_rewards_for_test:shuot": "has no 'shuot'. Did you mean 'shout'",
        "my_rewards_for_test:LIMIT": "is a int, not a function",
        "my_broken_rewards:x": r"cannot be imported .ModuleNotFoundError: No module named 'not_there_at_all'; "
        r".*my_broken_rewards\.py, line 1.\. Install what it imports",
        "my_unwritten_rewards:x": "there is no module 'my_unwritten_rewards'. Check the name",
        "my_unclosed_rewards:x": r"was never closed; .*my_unclosed_rewards\.py, line 2.\. Mend it there",
        "python:mine": "was passed to stretto.train, and it cannot be found by name",
    }.items():
        with pytest.raises(ConfigError, match=message):
            resolve_reward(use)


def test_names_of_rewards():
    class Judge:
        def __call__(self, prompt, trajectory):
            return 1.0

    assert reward_name(total) == "total"
    assert reward_name(partial(partial(total))) == "total"
    assert reward_name(Judge()) == "Judge"
