"""What the scores of made answers say about a reward: pure, from scores to figures and findings.

A fault is a reward that fails, pays for what is wrong, does not pay for what is right, or says another thing each time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stretto.api.audit.answers import JUNK, LABELS, Answer, Kind
from stretto.api.audit.findings import (
    FULL_MARK,
    AnswerRow,
    Example,
    Finding,
    Quantiles,
    RewardFigures,
    Severity,
    Timing,
    by_share,
    share_text,
    shown,
)
from stretto.api.audit.scoring import Fault, Scored, Scores
from stretto.config.recipe import Recipe

__all__ = ["reward_figures", "reward_findings"]

_EXAMPLES = 3
_SLACK = 1e-9
_HALF = 0.5
"""A wrong answer that gets this share of what the right one gets is worth a warning."""


def reward_figures(name: str, scores: Scores, recipe: Recipe, asked: int) -> RewardFigures:
    """The table of scores and times. ``asked``: the prompts that were to be scored."""
    rows = [_row(kind, scores) for kind in LABELS]
    return RewardFigures(
        name=name,
        prompts=len({scores.answers[i].place for i in scores.first}),
        asked=asked,
        rows=tuple(row for row in rows if row.scored or row.failed),
        repeated=len(set(scores.again) & set(scores.elsewhere)),
        timing=_timing(scores, recipe),
    )


def reward_findings(scores: Scores, recipe: Recipe) -> list[Finding]:
    """Everything the scores say, the worst of each kind with examples."""
    found = [
        *_failures(scores, recipe),
        *_repeats(scores, recipe),
        *_gold(scores),
        *_siblings(scores),
        *_slow(scores, recipe),
    ]
    constant = _constant(scores)
    return [*found, *constant] if constant else [*found, *_paid(scores), *_listed(scores), *_length(scores)]


# --- figures -------------------------------------------------------------------------------------------------------


def _row(kind: Kind, scores: Scores) -> AnswerRow:
    all_of = [scored for i, scored in scores.first.items() if scores.answers[i].kind == kind]
    rewards = [scored.rewards[0] for scored in all_of if scored.fault is None]
    return AnswerRow(
        kind=kind,
        label=LABELS[kind],
        scored=len(rewards),
        failed=len(all_of) - len(rewards),
        mean=sum(rewards) / len(rewards) if rewards else None,
        lowest=min(rewards, default=None),
        highest=max(rewards, default=None),
        full=sum(reward >= FULL_MARK - _SLACK for reward in rewards),
    )


def _timing(scores: Scores, recipe: Recipe) -> Timing | None:
    if not scores.mixed:
        return None
    spread = Quantiles.of([scored.seconds for _, scored in scores.mixed])
    workers = recipe.reward.workers
    return Timing(
        groups=len(scores.mixed),
        size=len(scores.mixed[0][0]),
        group_s=spread,
        step_s=spread.median * recipe.schedule.groups_per_step / max(1, workers),
        timeout_s=recipe.reward.timeout_s if workers else None,
        workers=workers,
    )


def _rewards(scores: Scores) -> dict[tuple[int, Kind], float]:
    """The reward of every answer that got one, by (place of its prompt, kind)."""
    return {
        (scores.answers[i].place, scores.answers[i].kind): scored.rewards[0]
        for i, scored in scores.first.items()
        if scored.fault is None
    }


def _example(answer: Answer, reward: float | None) -> Example:
    return Example(uid=answer.prompt.uid, prompt=answer.prompt.text, answer=answer.text, reward=reward)


def _examples(scores: Scores, wanted: Callable[[Answer], bool]) -> tuple[Example, ...]:
    chosen = [(a, scores.first[i]) for i, a in enumerate(scores.answers) if i in scores.first and wanted(a)]
    return tuple(_example(a, s.rewards[0] if s.rewards else None) for a, s in chosen[:_EXAMPLES])


# --- failures ------------------------------------------------------------------------------------------------------


def _failures(scores: Scores, recipe: Recipe) -> Iterator[Finding]:
    """Rewards that raise or return no number, and those that take too long, apart."""
    passes = (scores.first, scores.again, scores.elsewhere, dict(enumerate(s for _, s in scores.mixed)))
    faults = [(scored.fault, i) for scored_by in passes[:3] for i, scored in scored_by.items() if scored.fault]
    faults += [(scored.fault, chosen[0]) for chosen, scored in scores.mixed if scored.fault]
    tries = sum(len(scored_by) for scored_by in passes)
    raised = [(fault, i) for fault, i in faults if not fault.late]
    late = [(fault, i) for fault, i in faults if fault.late]
    if raised:
        yield _raised(raised, tries, scores, recipe)
    if late:
        yield Finding(
            code="reward.timeout",
            severity=_failing_severity(len(late), tries, recipe),
            message=f"The reward was too slow {share_text(len(late), tries)} times: {late[0][0].what}.",
            remedy=f"Make it faster, or raise reward.timeout_s={recipe.reward.timeout_s:g}.",
            keys=("reward.timeout_s",),
            examples=(_example(scores.answers[late[0][1]], None),),
        )


def _raised(raised: Sequence[tuple[Fault, int]], tries: int, scores: Scores, recipe: Recipe) -> Finding:
    alone = {i for _, i in raised if i in scores.first and scores.first[i].fault is not None}
    kinds = [scores.answers[i].kind for i in alone]
    told = ", ".join(f"{LABELS[kind].strip()} {kinds.count(kind)}" for kind in LABELS if kind in kinds)
    how = f"on {share_text(len(alone), len(scores.first))} answers ({told})" if alone else "when it was called again"
    first, index = raised[0]
    where = f" At: {first.where}" if first.where else ""
    policy = {"fail": "would end the run", "retry": "would end the run if it comes again", "drop": "costs a group"}
    return Finding(
        code="reward.error",
        severity=_failing_severity(len(raised), tries, recipe),
        message=f"The reward failed {how}, and each time "
        f"{policy[recipe.reward.on_error]} (reward.on_error={recipe.reward.on_error}). The first: {first.what}.{where}",
        remedy="Make the function of reward.use return a number for whatever a model may write (0.0 for what it "
        "cannot read), or set reward.on_error=drop.",
        keys=("reward.use", "reward.on_error"),
        examples=(_example(scores.answers[index], None),),
    )


def _failing_severity(count: int, tries: int, recipe: Recipe) -> Severity:
    if recipe.reward.on_error == "drop" and count <= recipe.reward.max_dropped * tries:
        return "warning"
    return "problem"


# --- determinism ---------------------------------------------------------------------------------------------------


def _repeats(scores: Scores, recipe: Recipe) -> Iterator[Finding]:
    """The same answer judged again must get the same."""
    moved = _differing(scores.first, scores.elsewhere)
    varied = _differing(scores.first, scores.again)
    severity: Severity = "problem" if recipe.schedule.deterministic else "warning"
    if moved:
        yield Finding(
            code="reward.process",
            severity=severity,
            message=f"{share_text(len(moved), len(scores.elsewhere))} answers got another reward in another process"
            f"{_told(scores, moved[0], scores.elsewhere)}, so a run cannot be repeated.",
            remedy="Let reward.use depend on prompt and trajectory only: no clock, no random numbers, no state "
            "between calls. If it cannot, set schedule.deterministic=false.",
            keys=("reward.use", "schedule.deterministic"),
            examples=tuple(_example(scores.answers[i], scores.first[i].rewards[0]) for i in moved[:_EXAMPLES]),
        )
    if varied and not moved:
        yield Finding(
            code="reward.random",
            severity=severity,
            message=f"{share_text(len(varied), len(scores.again))} answers got another reward when they were judged "
            f"again{_told(scores, varied[0], scores.again)}: luck is rewarded, which can only be noise to learn from.",
            remedy="Take random numbers and state between calls out of the function of reward.use. If it cannot do "
            "without, set schedule.deterministic=false.",
            keys=("reward.use", "schedule.deterministic"),
            examples=tuple(_example(scores.answers[i], scores.first[i].rewards[0]) for i in varied[:_EXAMPLES]),
        )


def _differing(first: Mapping[int, Scored], other: Mapping[int, Scored]) -> list[int]:
    return sorted(
        i
        for i, scored in other.items()
        if (scored.fault is None) != (first[i].fault is None) or scored.rewards != first[i].rewards
    )


def _told(scores: Scores, index: int, other: Mapping[int, Scored]) -> str:
    before, after = (", ".join(f"{r:.6g}" for r in s[index].rewards) or "a failure" for s in (scores.first, other))
    return f" ({shown(scores.answers[index].text, 30)}: first {before}, then {after})"


def _siblings(scores: Scores) -> Iterator[Finding]:
    """A reward that compares siblings is fine; the table then only says what an answer gets alone."""
    if _differing(scores.first, scores.again):
        return
    for chosen, scored in scores.mixed:
        alone = tuple(scores.first[i].rewards[0] for i in chosen)
        if scored.fault is None and any(abs(a - b) > _SLACK for a, b in zip(alone, scored.rewards, strict=True)):
            yield Finding(
                code="reward.siblings",
                severity="note",
                message="What an answer gets depends on its siblings: in a group of "
                f"{len(chosen)} the same answers got {_list(scored.rewards)}, alone {_list(alone)}.",
                remedy="Fine for a reward that compares; judge it by the samples of the model, with --samples, and "
                "let reward.use pay a right answer 1 or more, since evaluations judge answers alone.",
                keys=("reward.use",),
            )
            return


def _list(rewards: Sequence[float]) -> str:
    return ", ".join(f"{reward:.3g}" for reward in rewards[:6]) + (", ..." if len(rewards) > 6 else "")


# --- right answers -------------------------------------------------------------------------------------------------


def _compare(scores: Scores, missed: Collection[int]) -> str:
    """What may tell a text from an answer that is as right."""
    given = [a.prompt.data.get("answer") for a in scores.answers if a.kind == "gold" and a.place in missed]
    value = next((answer for answer in given if not isinstance(answer, str | None)), None)
    if value is not None:
        return (
            f'prompt.data["answer"] is {value!r} in the data, a {type(value).__name__} and not text, which equals no '
            'text: compare with str(prompt.data["answer"]) in the function of reward.use, or write the answers as text.'
        )
    return (
        'Compare what reward.use reads in trajectory.text with prompt.data["answer"] for the examples below (capitals, '
        "spaces, units, format), or mend the answers."
    )


def _gold(scores: Scores) -> Iterator[Finding]:
    """A prompt's own answer gets the full mark, or at least more than a wrong one."""
    rewards = _rewards(scores)
    golds = {place: reward for (place, kind), reward in rewards.items() if kind == "gold"}
    low = [place for place, reward in golds.items() if reward < FULL_MARK - _SLACK]
    wrong = {place: [rewards[place, k] for k in ("empty", "swapped", *JUNK) if (place, k) in rewards] for place in low}
    missed = [place for place in low if golds[place] <= max(wrong[place], default=FULL_MARK - _SLACK) + _SLACK]
    if missed:
        yield Finding(
            code="reward.gold",
            severity=by_share(len(missed), len(golds)),
            message=f"The right answer is not paid: for {share_text(len(missed), len(golds))} prompts their own answer "
            "gets no more than a wrong one.",
            remedy=_compare(scores, missed),
            keys=("reward.use",),
            examples=_examples(scores, lambda a: a.kind == "gold" and a.place in missed),
        )
    partial = [place for place in low if place not in missed]
    if partial:
        yield Finding(
            code="reward.scale",
            severity="warning",
            message=f"The right answer gets less than {FULL_MARK:g} for {share_text(len(partial), len(golds))} prompts "
            f"(at most {max(golds[place] for place in partial):.3g}), and evaluations count an attempt as right from "
            f"{FULL_MARK:g} on, so accuracy will miss these.",
            remedy=f"Scale the reward of reward.use so that a right answer gets {FULL_MARK:g} or more.",
            keys=("reward.use",),
            examples=_examples(scores, lambda a: a.kind == "gold" and a.place in partial),
        )


