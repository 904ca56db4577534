"""Forms of rewards: each recognised by its parameters, called as its home would, and read by the same rules."""

import asyncio
import sys

import pytest

from stretto.config.rewards import RewardConfig
from stretto.environments.faults import Fault
from stretto.environments.judge import RewardJudge
from stretto.environments.rewards import Rewards, bind
from stretto.environments.rewards.calling import call_rewards, read_answer, settle
from stretto.environments.rewards.forms import signature_of
from stretto.environments.rewards.resolve import resolve_rewards
from stretto.errors import ConfigError, DataError, RewardError
from stretto.types import Message, Occasion, Prompt

OCCASION = Occasion(phase="train", step=3, steps=10, seed=7)


def answer_of(reward, group, *, name=None):
    rewards = Rewards(parts=(bind(reward, name),))
    called = call_rewards(rewards, group, OCCASION)
    if not isinstance(called, Fault):
        called = asyncio.run(settle(rewards, called, group))
    return called if isinstance(called, Fault) else read_answer(rewards, called, group)


def scores(reward, group):
    answer = answer_of(reward, group, name="r")
    return answer if isinstance(answer, Fault) else [row["r"] for row in answer.rows]


# --- TRL's, written as its documentation writes them ----------------------------------------------------------------


def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]


def reward_right(prompts, completions, ground_truth, **kwargs):
    assert prompts == ["1+1="] * len(completions)
    return [1.0 if c == g else None for c, g in zip(completions, ground_truth, strict=True)]


def reward_ids(completion_ids, completions, trainer_state):
    assert all(isinstance(i, int) for ids in completion_ids for i in ids)
    return [len(ids) + trainer_state.global_step / trainer_state.max_steps for ids in completion_ids]


def reward_chat(completions, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    return [float(content.startswith("<think>")) for content in contents]


async def reward_async(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return [float(len(p)) for p in prompts]


def test_trl_functions(make_group):
    group = make_group(texts=("a", "bb", "2"), ground_truth="2")
    assert scores(reward_len, group) == [-19.0, -18.0, -19.0]
    assert scores(reward_ids, group) == [1.3, 1.3, 1.3]
    assert scores(reward_async, group) == [4.0, 4.0, 4.0]
    assert "no reward applies" in scores(reward_right, group).cause  # None for all but the last
    assert scores(reward_right, make_group(texts=("2", "2"), ground_truth="2")) == [1.0, 1.0]


def test_a_trl_function_of_a_conversation(make_group):
    group = make_group(texts=("<think>x</think>", "y"))
    messages = (Message(role="user", content="1+1="),)
    prompt = Prompt(uid="p", text="1+1=", token_ids=group.prompt.token_ids, messages=messages)
    group = type(group)(draw=0, prompt=prompt, trajectories=group.trajectories)
    assert scores(reward_chat, group) == [1.0, 0.0]

    def asked(prompts, completions):
        return [float(p == [{"role": "user", "content": "1+1="}]) for p in prompts]

    assert scores(asked, group) == [1.0, 1.0]


def test_what_a_trl_function_may_ask_for(make_group):
    def state(completions, trainer_state, **kwargs):
        return [trainer_state.epoch] * len(completions)

    assert "has global_step and max_steps here, and no 'epoch'" in scores(state, make_group()).cause

    def logs(completions, log_metric, **kwargs):
        log_metric("seen", len(completions))
        return [0.0] * len(completions)

    assert answer_of(logs, make_group()).notes == [{"logged": {"seen": [2.0]}}, {}]

    def extra(completions, log_extra):
        return [0.0] * len(completions)

    with pytest.raises(ConfigError, match="needs log_extra, which only TRL passes"):
        bind(extra)

    missing = Rewards(parts=(bind(reward_right),))
    with pytest.raises(DataError, match="takes the column ground_truth, and the prompt 'p0' has only answer"):
        missing.check([make_group(answer="2").prompt])
    assert "has no ground_truth, which the reward takes as a column" in scores(reward_right, make_group()).cause


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ([1.0], "it returned 1 values for 2 trajectories"),
        (0.5, "it returned 0.5, a float. Return a list of 2"),
        ([1.0, "x"], "it returned 'x', a str"),
        ("xy", "it returned 'xy', a str. Return a list of 2"),
    ],
)
def test_a_wrong_list_is_a_failure(make_group, value, cause):  # pitfall 2
    assert cause in scores(lambda completions: value, make_group()).cause
    assert cause in scores(lambda group: value, make_group()).cause


# --- verl's ---------------------------------------------------------------------------------------------------------


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source not in ("openai/gsm8k", None):
        raise NotImplementedError(f"{data_source=}")
    return 1.0 if solution_str.split("####")[-1].strip() == ground_truth else 0.0


