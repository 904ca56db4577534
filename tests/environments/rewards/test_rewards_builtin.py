"""The built-in rewards: what each gives, what it refuses before a run, and what its settings may be."""

import asyncio
import json
import signal
import threading
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.config.rewards import RewardConfig
from stretto.environments.faults import Fault
from stretto.environments.judge import GroupDropped, RewardJudge
from stretto.environments.rewards.builtin.numeric import last_number
from stretto.environments.rewards.calling import call_rewards, read_answer
from stretto.environments.rewards.resolve import resolve_rewards
from stretto.errors import ConfigError, DataError
from stretto.types import Occasion, Prompt


def rewards_of(use, settings):
    return resolve_rewards(RewardConfig.model_validate({"use": use, "with": settings}))


def answer_of(judged, use, **settings):
    rewards = rewards_of(use, settings)
    called = call_rewards(rewards, judged, Occasion())
    return called if isinstance(called, Fault) else read_answer(rewards, called, judged)


def scores(judged, use, **settings):
    answer = answer_of(judged, use, **settings)
    assert not isinstance(answer, Fault), answer.cause
    return [row[use] for row in answer.rows]


def refuses(error, message, use, prompts=(), **settings):
    with pytest.raises(error, match=message):
        rewards_of(use, settings).check(prompts)


def test_exact_match(make_group):
    group = make_group(
        texts=("Paris", " paris ", "<answer>Paris</answer>", "x <answer>\nParis</answer> y"), answer="Paris"
    )
    assert scores(group, "exact_match") == [1.0, 0.0, 0.0, 0.0]
    assert scores(group, "exact_match", ignore_case=True) == [1.0, 1.0, 0.0, 0.0]
    assert scores(group, "exact_match", inside="answer") == [0.0, 0.0, 1.0, 1.0]
    assert scores(group, "exact_match", inside="answer", strip=False) == [0.0, 0.0, 1.0, 0.0]
    assert scores(make_group(texts=("b",), solution="b"), "exact_match", answer="solution") == [1.0]
    refuses(DataError, "the prompt 'p0' has no answer to match", "exact_match", [make_group().prompt])
    refuses(DataError, "the prompt 'p0' has no 'x' to compare", "exact_match", [make_group().prompt], answer="x")


NUMBERS = {
    "42": 42,
    "so 7 * 6 = 42.": 42,
    "1,234.50 dollars": "1234.50",
    "$1,000,000": 1000000,
    "10-4": 4,
    "x = -4": -4,
    "\u22124": -4,
    "+3": 3,
    ".5": "0.5",
    "-.5": "-0.5",
    "1e3": 1000,
    "3 apples, then 4\n#### 12\nand 5 more": 12,
    "#### 1 #### 2": 2,
    r"\boxed{7} of 8": 7,
    r"\boxed{\text{about } {1{,}200}} of 8": 1200,
    r"open \boxed{7": 7,
    "1,2": 2,
    "1234,567": 567,
    "12%": 12,
    "none": None,
    "#### none 1": 1,
    "####": None,
    "": None,
}


@pytest.mark.parametrize(("text", "number"), NUMBERS.items())
def test_the_number_of_a_text(text, number):
    assert last_number(text) == (None if number is None else Decimal(number))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9))
def test_a_number_is_found_again(value):
    assert last_number(f"it is {value:,} in all") == value
    assert last_number(rf"3 then \boxed{{{value}}} and 4") == value


@given(st.text())
def test_any_text_has_a_number_or_none(text):
    number = last_number(text)
    assert number is None or number.is_finite()


def test_number(make_group):
    texts = ("The answer is 1,042.", r"\boxed{1042.0}", "1042 or 1043", "no idea", "#### 1042")
    group = make_group(texts=texts, answer="500 + 542 = 1042\n#### 1,042")
    assert scores(group, "number") == [1.0, 1.0, 0.0, 0.0, 1.0]
    assert scores(group, "number", marked=True) == [0.0, 1.0, 0.0, 0.0, 1.0]
    assert scores(group, "number", tolerance=1.0) == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert scores(make_group(texts=("4", "5"), answer=5), "number") == [0.0, 1.0]
    refuses(
        DataError, "answer of the prompt 'p0' has no number in it .'none'", "number", [make_group(answer="none").prompt]
    )
    refuses(ConfigError, "tolerance=-1", "number", tolerance=-1.0)