# --- wrong answers -------------------------------------------------------------------------------------------------


def _constant(scores: Scores) -> list[Finding]:
    """One reward for everything, right and wrong."""
    rewards = {scored.rewards[0] for scored in scores.first.values() if scored.fault is None}
    kinds = {scores.answers[i].kind for i, scored in scores.first.items() if scored.fault is None}
    if len(rewards) != 1 or len(kinds) < 2:
        return []
    told = ", ".join(LABELS[kind].strip() for kind in ("gold", "empty", "words", "swapped") if kind in kinds)
    return [
        Finding(
            code="reward.constant",
            severity="problem",
            message=f"Every answer gets {rewards.pop():.6g}, whatever it is ({told}): all advantages would be 0 and "
            "nothing would be learned.",
            remedy="Let the function of reward.use read trajectory.text and compare it with prompt.data.",
            keys=("reward.use",),
            examples=_examples(scores, lambda a: a.place == 0 and a.kind in ("gold", "empty", "words", "swapped")),
        )
    ]


def _paid(scores: Scores) -> Iterator[Finding]:
    """Wrong answers that are paid as much as right ones, or nearly; else what all of them get."""
    found = [finding for wrong in _WRONG for finding in _paid_for(scores, wrong)]
    yield from found or _little(scores)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wrong:
    """A group of wrong answers: its finding's code, how it is called, and what to do if it is paid."""

    kinds: tuple[Kind, ...]
    code: str
    what: str
    remedy: str


