"""What a few sampled groups say about the steps to come: how many will teach something, and how long they take. Pure.

A group whose rewards are all equal has no advantage and teaches nothing. Let a prompt's rewards take the values v with
probabilities p_v; a group of n is flat with probability sum_v p_v^n, for a right-or-wrong reward p^n + (1 - p)^n. The
p_v are not known, so the mean over what they may be is taken: a Dirichlet posterior whose prior spreads s
pseudo-observations over the values as they occur in all samples. With a_v = s pooled_v + count_v and A = sum a_v,

    E[p_v^n] = prod_{j=0}^{n-1} (a_v + j) / (A + j).

s is the likeliest of a few between 1/8 and 8 (empirical Bayes: the Dirichlet-multinomial likelihood of all counts). A
small one says that prompts are either easy or hard, a large one that they are all alike.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from stretto.api.audit.findings import FULL_MARK, Example, Finding, ModelFigures, Severity
from stretto.api.audit.sampling import Sampled
from stretto.config.recipe import Recipe
from stretto.types import Group

__all__ = ["flat_share", "model_figures", "model_findings"]

_MOST_FLAT = 0.7
_MOST_CUT = 0.5
_SLOW_SHARE = 0.5
_EXAMPLES = 3
_DIGITS = 9
_STRENGTHS = (1.0, 0.125, 0.25, 0.5, 2.0, 4.0, 8.0)
"""Candidates of s; the first if all are as likely."""


def flat_share(rewards: Sequence[Sequence[float]], n: int, strength: float | None = None) -> float:
    """The expected share of groups of ``n`` whose rewards are all equal; ``rewards``: one row of samples a prompt.

    The formula is in the docstring of this file; ``strength`` is its s, None for the likeliest. One row or more, of
    one reward or more each.
    """
    rows = [Counter(round(r, _DIGITS) for r in row) for row in rewards]
    pooled: Counter[float] = sum(rows, Counter())
    shares = {value: count / pooled.total() for value, count in pooled.items()}
    s = strength or max(_STRENGTHS, key=lambda s: sum(_log_likelihood(row, shares, s) for row in rows))
    expected = 0.0
    for row in rows:
        for value, share in shares.items():
            a = s * share + row[value]
            expected += math.exp(math.fsum(math.log((a + j) / (s + row.total() + j)) for j in range(n)))
    return expected / len(rows)


def _log_likelihood(row: Counter[float], shares: Mapping[float, float], s: float) -> float:
    """Of the counts of one prompt under a Dirichlet of ``shares`` times ``s``, without what does not depend on s."""
    each = (math.lgamma(s * shares[value] + count) - math.lgamma(s * shares[value]) for value, count in row.items())
    return math.lgamma(s) - math.lgamma(s + row.total()) + math.fsum(each)


def model_figures(sampled: Sampled, recipe: Recipe, n: int) -> ModelFigures | None:
    """Numbers of the samples, and of a step of groups of ``n`` as they predict it. None if no group has rewards."""
    rows = _rows(sampled.groups)
    if not rows:
        return None
    attempts = [t for g in sampled.groups for t in g.trajectories]
    rewards = [r for row in rows for r in row]
    written = sum(t.num_written for t in attempts) / len(attempts)
    flat = flat_share(rows, n)
    per_step = recipe.schedule.groups_per_step
    rate = sampled.tokens / sampled.seconds if sampled.seconds > 0 else 0.0
    return ModelFigures(
        prompts=len(sampled.groups),
        samples=len(attempts),
        temperature=attempts[0].temperature,
        mean_reward=sum(rewards) / len(rewards),
        share_right=sum(r >= FULL_MARK for r in rewards) / len(rewards),
        share_truncated=sum(t.finish == "length" for t in attempts) / len(attempts),
        written_tokens=written,
        distinct=sum(len({t.text for t in g.trajectories}) / len(g.trajectories) for g in sampled.groups)
        / len(sampled.groups),
        flat_observed=sum(len(set(row)) == 1 for row in rows) / len(rows),
        flat_expected=flat,
        n=n,
        useful_groups=per_step * (1 - flat),
        groups_per_step=per_step,
        tokens_per_s=rate,
        sequences=sampled.sequences,
        rollout_s=per_step * n * written / rate if rate else 0.0,
    )


def model_findings(sampled: Sampled, figures: ModelFigures | None, recipe: Recipe) -> list[Finding]:
    """What stands between this policy and learning by this reward."""
    if figures is None:
        return list(_faults(sampled))
    signal = list(_no_signal(sampled, recipe)) or list(_little_signal(figures, recipe))
    return [*_faults(sampled), *signal, *_cut(figures, recipe), *_same(figures), *_judging(sampled, figures, recipe)]


def _rows(groups: Sequence[Group]) -> list[list[float]]:
    """The rewards of each group that has any."""
    rows = [[t.reward for t in group.trajectories if t.reward is not None] for group in groups]
    return [row for row in rows if row]


def _faults(sampled: Sampled) -> Iterator[Finding]:
    if not sampled.faults:
        return
    first, num = sampled.faults[0], len(sampled.faults)
    where = f" At: {first.where}" if first.where else ""
    yield Finding(
        code="model.error",
        severity="problem",
        message=f"The reward failed on {num} of the {num + len(sampled.groups)} groups that the model wrote. The "
        f"first: {first.what}.{where}",
        remedy="Make the function of reward.use return a number for whatever a model may write, or set "
        "reward.on_error=drop.",
        keys=("reward.use", "reward.on_error"),
    )


def _no_signal(sampled: Sampled, recipe: Recipe) -> Iterator[Finding]:
    """All samples of all prompts got the same reward."""
    rewards = {r for row in _rows(sampled.groups) for r in row}
    if len(rewards) != 1:
        return
    reward = rewards.pop()
    attempts = sum(len(g.trajectories) for g in sampled.groups)
    if reward >= FULL_MARK:
        yield Finding(
            code="model.solved",
            severity="problem",
            message=f"All {attempts} samples are right ({reward:.3g}) before any training: there is nothing left to "
            "learn, and all advantages would be 0.",
            remedy="Give harder prompts (prompts), or a reward.use that tells these answers apart.",
            keys=("prompts", "reward.use"),
        )
        return
    severity, then = _before(recipe, "problem")
    ways = "give easier prompts, raise sampling.n, or let reward.use pay for steps on the way."
    nearer = (
        "Bring it nearer first with warmup, " if recipe.warmup is None else "Fine if warmup gets it far enough; else "
    )
    yield Finding(
        code="model.flat",
        severity=severity,
        message=f"All {attempts} samples of {len(sampled.groups)} prompts got {reward:.3g}: with the model as it is, "
        f"all advantages are 0 and nothing is learned{then}.",
        remedy=nearer + ways,
        keys=("warmup", "prompts", "sampling.n", "reward.use"),
        examples=_examples(sampled),
    )


def _little_signal(figures: ModelFigures, recipe: Recipe) -> Iterator[Finding]:
    if figures.flat_expected <= _MOST_FLAT:
        return
    severity, then = _before(recipe, "warning")
    much = figures.share_right > 1 / 2
    ease = "harder prompts" if much else "easier prompts, a warmup"
    yield Finding(
        code="model.zero_variance",
        severity=severity,
        message=f"About {100 * figures.flat_expected:.0f}% of the groups of {figures.n} will have equal rewards and "
        f"teach nothing; {figures.useful_groups:.1f} of {figures.groups_per_step} groups of a step are of use{then}.",
        remedy=f"Raise sampling.n={figures.n}, or give {ease} (prompts).",
        keys=("sampling.n", "prompts") if much else ("sampling.n", "warmup", "prompts"),
    )


def _before(recipe: Recipe, severity: Severity) -> tuple[Severity, str]:
    """With a warm-up, the model that is sampled here is not the one that the main phase begins with."""
    if recipe.warmup is None:
        return severity, ""
    return "note", " (before the warm-up, which comes first)"


def _cut(figures: ModelFigures, recipe: Recipe) -> Iterator[Finding]:
    if figures.share_truncated <= _MOST_CUT:
        return
    severity, then = _before(recipe, "warning")
    yield Finding(
        code="model.truncated",
        severity=severity,
        message=f"{100 * figures.share_truncated:.0f}% of the samples were cut at sampling.max_tokens="
        f"{recipe.sampling.max_tokens} before they ended{then}.",
        remedy="Raise sampling.max_tokens, ask for short answers in the prompt, or teach the end with a warmup.",
        keys=("sampling.max_tokens", "warmup"),
    )


def _same(figures: ModelFigures) -> Iterator[Finding]:
    if figures.distinct * figures.samples / figures.prompts > 1 + 1e-9 or figures.samples == figures.prompts:
        return
    yield Finding(
        code="model.same",
        severity="warning",
        message=f"All samples of a prompt are the same text at sampling.temperature={figures.temperature:g}: there is "
        "nothing to compare.",
        remedy="Raise sampling.temperature.",
        keys=("sampling.temperature",),
    )


def _judging(sampled: Sampled, figures: ModelFigures, recipe: Recipe) -> Iterator[Finding]:
    """Rewards that take longer than what they judge."""
    if not sampled.judged_s or recipe.reward.workers == 0:
        return
    # A group waits for a free process, so the shortest is nearest to the work itself.
    step_s = min(sampled.judged_s) * figures.groups_per_step / recipe.reward.workers
    if step_s > _SLOW_SHARE * figures.rollout_s and step_s > 1.0:
        yield Finding(
            code="reward.share",
            severity="warning",
            message=f"Judging a step takes about {step_s:.1f} s with reward.workers={recipe.reward.workers}, and "
            f"sampling it {figures.rollout_s:.1f} s.",
            remedy="Raise reward.workers, or make the reward faster.",
            keys=("reward.workers",),
        )


def _examples(sampled: Sampled) -> tuple[Example, ...]:
    return tuple(
        Example(
            uid=group.prompt.uid,
            prompt=group.prompt.text,
            answer=group.trajectories[0].text,
            reward=group.trajectories[0].reward,
        )
        for group in sampled.groups[:_EXAMPLES]
    )