def test_regex(make_group):
    group = make_group(texts=("Answer: 4\nAnswer: 5", "answer: 5", "5"), answer="5")
    assert scores(group, "regex", pattern=r"Answer: \d") == [1.0, 0.0, 0.0]
    assert scores(group, "regex", pattern=r"Answer: (\d)", group=1) == [1.0, 0.0, 0.0]
    assert scores(group, "regex", pattern=r"answer: (?P<n>\d)", group="n", ignore_case=True) == [1.0, 1.0, 0.0]
    assert scores(group, "regex", pattern=r"\d", where="whole") == [0.0, 0.0, 1.0]
    assert scores(group, "regex", pattern=r"answer", where="start") == [0.0, 1.0, 0.0]
    assert scores(group, "regex", pattern=r"4.*5", dot_all=True) == [1.0, 0.0, 0.0]
    refuses(ConfigError, "has a pattern that is none", "regex", pattern="(")
    refuses(ConfigError, "group='m', and its pattern names no such", "regex", pattern="(?P<n>x)", group="m")
    refuses(ConfigError, "group=2, and its pattern has 1", "regex", pattern="(x)", group=2)
    refuses(ConfigError, r"reward\.with\.pattern is missing", "regex")
    refuses(DataError, "has no answer", "regex", [make_group().prompt], pattern="(x)", group=1)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "t": {"type": "array", "items": {"type": "string"}}},
    "required": ["n"],
}


def test_json_schema(make_group, tmp_path):
    texts = (
        '{"n": 1}',
        'Here:\n```json\n{"n": 2, "t": ["a"]}\n```\nDone',
        '{"n": "1"}',
        "{n: 1}",
        '{"n": NaN}',
        "[" * 9999,
        "",
    )
    group = make_group(texts=texts)
    assert scores(group, "json_schema", schema=SCHEMA) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert scores(group, "json_schema", schema=SCHEMA, fenced=False) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    from_file = rewards_of("json_schema", {"file": str(path)})
    path.unlink()  # read once
    assert read_answer(from_file, call_rewards(from_file, group, Occasion()), group).rows[0] == {"json_schema": 1.0}
    refuses(ConfigError, "exactly one of schema", "json_schema")
    refuses(ConfigError, "has a schema that is none: 'objet' is not valid", "json_schema", schema={"type": "objet"})
    refuses(ConfigError, r"schema\.json of the reward 'json_schema' cannot be read", "json_schema", file=str(path))
    path.write_text("{")
    refuses(ConfigError, "is no JSON", "json_schema", file=str(path))


def test_length_rewards(make_group):
    # By hand: |4 - 8| / 8 off; three words of a target of 2 with width 4.
    assert scores(make_group(), "length", target=8, width=8) == [0.5, 0.5]
    group = make_group(texts=("a b c", "x" * 9))
    assert scores(group, "length", target=2, width=4, unit="words") == [0.75, 0.75]
    assert scores(group, "length", target=5, width=2, unit="characters") == [1.0, 0.0]
    refuses(ConfigError, "width of 1 or more", "length", target=1, width=0)


@pytest.mark.parametrize(("tokens", "reward"), [(1, 0.0), (12, 0.0), (13, -0.25), (14, -0.5), (16, -1.0), (20, -1.0)])
def test_overlong_is_equation_13_of_dapo(make_group, tokens, reward):
    assert scores(make_group(num_tokens=tokens), "overlong", limit=16, buffer=4) == [reward, reward]


def test_overlong_settings():
    refuses(ConfigError, "limit=4, buffer=5", "overlong", limit=4, buffer=5)


def test_tags(make_group):
    texts = (
        "<think>a\nb</think>\n<answer>4</answer>",
        "<think>a</think> so <answer>4</answer>",
        "<answer>4</answer><think>a</think>",
        "<think>a</think><answer>4",
        "<think>a</think><think>b</think><answer>4</answer>",
        "4",
    )
    assert scores(make_group(texts=texts), "tags") == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert scores(make_group(texts=texts), "tags", graded=True) == [1.0, 0.5, 0.5, 0.25, 0.25, 0.0]
    assert scores(make_group(texts=("<a>1</a>",)), "tags", names=["a"]) == [1.0]
    refuses(ConfigError, "without brackets", "tags", names=["<think>"])


def test_repetition(make_group):
    # By hand: "a b a b a" has 4 bigrams, 2 distinct.
    group = make_group(texts=("a b a b a", "a b c", "a", ""))
    assert scores(group, "repetition", ngram=2) == [-0.5, 0.0, 0.0, 0.0]
    assert scores(make_group(texts=("aaaa",)), "repetition", ngram=1, of="characters") == [-0.75]
    assert scores(make_group(texts=("x",)), "repetition", ngram=1, of="tokens") == [0.0]
    refuses(ConfigError, "ngram=0", "repetition", ngram=0)


