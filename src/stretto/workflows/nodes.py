"""The built-in nodes. Per-group ones are coroutines over roles; per-step ones are plain functions over a Batch.

Nodes hold no formula: advantages and aggregation live in ``stretto.algorithms``, losses run where tensors are.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from stretto.algorithms.advantages import gae_credit, group_credit
from stretto.algorithms.aggregation import aggregation_weights
from stretto.config.algorithms import Aggregation, KlKind
from stretto.errors import DataError
from stretto.graph import Node, node
from stretto.roles import Completion, Environment, Generate, Judge, Score, Tokenize, Train
from stretto.types import (
    Batch,
    Column,
    Credit,
    Group,
    Key,
    LossRef,
    Metric,
    Prompt,
    StepReport,
    Trajectory,
    UpdateReport,
    merge_metrics,
)
from stretto.workflows.turns import play_attempts

__all__ = [
    "NODES",
    "collect",
    "demonstrate",
    "fit_values",
    "gae",
    "group_relative",
    "imitate",
    "logprobs",
    "report",
    "rollout",
    "score",
    "update_policy",
    "values",
]


@node
async def rollout(
    prompt: Prompt, generate: Generate, tokens: Tokenize, environment: Environment, *, n: int = 8
) -> Group:
    """``n`` attempts at the prompt, with the log-probs and versions they were sampled with: of one turn each, or of as
    many as the recipe's environment goes on for."""
    if environment.budget is not None:
        played = await play_attempts(prompt, generate, tokens, environment, n)
        return Group(draw=generate.draw, prompt=prompt, trajectories=played)
    attempts: dict[int, Trajectory] = {}
    async for completion in generate.complete(prompt.token_ids, samples=range(n)):
        key = Key(generate.draw, completion.index, model=generate.model)
        attempts[completion.index] = _attempt(prompt, completion, key, generate.temperature, tokens)
    assert sorted(attempts) == list(range(n)), (sorted(attempts), n)
    return Group(draw=generate.draw, prompt=prompt, trajectories=tuple(attempts[i] for i in range(n)))


@node
async def demonstrate(prompt: Prompt, tokens: Tokenize) -> Group:
    """The prompt's own answer as a trajectory, to be imitated; what ends it is trained as well: the tokens that end a
    turn by the chat template if the prompt is messages, else the end-of-sequence token.

    Stop strings end what is sampled, not what is demonstrated: an answer that has one in it is imitated whole.
    """
    answer = prompt.data.get("answer")
    if answer is None:
        raise DataError(
            f"prompt {prompt.uid!r} has no answer to demonstrate. Give every prompt of a supervised phase an answer "
            "(prompts.answer names the key in a file)."
        )
    text = str(answer)
    written = np.concatenate([tokens.encode(text), tokens.ending(prompt)])
    trajectory = Trajectory(
        key=Key(tokens.draw, 0),
        token_ids_T=np.concatenate([prompt.token_ids, written]),
        mask_T=_mask(len(prompt.token_ids), len(written)),
        logprobs_T=np.zeros(len(prompt.token_ids) + len(written), np.float32),
        versions=(),
        finish="stop",
        text=text,
    )
    return Group(draw=tokens.draw, prompt=prompt, trajectories=(trajectory,))


@node
async def score(group: Group, judge: Judge) -> Group:
    """The group with its rewards, by the recipe's ``reward``."""
    return await judge.judge(group)


@node
def collect(groups: tuple[Group, ...]) -> Batch:
    """The boundary between the two worlds: the groups of one step become its Batch."""
    return Batch(groups=groups)


@node
def logprobs(batch: Batch, model: Score) -> Column:
    """Log-probs of every written token under a Model, without gradient: the policy's as ``old_logprobs``, another's as
    ``ref_logprobs``, which is what losses look for."""
    (column,) = model.score(batch, frozenset({"logprobs"}))
    return replace(column, name="old_logprobs" if model.model == "policy" else "ref_logprobs")


@node(on="critic")
def values(batch: Batch, model: Score) -> Column:
    """The critic's value of the state in which each token is written, without gradient."""
    (column,) = model.score(batch, frozenset({"values"}))
    return replace(column, name="old_values")


@node
def group_relative(batch: Batch, *, scale: Literal["group_std", "none"] = "group_std", epsilon: float = 1e-6) -> Credit:
    """Advantages relative to the siblings of a group (GRPO)."""
    return group_credit(batch, scale=scale, epsilon=epsilon)


