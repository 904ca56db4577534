"""The built-in workflows: what each ``algorithm.type`` implies. Their keyword parameters are filled from
``algorithm`` and ``sampling``, so the graph is a function of the recipe."""

from collections.abc import Mapping

from stretto.config.algorithms import (
    AdaptiveKl,
    Advantages,
    Aggregation,
    ClipLoss,
    CorrectionConfig,
    Distillation,
    GaeConfig,
    GroupAdvantages,
    LossTerms,
    PairLossKind,
    PolicyLoss,
    ProximalKind,
    ReinforceLoss,
    RewardKl,
    UpdateSettings,
)
from stretto.config.by_step import most
from stretto.graph import Workflow, workflow
from stretto.types import Prompt, StepReport, UpdateReport
from stretto.workflows.nodes import (
    advantages,
    charge_overlong,
    collect,
    correct,
    demonstrate,
    distribution,
    fit_reward,
    fit_values,
    gae,
    imitate,
    learn_distribution,
    logprobs,
    prefer,
    report,
    rollout,
    score,
    teacher_advantages,
    update_policy,
    update_preferences,
    values,
)

__all__ = ["WORKFLOWS", "actor_critic", "distill", "dpo", "policy_gradient", "reward_model", "sft"]


@workflow
def sft(prompt: Prompt, *, aggregate: Aggregation = "token_mean") -> StepReport:
    """Supervised fine-tuning on the prompts' answers."""
    group = demonstrate(prompt)
    batch = collect(group)
    learn = imitate(batch, aggregate=aggregate)
    return report(learn)


@workflow
def policy_gradient(
    prompt: Prompt,
    *,
    n: int = 8,
    greedy: bool = False,
    max_tokens: int = 0,
    overlong_buffer: int = 0,
    overlong_penalty: float = 1.0,
    estimator: Advantages = GroupAdvantages(),
    penalty: RewardKl = RewardKl(),
    loss: PolicyLoss = ClipLoss(),
    terms: LossTerms = LossTerms(),
    adaptive: AdaptiveKl | None = None,
    correction: CorrectionConfig | None = None,
    proximal: ProximalKind = "detach",
    proximal_alpha: float | None = None,
    updates: UpdateSettings = UpdateSettings(),
) -> StepReport:
    """Attempts, rewards, advantages without a critic, and a loss over tokens: GRPO and its kin.

    The reference is there only if a KL term weighs it; the policy's log-probs are recomputed only if something reads
    them; a correction and a charge on long attempts only if they are asked for.
    """
    group = rollout(prompt, n=n, greedy=greedy)
    scored = score(group)
    if overlong_buffer and overlong_penalty:
        scored = charge_overlong(scored, max_tokens=max_tokens, buffer=overlong_buffer, penalty=overlong_penalty)
    batch = collect(scored)
    ref = logprobs(batch, on="reference") if most(penalty.coef) or most(terms.kl_coef) else None
    own = logprobs(batch) if correction is not None or proximal in ("recompute", "interpolate") else None
    credit = advantages(batch, ref=ref if most(penalty.coef) else None, estimator=estimator, kl=penalty)
    corrected = correct(batch, own, credit, settings=correction) if correction is not None else None
    learn = update_policy(
        batch,
        credit,
        ref=ref if most(terms.kl_coef) else None,
        recomputed=own,
        correction=corrected,
        loss=loss,
        terms=terms,
        adaptive=adaptive,
        proximal=proximal,
        proximal_alpha=proximal_alpha,
        updates=updates,
    )
    return report(learn)