_WRONG = (
    _Wrong(
        kinds=("empty",),
        code="reward.empty",
        what="An answer without text",
        remedy="Let reward.use give nothing for an empty trajectory.text.",
    ),
    _Wrong(
        kinds=JUNK,
        code="reward.junk",
        what="Junk",
        remedy='Let reward.use pay for what prompt.data["answer"] asks, in full, rather than for a trace of it, for '
        "form or for length.",
    ),
    _Wrong(
        kinds=("swapped",),
        code="reward.swapped",
        what="The answer of another prompt",
        remedy='Let reward.use compare all of the answer with this prompt\'s own prompt.data["answer"].',
    ),
)


def _little(scores: Scores) -> Iterator[Finding]:
    """What wrong answers get, if it is more than nothing and no fault."""
    rewards = _rewards(scores)
    if not any(kind == "gold" for _, kind in rewards):
        return
    kinds: list[Kind] = [kind for wrong in _WRONG for kind in wrong.kinds]
    means = {k: [r for (_, kind), r in rewards.items() if kind == k] for k in kinds}
    told = [f"{LABELS[k]} {sum(means[k]) / len(means[k]):.3g}" for k in kinds if sum(means[k]) > 0]
    if told:
        yield Finding(
            code="reward.little",
            severity="note",
            message=f"Some wrong answers get a little: {', '.join(told)} on average.",
            remedy="Fine if it is meant as shaping; else let reward.use give them nothing.",
            keys=("reward.use",),
        )


