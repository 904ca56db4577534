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
from stretto.api.audit.scoring import Fault
from stretto.config.algorithms import PolicyGradient
from stretto.config.recipe import Recipe
from stretto.types import Group, Trajectory

__all__ = ["flat_share", "model_figures", "model_findings"]

_MOST_FLAT = 0.7
_MOST_CUT = 0.5
_SLOW_SHARE = 0.5
_EXAMPLES = 3
_ENOUGH = 16
"""Samples of equal reward that say something about the model."""
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
    attempts = [t for g in sampled.groups for t in g.attempts]
    rewards = [r for row in rows for r in row]
    written = sum(t.num_written for g in sampled.groups for t in g.trajectories) / len(attempts)
    flat = flat_share(list(_by_prompt(sampled.groups).values()), n) if _compares(recipe) else None
    per_step = recipe.schedule.groups_per_step
    rate = sampled.tokens / sampled.seconds if sampled.seconds > 0 else 0.0
    return ModelFigures(
        prompts=len(_by_prompt(sampled.groups)),
        samples=len(attempts),
        temperature=attempts[0].temperature,
        mean_reward=sum(rewards) / len(rewards),
        share_right=sum(r >= FULL_MARK for r in rewards) / len(rewards),
        share_truncated=sum(t.finish == "length" for t in attempts) / len(attempts),
        written_tokens=written,
        distinct=sum(len({_written(t) for t in g.attempts}) / len(g.attempts) for g in sampled.groups)
        / len(sampled.groups),
        flat_observed=sum(len(set(row)) == 1 for row in rows) / len(rows),
        flat_expected=flat,
        n=n,
        useful_groups=None if flat is None else per_step * (1 - flat),
        groups_per_step=per_step,
        tokens_per_s=rate,
        sequences=sampled.sequences,
        rollout_s=per_step * n * written / rate if rate else 0.0,
        turns=None if recipe.environment is None else sum(len(_written(t)) for t in attempts) / len(attempts),
    )


def model_findings(sampled: Sampled, figures: ModelFigures | None, recipe: Recipe) -> list[Finding]:
    """What stands between this policy and learning by this reward."""
    if figures is None:
        return list(_faults(sampled, recipe))
    signal = list(_no_signal(sampled, recipe)) or list(_little_signal(figures, recipe))
    return [
        *_faults(sampled, recipe),
        *signal,
        *_cut(figures, recipe),
        *_same(sampled.groups, figures),
        *_judging(sampled, figures, recipe),
    ]


def _compares(recipe: Recipe) -> bool:
    """Whether attempts are compared with their siblings; a workflow of one's own is taken to do so."""
    algorithm = recipe.algorithm
    return recipe.workflow is not None or not isinstance(algorithm, PolicyGradient) or algorithm.compares_siblings


def _rows(groups: Sequence[Group]) -> list[list[float]]:
    """The rewards of each group that has any."""
    rows = [[t.reward for t in group.attempts if t.reward is not None] for group in groups]
    return [row for row in rows if row]


def _by_prompt(groups: Sequence[Group]) -> dict[str, list[float]]:
    """The rewards of each prompt, which may have been drawn more than once."""
    rewards: dict[str, list[float]] = {}
    for group in groups:
        rewards.setdefault(group.prompt.uid, []).extend(t.reward for t in group.attempts if t.reward is not None)
    return {uid: row for uid, row in rewards.items() if row}


def _written(attempt: Trajectory) -> tuple[str, ...]:
    """What the policy wrote, turn by turn."""
    return tuple(message.content for message in attempt.messages if message.role == "assistant")


def _faults(sampled: Sampled, recipe: Recipe) -> Iterator[Finding]:
    if not sampled.faults:
        return
    played = [fault for fault in sampled.faults if fault.played]
    if played:
        yield _unplayed(played, sampled, recipe)
    judged = [fault for fault in sampled.faults if not fault.played]
    if not judged:
        return
    first, num = judged[0], len(judged)
    where = f" At: {first.where}" if first.where else ""
    several = recipe.environment is not None
    which = "score() of environment.use and the function of reward.use" if several else "the function of reward.use"
    yield Finding(
        code="model.error",
        severity="problem",
        message=f"The reward failed on {num} of the {num + len(sampled.groups)} groups that the model wrote. The "
        f"first: {first.what}.{where}",
        remedy=f"Make {which} return a number for whatever a model may write, or set reward.on_error=drop.",
        keys=("environment.use", "reward.use", "reward.on_error") if several else ("reward.use", "reward.on_error"),
    )


def _unplayed(played: Sequence[Fault], sampled: Sampled, recipe: Recipe) -> Finding:
    """Episodes that failed."""
    assert recipe.environment is not None
    first = played[0]
    where = f" At: {first.where}" if first.where else ""
    policy, timeout_s = recipe.environment.on_error, recipe.environment.timeout_s
    return Finding(
        code="model.environment",
        severity="problem",
        message=f"The environment failed in {len(played)} of the {len(sampled.faults) + len(sampled.groups)} groups "
        f"that were played (environment.on_error={policy}). The first: {first.what}.{where}",
        remedy=f"Make it faster, or raise environment.timeout_s={timeout_s:g}."
        if first.late
        else "Mend the class of environment.use, or set environment.on_error=drop.",
        keys=("environment.timeout_s",) if first.late else ("environment.use", "environment.on_error"),
    )


