"""The built-in nodes. Per-group ones are coroutines over roles; per-step ones are plain functions over a Batch.

Nodes hold no formula: advantages and aggregation live in ``stretto.algorithms``, losses run where tensors are.
"""

from dataclasses import replace

import numpy as np

from stretto.algorithms.advantages import KlInReward, gae_credit, group_credit
from stretto.algorithms.aggregation import aggregation_weights
from stretto.algorithms.off_policy import Correction
from stretto.algorithms.off_policy import correct as correct_off_policy
from stretto.algorithms.shaping import overlong_charge
from stretto.config.algorithms import (
    AdaptiveKl,
    Advantages,
    Aggregation,
    ClipLoss,
    CorrectionConfig,
    GaeConfig,
    GroupAdvantages,
    LossTerms,
    PolicyLoss,
    ProximalKind,
    RewardKl,
    UpdateSettings,
)
from stretto.errors import ConfigError, DataError
from stretto.graph import Node, node
from stretto.roles import Completion, Environment, Generate, Judge, Memory, Score, Tokenize, Train
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
from stretto.workflows.distilling import distribution, learn_distribution, teacher_advantages
from stretto.workflows.preferences import demonstration, fit_reward, prefer, update_preferences
from stretto.workflows.turns import play_attempts
from stretto.workflows.updates import (
    Objective,
    check_settings,
    current_coef,
    each_part,
    old_logprobs,
    run_updates,
    steer,
    weights_of,
)

__all__ = [
    "NODES",
    "advantages",
    "charge_overlong",
    "collect",
    "correct",
    "demonstrate",
    "distribution",
    "fit_reward",
    "fit_values",
    "gae",
    "imitate",
    "learn_distribution",
    "logprobs",
    "prefer",
    "report",
    "rollout",
    "score",
    "teacher_advantages",
    "update_policy",
    "update_preferences",
    "values",
]


@node
async def rollout(
    prompt: Prompt, generate: Generate, tokens: Tokenize, environment: Environment, *, n: int = 8, greedy: bool = False
) -> Group:
    """``n`` attempts at the prompt, with the log-probs and versions they were sampled with: of one turn each, or of as
    many as the recipe's environment goes on for.

    ``greedy``: one more, of the most likely tokens, with ``info["greedy"]``; it is a baseline, and nothing is trained
    on it.
    """
    if environment.budget is not None:
        if greedy:
            raise ConfigError("a greedy attempt is of one turn, and the recipe has an environment. Leave one out.")
        played = await play_attempts(prompt, generate, tokens, environment, n)
        return Group(draw=generate.draw, prompt=prompt, trajectories=played)
    attempts: dict[int, Trajectory] = {}
    async for completion in generate.complete(prompt.token_ids, samples=range(n)):
        key = Key(generate.draw, completion.index, model=generate.model)
        attempts[completion.index] = _attempt(prompt, completion, key, generate.temperature, tokens)
    assert sorted(attempts) == list(range(n)), (sorted(attempts), n)
    if greedy:
        async for completion in generate.complete(prompt.token_ids, samples=[n], greedy=True):
            key = Key(generate.draw, n, model=generate.model)
            made = _attempt(prompt, completion, key, 1.0, tokens)
            attempts[n] = replace(made, info={**made.info, "greedy": True})
    trajectories = tuple(attempts[i] for i in sorted(attempts))
    return Group(draw=generate.draw, prompt=prompt, trajectories=trajectories)


@node
async def demonstrate(prompt: Prompt, tokens: Tokenize) -> Group:
    """The prompt's own answer (the chosen one, of a preference without another) as a trajectory, to be imitated; what
    ends it is trained as well: the tokens that end a turn by the chat template if the prompt is messages, else the
    end-of-sequence token.

    Stop strings end what is sampled, not what is demonstrated: an answer that has one in it is imitated whole.
    """
    answer = prompt.data.get("answer", prompt.data.get("chosen"))
    if answer is None:
        raise DataError(
            f"prompt {prompt.uid!r} has no answer to demonstrate. Give every prompt of a supervised phase an answer "
            "(prompts.answer names the key in a file)."
        )
    return Group(draw=tokens.draw, prompt=prompt, trajectories=(demonstration(prompt, str(answer), tokens),))


@node
async def score(group: Group, judge: Judge) -> Group:
    """The group with its rewards, by the recipe's ``reward``."""
    return await judge.judge(group)


