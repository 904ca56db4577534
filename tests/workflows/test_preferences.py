"""Nodes of preferences and of distillation: rows and masks of pairs, ends of rows, advantages of a teacher."""

import asyncio

import numpy as np
import pytest

from stretto.errors import DataError
from stretto.testing import make_batch, make_group, make_prompt
from stretto.types import Batch, Column, Distribution, Prompt, UpdateReport
from stretto.workflows.nodes import (
    demonstrate,
    distribution,
    fit_reward,
    learn_distribution,
    prefer,
    teacher_advantages,
    update_preferences,
)
from stretto.workflows.preferences import closed, preferred


class Tokens:
    """A character is its code; what ends an answer is one token of a text, two of messages."""

    draw, eos_id = 5, 2

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(c) for c in text], np.int32)

    def ending(self, prompt) -> np.ndarray:
        return np.array([2] if prompt.messages is None else [10, 3], np.int32)


class Learner:
    """Takes down what it is to learn."""

    model, step = "policy", 0

    def __init__(self) -> None:
        self.taken: list = []

    def learn(self, batch, columns, loss) -> UpdateReport:
        self.taken.append((batch, {c.name: c for c in columns}, loss))
        return UpdateReport(model=self.model, metrics={})


def prompt_of(**data) -> Prompt:
    return Prompt(uid="u", text="u", token_ids=np.array([1, 7], np.int32), data=data)


def pair(**data):
    return asyncio.run(prefer(prompt_of(**data), Tokens()))


def test_a_pair_is_a_group_of_two_demonstrations():
    group = pair(chosen="ab", rejected="")
    chosen, rejected = group.trajectories
    assert (chosen.key.sample, rejected.key.sample, group.draw) == (0, 1, 5)
    assert chosen.token_ids_T.tolist() == [1, 7, 97, 98, 2] and chosen.mask_T.tolist() == [0, 0, 1, 1, 1]
    assert rejected.token_ids_T.tolist() == [1, 7, 2] and rejected.mask_T.tolist() == [0, 0, 1]
    assert chosen.versions == () and not chosen.logprobs_T.any() and chosen.reward is None
    assert (chosen.text, rejected.text) == ("ab", "")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"chosen": "a"}, r"prompt 'u' has no rejected answer.* \(prompts.rejected names the column\)"),
        ({"rejected": "a"}, "has no chosen answer"),
        ({"chosen": "a", "rejected": 3}, "has a rejected answer of type int"),
    ],
)
def test_a_prompt_without_two_answers_is_named(data, message):
    with pytest.raises(DataError, match=message):
        pair(**data)


def test_the_chosen_answer_is_demonstrated_where_there_is_no_other():
    shown = asyncio.run(demonstrate(prompt_of(chosen="a", rejected="b"), Tokens()))
    assert shown.trajectories[0].text == "a"
    shown = asyncio.run(demonstrate(prompt_of(answer=7, chosen="a", rejected="b"), Tokens()))
    assert shown.trajectories[0].text == "7"


def test_a_closed_row_has_one_more_token_to_be_valued_at():
    batch = Batch(groups=(pair(chosen="ab", rejected="c"),))
    ends = closed(batch)
    for row, longer in zip(batch.trajectories, ends.trajectories, strict=True):
        assert longer.token_ids_T[:-1].tolist() == row.token_ids_T.tolist()
        assert longer.mask_T.tolist() == [*row.mask_T, 1]
    assert ends.keys == batch.keys


def test_a_reward_model_is_trained_at_the_ends_alone():
    learner = Learner()
    fit_reward(Batch(groups=(pair(chosen="ab", rejected="c"),)), learner, center_coef=0.1)
    ((ends, columns, loss),) = learner.taken
    assert (loss.use, loss.unit, dict(loss.settings)) == ("bradley_terry", "group", {"center_coef": 0.1})
    lasts = ends.offsets[1:] - 1
    assert np.flatnonzero(columns["weights"].values).tolist() == lasts.tolist()
    assert columns["weights"].values[lasts].tolist() == [0.5, 0.5]
    assert columns["preferred"].values[lasts].tolist() == [1, -1]


def test_dpo_weighs_pairs_alike_whatever_their_lengths():
    groups = tuple(
        asyncio.run(prefer(prompt_of(chosen=c, rejected=r), tokens))
        for tokens, (c, r) in zip((_at(3), _at(4)), (("a" * 9, "b"), ("c", "d")), strict=True)
    )
    batch, learner = Batch(groups=groups), Learner()
    ref = Column.per_token("ref_logprobs", batch, np.zeros(batch.num_tokens))
    update_preferences(batch, ref, learner, beta=0.2, loss="hinge")
    ((_, columns, loss),) = learner.taken
    assert (loss.use, loss.unit) == ("dpo", "group")
    assert dict(loss.settings) == {"beta": 0.2, "kind": "hinge", "label_smoothing": 0.0}
    draws = np.repeat([key.draw for key in batch.keys], np.diff(batch.offsets))
    assert [columns["weights"].values[draws == draw].sum() for draw in (3, 4)] == pytest.approx([0.5, 0.5])


def _at(draw: int) -> Tokens:
    tokens = Tokens()
    tokens.draw = draw
    return tokens


def test_what_is_no_pair_is_refused():
    with pytest.raises(DataError, match=r"a group of 3 \(draw 0\), and a pair is two rows"):
        preferred(Batch(groups=(make_group(rewards=(0.0, 0.0, 0.0)),)))


def test_a_teachers_advantages_are_its_logprobs_less_the_samplers():
    batch = make_batch()
    values = np.where(batch.mask, -0.25, np.nan).astype(np.float32)
    credit = teacher_advantages(batch, Column.per_token("ref_logprobs", batch, values))
    sampled = np.concatenate([t.logprobs_T for t in batch.trajectories])
    expected = np.where(batch.mask, -0.25 - sampled.astype(np.float64), 0)
    np.testing.assert_allclose(credit.advantages.values, expected, atol=1e-7)
    assert credit.metrics["divergence"].value == pytest.approx(-expected.sum() / batch.num_written)
    assert credit.returns is None


def test_a_distribution_is_a_name_that_the_loss_is_told():
    class Teacher:
        model = "teacher"

    learner, batch = Learner(), make_batch()
    taught = distribution(batch, Teacher())
    assert taught == Distribution(model="teacher")
    learn_distribution(batch, taught, learner)
    ((_, columns, loss),) = learner.taken
    assert (loss.use, loss.teachers, loss.unit) == ("distill", ("teacher",), "row")
    assert set(columns) == {"weights"}


def test_prompts_of_rewards_have_no_pairs():
    with pytest.raises(DataError, match="has no chosen answer"):
        asyncio.run(prefer(make_prompt(), Tokens()))