def _paid_for(scores: Scores, wrong: _Wrong) -> Iterator[Finding]:
    rewards = _rewards(scores)
    kinds = wrong.kinds
    tried = {(p, k): r for (p, k), r in rewards.items() if k in kinds}
    golds = {place: reward for (place, kind), reward in rewards.items() if kind == "gold"}
    as_right = [at for at, r in tried.items() if r > 0 and r >= min(golds.get(at[0], FULL_MARK), FULL_MARK) - _SLACK]
    nearly = [at for at, r in tried.items() if at[0] in golds and 0 < golds[at[0]] * _HALF <= r]
    severity: Severity
    if as_right and golds:
        chosen, severity, much = as_right, by_share(_places(as_right), _places(tried)), "as much as a right one"
    elif as_right:  # nothing says that it is wrong here
        chosen, severity, much = as_right, "warning", f"{FULL_MARK:g} or more"
    elif nearly:
        chosen, severity, much = nearly, "warning", "at least half of what a right one gets"
    else:
        return
    told = [(LABELS[k], [at for at in chosen if at[1] == k]) for k in kinds]
    counts = ", ".join(f"{label} {len(places)}" for label, places in told if places)
    mean = sum(tried[at] for at in chosen) / len(chosen)
    yield Finding(
        code=wrong.code,
        severity=severity,
        message=f"{wrong.what} gets {much} for {share_text(_places(chosen), _places(tried))} prompts "
        f"({counts}; {mean:.3g} on average).",
        remedy=wrong.remedy,
        keys=("reward.use",),
        examples=_examples(scores, lambda a: (a.place, a.kind) in set(chosen)),
    )