def test_math(make_group):
    texts = (r"so $\frac{1}{2}$", "0.5", r"\boxed{\frac{2}{4}}", "0.4", "", "nothing here", "<answer>1/2</answer>")
    for answer in (r"\frac{1}{2}", "1/2", r"$\frac12$", r"\boxed{0.5}"):
        group = make_group(texts=texts, answer=answer)
        assert scores(group, "math") == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], answer
    assert scores(group, "math", inside="answer") == [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert answer_of(group, "math").notes[0] == {"logged": {"scorer_raised": [0.0]}}
    refuses(DataError, "math-verify cannot read the answer of the prompt 'p0'", "math", [make_group(answer="").prompt])
    rewards_of("math", {}).check([make_group(answer="3").prompt])


def test_math_sets_no_alarm_and_a_hanging_expression_meets_our_timeout(make_group):  # pitfall 2
    # 9^9^9^9 as an exact number is what math-verify computes without an end.
    outcome = {}

    def loop():
        async def main():
            judge = RewardJudge(RewardConfig(use="math", on_error="drop", timeout_s=1.5))
            try:
                await judge.start()
                with pytest.raises(GroupDropped, match=r"no answer within 1\.5 s"):
                    await judge.judge(make_group(texts=(r"$\sqrt[3]{9^{9^{9^{9}}}}$",), answer=r"$9^{9^{9^{9}}}$"))
                judged = await judge.judge(make_group(texts=("2",), answer="2"))
                outcome["reward"] = judged.trajectories[0].reward
            finally:
                await judge.close()

        asyncio.run(main())

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join(120)
    assert outcome == {"reward": 1.0}

    def here():  # in this process and off the main thread, where an alarm could not even be set
        before = signal.getsignal(signal.SIGALRM)
        outcome["scores"] = scores(make_group(texts=("2", "3"), answer="2"), "math")
        outcome["same"] = signal.getsignal(signal.SIGALRM) == before

    thread = threading.Thread(target=here)
    thread.start()
    thread.join(60)
    assert outcome["scores"] == [1.0, 0.0]
    assert outcome["same"]


# --- reasoning-gym --------------------------------------------------------------------------------------------------


def gym_prompt(task, index=0, **changes):
    import reasoning_gym

    entry = {**reasoning_gym.create_dataset(task, seed=3, size=index + 1)[index], **changes}
    return Prompt(
        uid=f"{task}-{index}",
        text=entry["question"],
        token_ids=np.arange(3, dtype=np.int32),
        data={"answer": entry["answer"], "task": task, "entry": entry, "source": "reasoning_gym"},
    )


def gym_group(make_group, prompt, *texts):
    group = make_group(texts=texts)
    return type(group)(draw=0, prompt=prompt, trajectories=group.trajectories)


def test_reasoning_gym(make_group):
    prompt = gym_prompt("chain_sum")
    gold = prompt.data["answer"]
    group = gym_group(make_group, prompt, gold, f" {gold}\n", "junk", "", f"<answer>{gold}</answer>")
    assert scores(group, "reasoning_gym") == [1.0, 1.0, 0.0, 0.0, 0.15]  # the scorer's own credit for a part
    assert scores(group, "reasoning_gym", inside="answer") == [0.0, 0.0, 0.0, 0.0, 1.0]
    rewards_of("reasoning_gym", {}).check([prompt])


def test_a_scorer_that_raises_on_an_answer_calls_it_wrong_and_is_counted(make_group):  # pitfall 2
    prompt = gym_prompt("prime_factorization")
    group = gym_group(make_group, prompt, prompt.data["answer"], "three times x", "")
    answer = answer_of(group, "reasoning_gym")
    assert [row["reasoning_gym"] for row in answer.rows] == [1.0, 0.0, 0.01]
    assert [note["logged"]["scorer_raised"] for note in answer.notes] == [[0.0], [1.0], [0.0]]
    # Taken off, so that nonsense is worth nothing and the right answer still 1.
    assert scores(group, "reasoning_gym", floor=0.01) == [1.0, 0.0, 0.0]


def test_a_scorer_that_does_not_know_its_own_answer_is_an_error(make_group):  # pitfall 2
    wrong = gym_prompt("countdown", answer="1 + 1")
    refuses(DataError, "countdown gives 0.* to its own gold answer", "reasoning_gym", [wrong])
    raising = gym_prompt("prime_factorization", answer="seven")
    fault = answer_of(gym_group(make_group, raising, "x y"), "reasoning_gym")
    assert isinstance(fault, Fault)
    assert "does not score the gold answer of the prompt 'prime_factorization-0' rightly either" in fault.cause
    refuses(DataError, "raises ValueError.* on its own gold answer", "reasoning_gym", [raising])


def test_tasks_without_a_gold_answer():
    prompt = gym_prompt("propositional_logic")
    refuses(
        DataError, r"propositional_logic has no gold answer.*reward\.with\.unproved=true", "reasoning_gym", [prompt]
    )
    rewards_of("reasoning_gym", {"unproved": True}).check([prompt])


def test_other_prompts_are_refused_by_reasoning_gym(make_group):
    refuses(DataError, "has no task and entry of reasoning-gym", "reasoning_gym", [make_group(answer="1").prompt])
    refuses(ConfigError, "floor=1", "reasoning_gym", floor=1.0)