def compute_details(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right = solution_str == ground_truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": solution_str, "index": extra_info["index"]}


def test_verl_functions(make_group):
    group = make_group(
        texts=("so #### 72", "71"),
        data_source="openai/gsm8k",
        reward_model={"style": "rule", "ground_truth": "72"},
        extra_info={"index": 5},
    )
    assert scores(compute_score, group) == [1.0, 0.0]
    answer = answer_of(compute_details, make_group(texts=("72", "x"), answer="72", extra_info={"index": 5}))
    assert answer.rows == [{"compute_details": 1.0}, {"compute_details": -1.0}]
    assert answer.notes[0] == {"logged": {"acc": [1.0], "index": [5.0]}, "extra": {"pred": "72"}}


def test_what_verl_functions_do_wrong(make_group):  # pitfall 2
    assert "NotImplementedError" in scores(compute_score, make_group(data_source="x", answer="1")).cause
    assert "has no ground truth" in scores(compute_score, make_group()).cause

    def no_score(solution_str, ground_truth):
        return {"acc": 1.0}

    assert "a dict without 'score' (acc)" in scores(no_score, make_group(answer="1")).cause

    def odd(solution_str):
        return {"score": 1.0, "set": {1}}

    assert "which cannot be recorded" in scores(odd, make_group(answer="1")).cause


# --- ours -----------------------------------------------------------------------------------------------------------


def test_groups(make_group):
    def ranks(prompt, trajectories):
        order = sorted(len(t.text) for t in trajectories)
        return [order.index(len(t.text)) for t in trajectories]

    async def dicts(group, context):
        context.log("siblings", len(group.trajectories))
        return [{"a": 1.0, "b": None} for _ in group.trajectories]

    assert scores(ranks, make_group(texts=("ccc", "a", "bb"))) == [2.0, 0.0, 1.0]
    answer = answer_of(dicts, make_group())
    assert answer.rows == [{"a": 1.0, "b": None}] * 2
    assert answer.notes == [{"logged": {"siblings": [2.0]}}, {}]


def test_context(make_group):
    def reward(prompt, trajectory, context):
        context.log("length", len(trajectory.text))
        context.log("length", 0)
        return context.step / context.steps + context.seed + context.version + (context.phase == "train")

    answer = answer_of(reward, make_group(texts=("a", "bb")))
    assert answer.rows == [{"reward": 8.3}] * 2
    assert answer.notes == [{"logged": {"length": [1.0, 0.0]}}, {"logged": {"length": [2.0, 0.0]}}]

    def nan(trajectory, context):
        context.log("x", float("nan"))

    assert "it logged 'x' as nan. Log a finite number" in answer_of(nan, make_group()).cause


def test_names_decide_not_places(make_group):
    def swapped(trajectory, prompt):
        return float(len(trajectory.text) + len(prompt.text))

    def alone(trajectory):
        return 1.0

    def keyword(*, prompt, trajectory, context, scale=2.0):
        return scale

    assert scores(swapped, make_group()) == [5.0, 5.0]
    assert scores(alone, make_group()) == [1.0, 1.0]
    assert scores(keyword, make_group()) == [2.0, 2.0]


def test_what_matches_nothing_is_refused_with_the_forms():  # pitfall 25
    def score(answer, text):
        return 1.0

    def needs(prompt, trajectory, scale):
        return scale

    for reward, message in {
        score: r"'score' takes \(answer, text\), which is none of the accepted forms: \(prompt, trajectory\), .*verl's",
        needs: r"nothing is known to pass for scale\. Give it a default or set it in `with:`",
        print: r"'print' takes \(\*args, .*none of the accepted forms",
        (lambda prompt, trajectory, /: 1.0): "by place only",
    }.items():
        with pytest.raises(ConfigError, match=message):
            RewardJudge(RewardConfig(), reward)


def test_reserved_names(make_group):
    with pytest.raises(ConfigError, match="cannot be called 'mean'"):
        bind(lambda prompt, trajectory: 1.0, "mean")
    assert "the key 'max', which metrics have" in scores(lambda trajectory: {"max": 1.0}, make_group()).cause


# --- several --------------------------------------------------------------------------------------------------------


def module_of(tmp_path, monkeypatch, text):
    (tmp_path / "parts_for_test.py").write_text(text)
    monkeypatch.delitem(sys.modules, "parts_for_test", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))


PARTS = """
def right(prompt, trajectory, bonus=0.0):
    return 1.0 + bonus if trajectory.text == prompt.data["answer"] else 0.0

def details(prompt, trajectory):
    return {"x": 1.0, "y": 2.0} if trajectory.text != "b" else None

async def ranks(group):
    return list(range(len(group.trajectories)))

def breaks(trajectory, context):
    context.log("z", 1)
    if trajectory.text == "bad":
        raise ValueError("no")
    return 0.5
"""


