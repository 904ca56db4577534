"""The built-in workflows: what each ``algorithm.type`` implies. Their keyword parameters are filled from
``algorithm`` and ``sampling`` by name, so the graph is a function of the recipe."""

from typing import Literal

from stretto.config.algorithms import Aggregation, KlKind
from stretto.graph import Workflow, workflow
from stretto.types import Prompt, StepReport
from stretto.workflows.nodes import (
    collect,
    demonstrate,
    fit_values,
    gae,
    group_relative,
    imitate,
    logprobs,
    report,
    rollout,
    score,
    update_policy,
    values,
)

__all__ = ["WORKFLOWS", "grpo", "ppo", "sft"]


@workflow
def sft(prompt: Prompt, *, aggregate: Aggregation = "token_mean") -> StepReport:
    """Supervised fine-tuning on the prompts' answers."""
    group = demonstrate(prompt)
    batch = collect(group)
    learn = imitate(batch, aggregate=aggregate)
    return report(learn)


@workflow
def grpo(
    prompt: Prompt,
    *,
    n: int = 8,
    scale: Literal["group_std", "none"] = "group_std",
    epsilon: float = 1e-6,
    proximal: Literal["detach", "sampler"] = "detach",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl_coef: float = 0.0,
    kl_kind: Literal["k2", "k3"] = "k3",
    entropy_coef: float = 0.0,
    aggregate: Aggregation = "token_mean",
) -> StepReport:
    """Group-relative policy optimisation (arXiv:2402.03300); the reference is there only if ``kl_coef`` weighs it."""
    group = rollout(prompt, n=n)
    scored = score(group)
    batch = collect(scored)
    credit = group_relative(batch, scale=scale, epsilon=epsilon)
    ref = logprobs(batch, on="reference") if kl_coef else None
    learn = update_policy(
        batch,
        credit,
        ref=ref,
        proximal=proximal,
        clip_low=clip_low,
        clip_high=clip_high,
        kl_coef=kl_coef,
        kl_kind=kl_kind,
        entropy_coef=entropy_coef,
        aggregate=aggregate,
    )
    return report(learn)


@workflow
def ppo(
    prompt: Prompt,
    *,
    n: int = 8,
    gamma: float = 1.0,
    lam: float = 0.95,
    whiten: bool = True,
    proximal: Literal["detach", "sampler"] = "detach",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    value_clip: float = 0.2,
    kl_coef: float = 0.05,
    kl_kind: KlKind = "k1",
    entropy_coef: float = 0.0,
    aggregate: Aggregation = "token_mean",
) -> StepReport:
    """Proximal policy optimisation with a critic and GAE (arXiv:1707.06347); the KL penalty is in the reward."""
    group = rollout(prompt, n=n)
    scored = score(group)
    batch = collect(scored)
    ref = logprobs(batch, on="reference") if kl_coef else None
    value = values(batch, on="critic")
    credit = gae(batch, value, ref=ref, gamma=gamma, lam=lam, whiten=whiten, kl_coef=kl_coef, kl_kind=kl_kind)
    fit = fit_values(batch, credit, value, value_clip=value_clip, aggregate=aggregate)
    learn = update_policy(
        batch,
        credit,
        proximal=proximal,
        clip_low=clip_low,
        clip_high=clip_high,
        entropy_coef=entropy_coef,
        aggregate=aggregate,
    )
    return report(fit, learn)


WORKFLOWS: dict[str, Workflow] = {w.name: w for w in (sft, grpo, ppo)}
"""The built-in workflows by name."""