def _places(ats: Iterable[tuple[int, object]]) -> int:
    """How many prompts there are among (place, kind)."""
    return len({place for place, _ in ats})


def _listed(scores: Scores) -> Iterator[Finding]:
    """Several guesses, the right one among them, that are paid in full."""
    rewards = _rewards(scores)
    tried = {place: reward for (place, kind), reward in rewards.items() if kind == "listed"}
    paid = [p for p, reward in tried.items() if reward > 0 and reward >= rewards.get((p, "gold"), FULL_MARK) - _SLACK]
    if 2 * len(paid) > len(tried):
        yield Finding(
            code="reward.listed",
            severity="warning",
            message=f"Three guesses with the right one among them get as much as the right one for "
            f"{share_text(len(paid), len(tried))} prompts, so a policy learns to list.",
            remedy="Let reward.use read one answer, the last or the marked one, rather than look for it anywhere.",
            keys=("reward.use",),
            examples=_examples(scores, lambda a: a.kind == "listed" and a.place in paid),
        )


def _length(scores: Scores) -> Iterator[Finding]:
    """Longer junk that is paid more than shorter."""
    rewards = _rewards(scores)
    text = {(a.place, a.kind): a.text for a in scores.answers}
    pairs = [
        (place, reward, rewards[place, "repeated"])
        for (place, kind), reward in rewards.items()
        if kind == "word" and (place, "repeated") in rewards and len(text[place, "repeated"]) > len(text[place, "word"])
    ]
    longer = [place for place, short, long in pairs if long > short + _SLACK]
    if 2 * len(longer) > len(pairs):
        place = longer[0]
        yield Finding(
            code="reward.length",
            severity="warning",
            message=f"Longer nonsense is paid more: for {share_text(len(longer), len(pairs))} prompts one word "
            f"repeated ({len(text[place, 'repeated'])} characters) gets {rewards[place, 'repeated']:.3g} and one word "
            f"({len(text[place, 'word'])} characters) {rewards[place, 'word']:.3g}, so a policy learns to fill "
            "sampling.max_tokens.",
            remedy="Take the length out of reward.use, or let it count for right answers only.",
            keys=("reward.use", "sampling.max_tokens"),
            examples=_examples(scores, lambda a: a.place == place and a.kind in ("word", "repeated")),
        )


# --- time ----------------------------------------------------------------------------------------------------------


def _slow(scores: Scores, recipe: Recipe) -> Iterator[Finding]:
    timing = _timing(scores, recipe)
    if timing is None or timing.timeout_s is None:
        return
    if timing.group_s.p95 > timing.timeout_s / 2:
        yield Finding(
            code="reward.slow",
            severity="warning",
            message=f"A group of {timing.size} takes {timing.group_s.p95:.3g} s to judge (95% of {timing.groups} "
            f"groups take less), more than half of reward.timeout_s={timing.timeout_s:g}: a busy machine will "
            "go past it.",
            remedy="Make the reward faster, or raise reward.timeout_s.",
            keys=("reward.timeout_s",),
        )