@node
def gae(
    batch: Batch,
    value: Column,
    ref: Column | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    whiten: bool = True,
    kl_coef: float = 0.0,
    kl_kind: KlKind = "k1",
) -> Credit:
    """Generalised advantages and returns from the critic's values; a KL penalty against ``ref`` lessens the reward."""
    return gae_credit(batch, value, ref, gamma=gamma, lam=lam, whitened=whiten, kl_coef=kl_coef, kl_kind=kl_kind)


@node
def update_policy(
    batch: Batch,
    credit: Credit,
    model: Train,
    ref: Column | None = None,
    old: Column | None = None,
    *,
    proximal: Literal["detach", "sampler"] = "detach",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl_coef: float = 0.0,
    kl_kind: KlKind = "k3",
    entropy_coef: float = 0.0,
    aggregate: Aggregation = "token_mean",
) -> UpdateReport:
    """One update of the policy by the clipped surrogate; with ``ref``, a KL term in the loss.

    The ratio's old log-probs are the column ``old`` if it is given, else by ``proximal``: the sampler's, which corrects
    for rollouts that are a step behind, or the current ones without gradient.
    """
    if old is None and proximal == "sampler":
        sampled = np.concatenate([t.logprobs_T for t in batch.trajectories])
        old = Column.per_token("old_logprobs", batch, sampled)
    columns = [credit.advantages, aggregation_weights(batch, aggregate)]
    columns += [column for column in (ref, old) if column is not None]
    settings = {
        "clip_low": clip_low,
        "clip_high": clip_high,
        "kl_coef": kl_coef,
        "kl_kind": kl_kind,
        "entropy_coef": entropy_coef,
    }
    update = model.learn(batch, tuple(columns), LossRef(use="clip", settings=settings))
    return replace(update, metrics=merge_metrics((update.metrics, credit.metrics)))


@node(on="critic")
def fit_values(
    batch: Batch,
    credit: Credit,
    value: Column,
    model: Train,
    *,
    value_clip: float = 0.2,
    aggregate: Aggregation = "token_mean",
) -> UpdateReport:
    """One update of the critic towards the returns, each value clipped around the one it was judged by."""
    if credit.returns is None:
        raise DataError(
            "fit_values was given a credit without returns, so there is nothing to fit. Make the credit with gae(...)."
        )
    columns = (credit.returns, value, aggregation_weights(batch, aggregate))
    return model.learn(batch, columns, LossRef(use="value_clip", settings={"value_clip": value_clip}))


@node
def imitate(batch: Batch, model: Train, *, aggregate: Aggregation = "token_mean") -> UpdateReport:
    """One update by the negative log-likelihood of what the trajectories' masks mark (supervised fine-tuning)."""
    return model.learn(batch, (aggregation_weights(batch, aggregate),), LossRef(use="sft"))


@node
def report(*updates: UpdateReport) -> StepReport:
    """The step's report: the metrics of its updates, by Model."""
    merged = merge_metrics(_named(update) for update in updates)
    return StepReport(metrics=merged, skipped={u.model: u.skipped for u in updates if u.skipped is not None})


def _attempt(prompt: Prompt, completion: Completion, key: Key, temperature: float, tokens: Tokenize) -> Trajectory:
    read, written = len(prompt.token_ids), completion.token_ids_T
    logprobs_T = np.zeros(read + len(written), np.float32)
    logprobs_T[read:] = completion.logprobs_T
    return Trajectory(
        key=key,
        token_ids_T=np.concatenate([prompt.token_ids, written]),
        mask_T=_mask(read, len(written)),
        logprobs_T=logprobs_T,
        versions=completion.versions,
        finish=completion.finish,
        text=completion.cut(tokens.decode(written)),
        temperature=temperature,
        info={} if completion.stop is None else {"stop": completion.stop},
    )


def _mask(read: int, written: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """0 for what was read, 1 for what was written: by lengths, never by token ids."""
    mask = np.zeros(read + written, np.uint8)
    mask[read:] = 1
    return mask


def _named(update: UpdateReport) -> dict[str, Metric]:
    """The policy's metrics keep their names; another Model's carry its own."""
    if update.model == "policy":
        return dict(update.metrics)
    return {f"{update.model}/{name}": metric for name, metric in update.metrics.items()}


NODES: dict[str, Node] = {
    n.name: n
    for n in (
        rollout,
        demonstrate,
        score,
        collect,
        logprobs,
        values,
        group_relative,
        gae,
        update_policy,
        fit_values,
        imitate,
        report,
    )
}
"""The built-in nodes by name: what ``use: rollout`` in a YAML workflow means."""
