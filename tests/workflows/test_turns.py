"""Attempts of several turns: masks, budgets, parts; and that each attempt counts once however many parts it has."""

import asyncio

import numpy as np
import pytest

from stretto.algorithms.advantages import gae_credit, group_credit
from stretto.algorithms.aggregation import aggregation_weights
from stretto.config.algorithms.estimators import GaeConfig, GroupAdvantages
from stretto.config.rewards import RewardConfig
from stretto.environments.judge import RewardJudge
from stretto.environments.rewards.builtin.played import EnvironmentScore
from stretto.errors import DataError, RewardError
from stretto.plane.local import LocalPlane
from stretto.roles import Completion, TurnBudget
from stretto.runtime.drawn import Drawn
from stretto.runtime.recording import batch_metrics
from stretto.store.rollouts import decode_group, encode_group
from stretto.testing import FakeEnvironment, make_prompt, same
from stretto.types import Batch, Column, Group, Message, Prompt, Span
from stretto.workflows.nodes import charge_overlong, rollout

EOS = 2


class Tokens:
    """A character is a token. ``rewrites``: the template forgets what the policy wrote before its last turn."""

    draw, eos_id = 5, EOS

    def __init__(self, rewrites: bool = False) -> None:
        self.rewrites = rewrites

    def encode(self, text):
        return np.array([ord(c) for c in text], np.int32)

    def decode(self, token_ids):
        return "".join(chr(i) for i in token_ids if i != EOS)

    def encode_chat(self, messages):
        return self.encode("".join(f"<{m.role[0]}>{m.content}" for m in messages) + "<a>")

    def continue_chat(self, token_ids, before, written, then):
        if self.rewrites:
            return None
        return self.encode("".join(f"<{m.role[0]}>{m.content}" for m in then) + "<a>")


class Generator:
    """Writes ``texts`` by turn, each with an end token if the budget leaves room for it."""

    model, draw, temperature = "policy", 5, 0.7

    def __init__(self, *texts: str) -> None:
        self.texts, self.seen = texts, []

    async def complete(self, token_ids, *, samples, turn=0, max_tokens=None):
        self.seen.append((turn, len(token_ids), max_tokens))
        whole = np.array([*map(ord, self.texts[turn]), EOS], np.int32)
        ids = whole[:max_tokens]
        yield Completion(
            index=0,
            token_ids_T=ids,
            logprobs_T=np.full(len(ids), -0.5 - turn, np.float32),
            versions=(Span(3, len(ids)),),
            finish="stop" if len(ids) == len(whole) else "length",
        )


def says(*replies, first=None):
    class Says:
        def __init__(self, prompt):
            self.left = list(replies)

        def start(self):
            return first

        def reply(self, text):
            return self.left.pop(0)

        def score(self):
            return 0.25

    return Says


def play(generator, made, *, prompt=None, tokens=None, n=1, **budget) -> Group:
    budget = TurnBudget(**{"max_turns": 5, "max_total_tokens": 100, **budget})
    prompt = prompt or make_prompt(token_ids=[1, EOS])
    return asyncio.run(rollout(prompt, generator, tokens or Tokens(), FakeEnvironment(made, budget), n=n))


CHAT = Prompt(uid="c", text="c", token_ids=np.array([7], np.int32), messages=(Message(role="user", content="hi"),))


def test_a_row_is_what_was_read_and_what_was_written():  # pitfalls 14, 15
    group = play(Generator("ab", "c"), says("xyz", None, first="?"), n=2)
    assert [t.key.sample for t in group.trajectories] == [0, 1]
    t = group.trajectories[1]
    assert t.token_ids_T.tolist() == [1, EOS, 63, 97, 98, EOS, 120, 121, 122, 99, EOS]
    assert t.mask_T.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1]
    assert t.logprobs_T.tolist() == [0, 0, 0, -0.5, -0.5, -0.5, 0, 0, 0, -1.5, -1.5]
    assert (t.versions, t.finish, t.text, t.temperature) == ((Span(3, 5),), "env", "c", 0.7)
    assert [(m.role, m.content) for m in t.messages] == [
        ("user", "?"), ("assistant", "ab"), ("user", "xyz"), ("assistant", "c"),
    ]  # fmt: skip
    assert t.info["truncated"] is False and EnvironmentScore()(group.prompt, t) == 0.25
    back = decode_group(encode_group(group))
    assert same(group, back) and back.trajectories[1].messages == t.messages


@pytest.mark.parametrize(
    ("keys", "turns", "length"),
    [
        ({"max_turns": 2}, 2, 2 + 3 + 2 + 3),  # the last reply is heard by nobody
        ({"max_total_tokens": 7}, 1, 2 + 3),  # a reply that leaves nothing to write is not read
        ({"max_total_tokens": 8}, 2, 8),  # one token is left for the second turn
        ({"max_total_tokens": 4}, 1, 4),
    ],
)
def test_budgets_end_an_attempt_and_say_so(keys, turns, length):  # pitfall 26
    (t,) = play(Generator("ab", "cd", "ef"), says("xy", "xy", "xy", None), **keys).trajectories
    assert (t.finish, t.info["truncated"], len(t.token_ids_T)) == ("length", True, length)
    assert sum(m.role == "assistant" for m in t.messages) == turns
    metrics = batch_metrics([Drawn.of(5, {"g": Group(draw=5, prompt=make_prompt(), trajectories=(t,))}, LocalPlane())])
    assert metrics["batch/truncated"].value == 1.0 and metrics["batch/turns"].value == turns