def _no_signal(sampled: Sampled, recipe: Recipe) -> Iterator[Finding]:
    """All samples of all prompts got the same reward."""
    rewards = {r for row in _rows(sampled.groups) for r in row}
    if len(rewards) != 1:
        return
    reward = rewards.pop()
    attempts = sum(len(g.attempts) for g in sampled.groups)
    worst, few, more = _weight(attempts, sampled)
    if reward >= FULL_MARK:
        yield Finding(
            code="model.solved",
            severity=worst,
            message=f"All {attempts} samples are right ({reward:.3g}) before any training{few}: there is nothing left "
            f"to learn{', and all advantages would be 0' if _compares(recipe) else ''}.",
            remedy=f"{more}Give harder prompts (prompts), or a reward.use that tells these answers apart.",
            keys=("prompts", "reward.use"),
        )
        return
    severity, then = _before(recipe, worst)
    ways = "give easier prompts, raise sampling.n, or let reward.use pay for steps on the way."
    nearer = (
        "Bring it nearer first with warmup, " if recipe.warmup is None else "Fine if warmup gets it far enough; else "
    )
    yield Finding(
        code="model.flat",
        severity=severity,
        message=f"All {attempts} samples of {len(_by_prompt(sampled.groups))} prompts got {reward:.3g}{few}: with the "
        f"model as it is, {'all advantages are 0 and ' if _compares(recipe) else ''}nothing is learned{then}.",
        remedy=more + nearer + ways,
        keys=("warmup", "prompts", "sampling.n", "reward.use"),
        examples=_examples(sampled),
    )


def _little_signal(figures: ModelFigures, recipe: Recipe) -> Iterator[Finding]:
    useful = figures.useful_groups
    if figures.flat_expected is None or useful is None or figures.flat_expected <= _MOST_FLAT:
        return
    severity, then = _before(recipe, "warning")
    much = figures.share_right > 1 / 2
    ease = "harder prompts" if much else "easier prompts, a warmup"
    yield Finding(
        code="model.zero_variance",
        severity=severity,
        message=f"About {100 * figures.flat_expected:.0f}% of the groups of {figures.n} will have equal rewards and "
        f"teach nothing; {useful:.1f} of {figures.groups_per_step} groups of a step are of use{then}.",
        remedy=f"Raise sampling.n={figures.n}, or give {ease} (prompts).",
        keys=("sampling.n", "prompts") if much else ("sampling.n", "warmup", "prompts"),
    )


def _weight(attempts: int, sampled: Sampled) -> tuple[Severity, str, str]:
    """How bad it is that all ``attempts`` got the same, what to add to the sentence, and what to do first."""
    if not sampled.late and attempts >= _ENOUGH:
        return "problem", "", ""
    why = "the time was up" if sampled.late else "there were no more"
    return "warning", f" ({why}, and {attempts} say little)", "Look at more with --seconds=120 or --samples=16. "


def _before(recipe: Recipe, severity: Severity) -> tuple[Severity, str]:
    """With a warm-up, the model that is sampled here is not the one that the main phase begins with."""
    if recipe.warmup is None:
        return severity, ""
    return "note", " (before the warm-up, which comes first)"


def _cut(figures: ModelFigures, recipe: Recipe) -> Iterator[Finding]:
    if figures.share_truncated <= _MOST_CUT:
        return
    severity, then = _before(recipe, "warning")
    several = recipe.environment
    if several is not None:
        yield Finding(
            code="model.truncated",
            severity="note",
            message=f"{100 * figures.share_truncated:.0f}% of the episodes were ended by a budget, not by the "
            f"environment: environment.max_turns={several.max_turns}, environment.max_total_tokens="
            f"{several.max_total_tokens}, or sampling.max_tokens={recipe.sampling.max_tokens} with "
            f"environment.on_length={several.on_length}.",
            remedy="Fine if episodes are to end so; else raise environment.max_turns, environment.max_total_tokens or "
            "sampling.max_tokens.",
            keys=("environment.max_turns", "environment.max_total_tokens", "sampling.max_tokens"),
        )
        return
    yield Finding(
        code="model.truncated",
        severity=severity,
        message=f"{100 * figures.share_truncated:.0f}% of the samples were cut at sampling.max_tokens="
        f"{recipe.sampling.max_tokens} before they ended{then}.",
        remedy="Raise sampling.max_tokens, ask for short answers in the prompt, or teach the end with a warmup.",
        keys=("sampling.max_tokens", "warmup"),
    )


def _same(groups: Sequence[Group], figures: ModelFigures) -> Iterator[Finding]:
    alone = all(len(g.attempts) == 1 for g in groups)
    if alone or any(len({_written(t) for t in g.attempts}) > 1 for g in groups):
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
            answer=" | ".join(message.content for message in group.attempts[0].messages),
            reward=group.attempts[0].reward,
        )
        for group in sampled.groups[:_EXAMPLES]
    )