def test_parts_with_weights(make_group, tmp_path, monkeypatch):
    module_of(tmp_path, monkeypatch, PARTS)
    config = RewardConfig.model_validate(
        {
            "parts": {
                "right": {"use": "parts_for_test:right", "weight": 2.0, "with": {"bonus": 0.5}},
                "details": {"use": "parts_for_test:details", "weight": 0.1},
                "rank": {"use": "parts_for_test:ranks", "weight": 0},
                "brief": {"use": "length", "weight": -1.0, "with": {"target": 4, "width": 8}},
                "odd": {"use": "parts_for_test:breaks"},
            }
        }
    )
    for workers in (0, 1):
        here = config.model_copy(update={"workers": workers})

        async def main(here=here):
            judge = RewardJudge(here)
            assert judge.name == "right + details + rank + brief + odd"
            try:
                good = await judge.judge(make_group(texts=("a", "b"), answer="a"), OCCASION)
                with pytest.raises(RewardError, match=r"its part 'odd': ValueError: no \(.*parts_for_test\.py:\d+\)"):
                    await judge.judge(make_group(texts=("a", "bad"), answer="a"))
                return good
            finally:
                await judge.close()

        first, second = asyncio.run(main()).trajectories
        assert first.rewards == {"right": 1.5, "details": 3.0, "rank": 0.0, "brief": 1.0, "odd": 0.5}
        assert first.reward == pytest.approx(2 * 1.5 + 0.1 * 3.0 - 1.0 + 0.5)
        assert first.info == {"logged": {"details/x": [1.0], "details/y": [2.0], "odd/z": [1.0]}}
        assert second.rewards == {"right": 0.0, "details": None, "rank": 1.0, "brief": 1.0, "odd": 0.5}
        assert second.reward == -0.5
        # The record alone gives the reward again.
        parts = config.parts
        for t in (first, second):
            assert t.reward == pytest.approx(sum(parts[n].weight * s for n, s in t.rewards.items() if s is not None))


def test_when_no_part_with_a_weight_applies(make_group, tmp_path, monkeypatch):  # pitfall 2
    module_of(tmp_path, monkeypatch, PARTS)
    parts = {"details": {"use": "parts_for_test:details"}, "rank": {"use": "parts_for_test:ranks", "weight": 0}}
    rewards = resolve_rewards(RewardConfig.model_validate({"parts": parts}))
    group = make_group(texts=("b",))
    called = asyncio.run(settle(rewards, call_rewards(rewards, group, OCCASION), group))
    assert "no reward applies" in read_answer(rewards, called, group).cause


def test_settings(tmp_path, monkeypatch):  # pitfall 25
    module_of(
        tmp_path,
        monkeypatch,
        PARTS
        + """
class Threshold:
    def __init__(self, at=3):
        if at < 0:
            raise ValueError("negative")
        self.at = at
    def __call__(self, prompt, trajectory):
        return float(len(trajectory.text) > self.at)
""",
    )
    for given, message in {
        ("exact_match", "ignore_csae", True): r"reward\.with\.ignore_csae is no setting .*Did you mean 'ignore_case'",
        (
            "exact_match",
            "ignore_case",
            "yes",
        ): r"reward\.with\.ignore_case='yes' cannot be used: input should be a valid b",
        ("exact_match", "strip", 1): r"reward\.with\.strip=1 cannot be used",
        ("length", "target", 3): r"reward\.with\.width is missing",
        ("parts_for_test:right", "bouns", 1): r"right has no parameter bouns\. Did you mean 'bonus'",
        ("parts_for_test:right", "foo", 1): r"right has no parameter foo\. Known: bonus\.$",
        ("parts_for_test:details", "foo", 1): r"details has no parameter foo\. It takes no settings: remove it",
        ("parts_for_test:Threshold", "att", 1): r"Threshold has no parameter att\. Did you mean 'at'",
        ("parts_for_test:Threshold", "at", -1): r"Threshold cannot be made with .*ValueError: negative",
    }.items():
        use, name, value = given
        with pytest.raises(ConfigError, match=message):
            resolve_rewards(RewardConfig.model_validate({"use": use, "with": {name: value}}))
    made = resolve_rewards(RewardConfig.model_validate({"use": "parts_for_test:Threshold", "with": {"at": 1}}))
    assert made.name == "Threshold"
    assert made.parts[0].signature.plain
    with pytest.raises(ConfigError, match=r"reward\.parts\.a\.use='exact_mach' is no built-in"):
        resolve_rewards(RewardConfig.model_validate({"parts": {"a": {"use": "exact_mach"}}}))
    with pytest.raises(ConfigError, match=r"a reward was passed, and reward\.parts names others"):
        resolve_rewards(RewardConfig.model_validate({"parts": {"a": {"use": "exact_match"}}}), print)


@pytest.mark.parametrize(
    "reward",
    [lambda p, t: 1.0, lambda _, t: 1.0, lambda _p, traj: 1.0, lambda prompt, t, scale=2: 1.0],
    ids=["letters", "blank", "blanks", "default"],
)
def test_first_letters_of_the_names_will_do(reward):
    signature = signature_of(reward, "short")
    assert (signature.form, signature.plain) == ("trajectory", True)


@pytest.mark.parametrize("reward", [lambda t, p: 1.0, lambda x, y: 1.0, lambda p: 1.0, lambda p, t, z: 1.0])
def test_other_letters_will_not(reward):
    with pytest.raises(ConfigError, match="none of the accepted forms"):
        signature_of(reward, "short")