def test_a_start_that_fills_the_budget_leaves_nothing_written():  # pitfall 26
    (t,) = play(Generator("ab"), says(None, first="x" * 98)).trajectories
    assert (t.num_written, t.finish, t.versions) == (0, "length", ())


@pytest.mark.parametrize(("on_length", "turns"), [("end", 1), ("reply", 2)])
def test_a_completion_that_was_cut(on_length, turns):
    class Short(Generator):
        async def complete(self, token_ids, *, samples, turn=0, max_tokens=None):
            async for completion in super().complete(token_ids, samples=samples, turn=turn, max_tokens=2):
                yield completion

    (t,) = play(Short("ab", "cd"), says("xy", None), on_length=on_length).trajectories
    assert sum(m.role == "assistant" for m in t.messages) == turns
    assert t.finish == ("length" if on_length == "end" else "env")


def test_chat_goes_on_by_the_template():
    (t,) = play(Generator("ab", "c"), says("no", None), prompt=CHAT).trajectories
    assert "".join(map(chr, t.token_ids_T)) == "\x07ab\x02<u>no<a>c\x02"
    assert t.mask_T.tolist() == [0, 1, 1, 1, *[0] * 8, 1, 1]


def test_a_template_that_rewrites_the_past_begins_a_new_part():  # pitfall 16
    group = play(Generator("ab", "c"), says("no", None), prompt=CHAT, tokens=Tokens(rewrites=True))
    first, last = group.trajectories
    assert [t.key.part for t in group.trajectories] == [0, 1]
    assert "".join(map(chr, first.token_ids_T)) == "\x07ab\x02" and first.mask_T.tolist() == [0, 1, 1, 1]
    assert "".join(map(chr, last.token_ids_T)) == "<u>hi<a>ab<u>no<a>c\x02"
    assert last.num_written == 2 and last.logprobs_T[-2:].tolist() == [-1.5, -1.5]
    assert [m.content for m in last.messages] == ["ab", "no", "c"]
    assert group.attempts == (last,)


def test_text_prompts_are_answered_with_text():
    with pytest.raises(DataError, match="it returned messages"):
        play(Generator("ab"), says((Message(role="user", content="x"),)))


def test_a_reward_without_an_environments_score():
    (t,) = play(Generator("ab"), says(None)).trajectories
    with pytest.raises(RewardError, match="its environment gave no score"):
        EnvironmentScore()(make_prompt(), type(t)(**{f: getattr(t, f) for f in t.__slots__} | {"info": {}}))


# --- several parts -------------------------------------------------------------------------------------------------


def parted() -> Group:
    """Four attempts; the first has two parts."""
    two = play(Generator("ab", "c"), says("no", None), prompt=CHAT, tokens=Tokens(rewrites=True))
    ones = play(Generator("ab"), says(None), prompt=CHAT, n=4).trajectories[1:]
    return Group(draw=5, prompt=CHAT, trajectories=(*two.trajectories, *ones))


def judged(group: Group, reward) -> Group:
    return asyncio.run(RewardJudge(RewardConfig(workers=0), reward).judge(group))


def test_parts_are_judged_once_and_share_the_reward():
    seen = []

    def reward(prompt, trajectory):
        seen.append(trajectory.key.part)
        return float(trajectory.key.sample)

    group = judged(parted(), reward)
    assert seen == [1, 0, 0, 0]
    assert [t.reward for t in group.trajectories] == [0.0, 0.0, 1.0, 2.0, 3.0]
    metrics = batch_metrics([Drawn.of(5, {"g": group}, LocalPlane())])
    assert (metrics["reward/mean"].value, metrics["batch/trajectories"].value) == (1.5, 5)


def test_an_attempt_counts_once_in_its_group():  # pitfall 28
    batch = Batch(groups=(judged(parted(), lambda p, t: float(t.key.sample)),))
    credit = group_credit(batch, GroupAdvantages(epsilon=0.0))
    expected = (np.arange(4) - 1.5) / np.std(np.arange(4), ddof=1)
    for index, attempt in enumerate([0, 0, 1, 2, 3]):
        row, mask = credit.advantages.row(index), batch.trajectories[index].mask_T
        assert np.allclose(row[mask == 1], expected[attempt]) and not row[mask == 0].any()
    weights = aggregation_weights(batch, "seq_mean_token_mean")
    assert np.isclose(sum(weights.row(i).sum() for i in (0, 1)), 0.25)
    assert np.isclose(weights.values.sum(), 1.0)


def test_parts_are_charged_for_the_length_of_their_attempt():
    group = judged(parted(), lambda p, t: 1.0)
    assert [t.num_written for t in group.trajectories] == [3, 2, 3, 3, 3]
    charged = asyncio.run(charge_overlong.function(group, max_tokens=6, buffer=4))
    assert [t.reward for t in charged.trajectories] == [0.25, 0.25, 0.75, 0.75, 0.75]


def test_gae_runs_through_the_parts_of_an_attempt():
    batch = Batch(groups=(judged(parted(), lambda p, t: float(t.key.sample == 0)),))
    values = Column.per_token("values", batch, np.zeros(batch.num_tokens))
    credit = gae_credit(batch, values, GaeConfig(lam=0.5, whiten=False))
    first, last = (credit.advantages.row(i)[batch.trajectories[i].mask_T == 1] for i in (0, 1))
    assert [*first, *last] == [0.0625, 0.125, 0.25, 0.5, 1.0]
