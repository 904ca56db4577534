"""Nodes that learn from preferences: a prompt with two answers becomes a group of two, the chosen one first.

Owns how pairs become rows and which column says who was chosen; the losses are ``stretto.algorithms.losses.pairs``.
"""

from dataclasses import replace

import numpy as np

from stretto.algorithms.aggregation import aggregation_weights
from stretto.config.algorithms import PairLossKind
from stretto.errors import DataError
from stretto.graph import node
from stretto.roles import Tokenize, Train
from stretto.types import Batch, Column, Group, Json, Key, LossRef, Prompt, Trajectory, UpdateReport

__all__ = ["closed", "demonstration", "fit_reward", "make_pair", "prefer", "preferred", "update_preferences"]

CHOSEN, REJECTED = 0, 1
"""The samples of a pair."""


@node
async def prefer(prompt: Prompt, tokens: Tokenize) -> Group:
    """The prompt's two answers as trajectories, ``chosen`` (sample 0) and ``rejected`` (sample 1), each with what ends
    it, as ``demonstrate`` makes one."""
    return make_pair(prompt, tokens)


@node
def update_preferences(
    batch: Batch,
    ref: Column,
    model: Train,
    *,
    beta: float = 0.1,
    loss: PairLossKind = "sigmoid",
    label_smoothing: float = 0.0,
) -> UpdateReport:
    """One update that makes the chosen answers of pairs likelier than the rejected ones, measured against ``ref``."""
    settings = {"beta": beta, "kind": loss, "label_smoothing": label_smoothing}
    columns = (ref, preferred(batch), aggregation_weights(batch, "prompt_mean"))
    return model.learn(batch, columns, LossRef(use="dpo", settings=settings, unit="group"))


@node(on="reward")
def fit_reward(batch: Batch, model: Train, *, center_coef: float = 0.0) -> UpdateReport:
    """One update of a reward model: it is to give chosen answers more than rejected ones."""
    ends = closed(batch)
    weights = aggregation_weights(ends, "prompt_mean", keep=_last(ends))
    ref = LossRef(use="bradley_terry", settings={"center_coef": center_coef}, unit="group")
    return model.learn(ends, (preferred(ends), weights), ref)


def make_pair(prompt: Prompt, tokens: Tokenize) -> Group:
    """What ``prefer`` gives. DataError for a prompt without two answers."""
    texts = (_answer(prompt, "chosen"), _answer(prompt, "rejected"))
    trajectories = tuple(demonstration(prompt, text, tokens, sample) for sample, text in enumerate(texts))
    return Group(draw=tokens.draw, prompt=prompt, trajectories=trajectories)


def demonstration(prompt: Prompt, text: str, tokens: Tokenize, sample: int = 0) -> Trajectory:
    """An answer to the prompt as if the policy had written it, with what ends it: what ends a turn by the chat template
    if the prompt is messages, else the end-of-sequence token. It has no sampler's log-probs and no version."""
    written = np.concatenate([tokens.encode(text), tokens.ending(prompt)])
    read = len(prompt.token_ids)
    return Trajectory(
        key=Key(tokens.draw, sample),
        token_ids_T=np.concatenate([prompt.token_ids, written]),
        mask_T=np.repeat(np.array([0, 1], np.uint8), (read, len(written))),
        logprobs_T=np.zeros(read + len(written), np.float32),
        versions=(),
        finish="stop",
        text=text,
    )


def preferred(batch: Batch) -> Column:
    """The Column ``preferred``: 1 on the tokens of chosen answers, -1 on those of rejected ones.

    DataError for a group that is no pair.
    """
    for group in batch.groups:
        samples = [t.key.sample for t in group.trajectories]
        if samples != [CHOSEN, REJECTED]:
            raise DataError(
                f"a loss over pairs was given a group of {len(samples)} (draw {group.draw}), and a pair is two rows: "
                "sample 0, the chosen one, and sample 1. Make groups with prefer(prompt)."
            )
    signs = [1.0 if t.key.sample == CHOSEN else -1.0 for t in batch.trajectories]
    return Column.per_token("preferred", batch, np.repeat(np.asarray(signs, np.float32), np.diff(batch.offsets)))


def closed(batch: Batch) -> Batch:
    """The same rows, each with one token more behind its last, whose value is what a value head says of the whole row.

    A value is that of the state in which a token is about to be written, so the state after the last one needs a token
    to stand at. Which one does not matter: a row's last token is read by nobody.
    """
    return Batch(groups=tuple(replace(g, trajectories=tuple(map(_closed, g.trajectories))) for g in batch.groups))


def _closed(t: Trajectory) -> Trajectory:
    return replace(
        t,
        token_ids_T=np.append(t.token_ids_T, t.token_ids_T[-1]),
        mask_T=np.append(t.mask_T, np.uint8(1)),
        logprobs_T=np.append(t.logprobs_T, np.float32(0)),
    )


def _last(batch: Batch) -> Column:
    """1 on the last token of every row, 0 elsewhere."""
    keep = np.zeros(batch.num_tokens, np.uint8)
    keep[batch.offsets[1:] - 1] = 1
    return Column.per_token("keep", batch, keep)


def _answer(prompt: Prompt, name: str) -> str:
    answer: Json = prompt.data.get(name)
    if isinstance(answer, str):
        return answer
    came = f"no {name} answer" if answer is None else f"a {name} answer of type {type(answer).__name__}"
    raise DataError(
        f"prompt {prompt.uid!r} has {came}. Give every prompt the texts chosen and rejected "
        f"(prompts.{name} names the column)."
    )