@workflow
def actor_critic(
    prompt: Prompt,
    *,
    n: int = 8,
    estimator: GaeConfig = GaeConfig(),
    penalty: RewardKl = RewardKl(coef=0.05),
    loss: PolicyLoss = ClipLoss(),
    terms: LossTerms = LossTerms(),
    correction: CorrectionConfig | None = None,
    proximal: ProximalKind = "detach",
    proximal_alpha: float | None = None,
    updates: UpdateSettings = UpdateSettings(),
    value_clip: float | None = 0.2,
    critic_warmup: int = 0,
) -> StepReport:
    """Attempts, rewards, advantages from a critic, and updates of both: PPO and its kin."""
    group = rollout(prompt, n=n)
    scored = score(group)
    batch = collect(scored)
    ref = logprobs(batch, on="reference") if most(penalty.coef) else None
    value = values(batch, on="critic")
    own = logprobs(batch) if correction is not None or proximal in ("recompute", "interpolate") else None
    credit = gae(batch, value, ref=ref, estimator=estimator, kl=penalty)
    corrected = correct(batch, own, credit, settings=correction) if correction is not None else None
    fit = fit_values(batch, credit, value, value_clip=value_clip, updates=updates)
    learn = update_policy(
        batch,
        credit,
        recomputed=own,
        correction=corrected,
        loss=loss,
        terms=terms,
        proximal=proximal,
        proximal_alpha=proximal_alpha,
        updates=updates,
        start=critic_warmup,
    )
    return report(fit, learn)


@workflow
def distill(
    prompt: Prompt,
    *,
    n: int = 8,
    scored: bool = False,
    over_vocabulary: Distillation | None = Distillation(),
    entropy_coef: float = 0.0,
    loss: PolicyLoss = ReinforceLoss(),
    correction: CorrectionConfig | None = None,
    proximal: ProximalKind = "detach",
    proximal_alpha: float | None = None,
    updates: UpdateSettings = UpdateSettings(),
) -> StepReport:
    """Attempts, and a teacher's word on each of their tokens: its whole distribution, which the policy's is moved to,
    or (``over_vocabulary`` None) its log-prob of what was written, as an advantage. Rewards are recorded at most."""
    group = rollout(prompt, n=n)
    if scored:
        group = score(group)
    batch = collect(group)
    if over_vocabulary is not None:
        teacher = distribution(batch, on="teacher")
        learn = learn_distribution(batch, teacher, settings=over_vocabulary, entropy_coef=entropy_coef, updates=updates)
        return report(learn)
    teacher = logprobs(batch, on="teacher")
    own = logprobs(batch) if correction is not None or proximal in ("recompute", "interpolate") else None
    credit = teacher_advantages(batch, teacher)
    corrected = correct(batch, own, credit, settings=correction) if correction is not None else None
    learn = update_policy(
        batch,
        credit,
        recomputed=own,
        correction=corrected,
        loss=loss,
        terms=LossTerms(entropy_coef=entropy_coef),
        proximal=proximal,
        proximal_alpha=proximal_alpha,
        updates=updates,
    )
    return report(learn)


@workflow
def dpo(
    prompt: Prompt, *, beta: float = 0.1, loss: PairLossKind = "sigmoid", label_smoothing: float = 0.0
) -> StepReport:
    """Direct preference optimisation on the prompts' chosen and rejected answers."""
    pair = prefer(prompt)
    batch = collect(pair)
    ref = logprobs(batch, on="reference")
    learn = update_preferences(batch, ref, beta=beta, loss=loss, label_smoothing=label_smoothing)
    return report(learn)


@workflow
def reward_model(prompt: Prompt, *, center_coef: float = 0.0) -> UpdateReport:
    """A reward model from the prompts' chosen and rejected answers."""
    pair = prefer(prompt)
    batch = collect(pair)
    return fit_reward(batch, center_coef=center_coef)


_CRITIC = ("ppo", "vapo")
_GROUPS = (
    "grpo", "dr-grpo", "dapo", "gspo", "cispo", "sapo", "gmpo", "rloo", "reinforce-pp", "remax", "opo", "gpg", "maxrl",
    "cpgd", "composed",
)  # fmt: skip

WORKFLOWS: Mapping[str, Workflow] = {
    "sft": sft,
    **dict.fromkeys(_GROUPS, policy_gradient),
    **dict.fromkeys(_CRITIC, actor_critic),
    "distill": distill,
    "dpo": dpo,
    "reward-model": reward_model,
}
"""The built-in workflows by the type of the algorithm that implies them."""