@node
async def charge_overlong(group: Group, *, max_tokens: int, buffer: int, penalty: float = 1.0) -> Group:
    """The group with a charge on attempts whose length comes within ``buffer`` tokens of ``max_tokens``: linear, up to
    ``penalty`` at ``max_tokens`` and beyond (DAPO's soft overlong punishment, arXiv:2503.14476, eq. 13).

    The length of an attempt is what it wrote in all its parts. The reward before is ``info["uncharged"]``: filters and
    orders ask whether answers are right, not how long they are.
    """
    lengths: dict[tuple[int, str], int] = {}
    for t in group.trajectories:
        lengths[t.key.sample, t.key.model] = lengths.get((t.key.sample, t.key.model), 0) + t.num_written
    charged: list[Trajectory] = []
    for t in group.trajectories:
        length = lengths[t.key.sample, t.key.model]
        charge = overlong_charge(length, max_tokens=max_tokens, buffer=buffer, penalty=penalty)
        reward = None if t.reward is None else t.reward - charge
        info = {**t.info, "uncharged": t.reward}
        charged.append(replace(t, rewards={**t.rewards, "overlong": -charge}, reward=reward, info=info))
    return replace(group, trajectories=tuple(charged))


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
def advantages(
    batch: Batch,
    memory: Memory,
    ref: Column | None = None,
    *,
    estimator: Advantages = GroupAdvantages(),
    kl: RewardKl = RewardKl(),
) -> Credit:
    """Advantages of rewards without a critic, by default relative to the siblings of a group (GRPO); with ``ref``, a KL
    penalty lessens the reward."""
    coef = current_coef(memory, kl.coef, kl.adaptive)
    credit = group_credit(batch, estimator, ref=ref, kl=KlInReward(coef=coef, kind=kl.kind))
    return replace(credit, metrics=steer(memory, kl.coef, kl.adaptive, credit.metrics, "credit/kl", batch))


@node
def gae(
    batch: Batch,
    value: Column,
    memory: Memory,
    ref: Column | None = None,
    *,
    estimator: GaeConfig = GaeConfig(),
    kl: RewardKl = RewardKl(),
) -> Credit:
    """Generalised advantages and returns from the critic's values; with ``ref``, a KL penalty lessens the reward."""
    coef = current_coef(memory, kl.coef, kl.adaptive)
    credit = gae_credit(batch, value, estimator, ref=ref, kl=KlInReward(coef=coef, kind=kl.kind))
    return replace(credit, metrics=steer(memory, kl.coef, kl.adaptive, credit.metrics, "credit/kl", batch))


@node
def correct(batch: Batch, trainer: Column, credit: Credit, *, settings: CorrectionConfig) -> Correction:
    """Off-policy correction: what the loss of each token is multiplied by, and which tokens it leaves out.

    ``trainer``: the policy's log-probs before the update, which are held against the sampler's.
    """
    return correct_off_policy(batch, trainer, settings, advantages=credit.advantages)


@node
def update_policy(
    batch: Batch,
    credit: Credit,
    model: Train,
    memory: Memory,
    ref: Column | None = None,
    recomputed: Column | None = None,
    correction: Correction | None = None,
    *,
    loss: PolicyLoss = ClipLoss(),
    terms: LossTerms = LossTerms(),
    adaptive: AdaptiveKl | None = None,
    proximal: ProximalKind = "detach",
    proximal_alpha: float | None = None,
    updates: UpdateSettings = UpdateSettings(),
    start: int = 0,
    right_from: float = 1.0,
) -> UpdateReport:
    """The updates of the policy in a step, by ``loss``; with ``ref``, a KL term in it.

    ``proximal``: the old log-probs of the ratio are the sampler's, which corrects for rollouts that lag; ``recomputed``
    ones, of the policy before the step; between both; or (detach) the current ones without gradient. In the first
    ``start`` steps the policy stays as it is. ``right_from``: the least reward of attempts that ``terms.nll_coef`` has
    imitated.
    """
    check_settings(loss, terms, adaptive, proximal, updates)
    if model.step < start:
        return UpdateReport(model=model.model, metrics={**credit.metrics, "frozen": Metric("mean", 1.0)})
    coef = current_coef(memory, terms.kl_coef, adaptive)
    old = old_logprobs(batch, proximal, recomputed, alpha=proximal_alpha, step=model.step)
    objective = Objective(
        loss=loss,
        terms=terms.model_copy(update={"kl_coef": coef}),
        columns=tuple(column for column in (credit.advantages, ref, old) if column is not None),
        correction=correction,
        right_from=right_from if terms.nll_coef else None,
    )
    report = run_updates(model, batch, objective, updates)
    extra = {} if correction is None else correction.metrics
    metrics = merge_metrics((report.metrics, credit.metrics, extra))
    return replace(report, metrics=steer(memory, terms.kl_coef, adaptive, metrics, "ref_kl", batch))


@node(on="critic")
def fit_values(
    batch: Batch,
    credit: Credit,
    value: Column,
    model: Train,
    *,
    value_clip: float | None = 0.2,
    updates: UpdateSettings = UpdateSettings(),
) -> UpdateReport:
    """The updates of the critic in a step, towards the returns, each value clipped around the one it was judged by."""
    if credit.returns is None:
        raise DataError(
            "fit_values was given a credit without returns, so there is nothing to fit. Make the credit with gae(...)."
        )
    columns = (credit.returns, value)
    ref = LossRef(use="value_clip", settings={"value_clip": value_clip})
    return each_part(model, batch, updates, lambda part, _: ((*columns, weights_of(part, updates)), ref))


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
        charge_overlong,
        collect,
        logprobs,
        values,
        advantages,
        gae,
        correct,
        update_policy,
        fit_values,
        imitate,
        prefer,
        update_preferences,
        fit_reward,
        distribution,
        learn_distribution,
        teacher_advantages,
        report,
    )
}
"""The built-in nodes by name: what ``use: rollout`` in a YAML workflow means."""
