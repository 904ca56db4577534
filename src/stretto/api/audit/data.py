"""What can be said about the prompts of a recipe without judging anything: doubles, leaks, lengths, budgets, passes.

With an environment nobody writes a prompt's answer as a completion, and prompts of one text may be different tasks:
answers are not measured then, and a double is one in its data too.
"""

import json
from collections.abc import Iterator

from stretto.api.audit.answers import gold_of
from stretto.api.audit.findings import DataFigures, Example, Finding, Quantiles, by_share, share_text
from stretto.backends.torch.hf_config import load_hf_config
from stretto.config.recipe import Recipe
from stretto.config.rollouts import FakeEngineConfig
from stretto.errors import DataError
from stretto.runtime.build import Job
from stretto.types import Prompt

__all__ = ["look_at_data", "prompts_key"]

_MOST_READ = 20_000
"""Answers that are made into tokens at most: the first ones, which is a random choice by seed."""
_EXAMPLES = 3


class _Answers:
    """The reference answers of a job as tokens, read once."""

    def __init__(self, job: Job) -> None:
        self.lengths: list[tuple[Prompt, int]] = []
        self.unwritable: list[Prompt] = []
        self.with_answer = [p for p in (*job.train, *job.held_out) if gold_of(p) is not None]
        size = _of_model(job, "vocab_size")
        for prompt in self.with_answer[:_MOST_READ]:
            try:
                ids = job.tokenizer.encode(gold_of(prompt) or "")
            except DataError:
                self.unwritable.append(prompt)
                continue
            if size is not None and len(ids) and int(ids.max()) >= size:
                self.unwritable.append(prompt)
            else:
                self.lengths.append((prompt, len(ids) + 1))


def look_at_data(job: Job) -> tuple[DataFigures, list[Finding]]:
    """The figures of the prompts, and what is wrong with them."""
    source, answers = prompts_key(job.recipe), _Answers(job)
    findings = [*_leaks(job, source), *_duplicates(job, source), *_missing(job, source), *_passes(job)]
    if job.recipe.environment is None:
        findings += [*_unwritable(answers, job.recipe), *_too_long(answers, job.recipe)]
    return _figures(job, answers), findings


def _figures(job: Job, answers: _Answers) -> DataFigures:
    recipe = job.recipe
    every = (*job.train, *job.held_out)
    phase = job.phases[-1]
    lengths = [length for _, length in answers.lengths] if recipe.environment is None else []
    return DataFigures(
        num_train=len(job.train),
        num_held_out=len(job.held_out),
        num_answers=len(answers.with_answer),
        num_duplicates=len(every) - len({_task(job, p) for p in every}),
        prompt_tokens=Quantiles.of([len(p.token_ids) for p in every]),
        answer_tokens=Quantiles.of(lengths) if lengths else None,
        max_prompt_tokens=getattr(recipe.prompts, "max_prompt_tokens", None),
        max_tokens=recipe.sampling.max_tokens,
        context=_of_model(job, "max_position_embeddings"),
        passes=phase.pool.groups_per_step * phase.steps / len(job.train),
    )


def prompts_key(recipe: Recipe) -> str:
    """The key that says where the prompts come from."""
    named = next((k for k in ("path", "use", "name") if getattr(recipe.prompts, k, None) is not None), "type")
    return f"prompts.{named}"


def _asked(prompt: Prompt) -> tuple[int, ...] | str:
    return prompt.text or tuple(prompt.token_ids.tolist())


def _task(job: Job, prompt: Prompt) -> object:
    """What tells one prompt from another: what is asked, and with an environment all that it is made from."""
    if job.recipe.environment is None:
        return _asked(prompt)
    return _asked(prompt), json.dumps(dict(prompt.data), sort_keys=True, default=list)


def _example(prompt: Prompt) -> Example:
    return Example(uid=prompt.uid, prompt=prompt.text, answer=gold_of(prompt) or "")


def _leaks(job: Job, source: str) -> Iterator[Finding]:
    """Held-out prompts that are trained on under another uid."""
    trained = {_task(job, prompt) for prompt in job.train}
    leaked = [prompt for prompt in job.held_out if _task(job, prompt) in trained]
    if leaked:
        yield Finding(
            code="data.leak",
            severity=by_share(len(leaked), len(job.held_out)),
            message=f"{share_text(len(leaked), len(job.held_out))} held-out prompts are trained on as well, with the "
            "same text under another uid, so evaluations would measure memory.",
            remedy=f"Set prompts.unique=true, or remove the doubles from {source} yourself.",
            keys=("prompts.unique", source),
            examples=tuple(_example(p) for p in leaked[:_EXAMPLES]),
        )


def _duplicates(job: Job, source: str) -> Iterator[Finding]:
    """The same text twice in training, apart: with the same answer, and with another one."""
    by_text: dict[object, list[Prompt]] = {}
    for prompt in job.train:
        by_text.setdefault(_task(job, prompt), []).append(prompt)
    doubles = [prompts for prompts in by_text.values() if len(prompts) > 1]
    conflicts = [prompts for prompts in doubles if len({gold_of(p) for p in prompts}) > 1]
    if conflicts:
        count = sum(map(len, conflicts))
        yield Finding(
            code="data.conflict",
            severity="warning",
            message=f"{share_text(count, len(job.train))} training prompts have the text of another one and a "
            f"different answer, so what is right depends on luck.",
            remedy=f"Keep one answer for each text in {source}, or put into the prompt what tells them apart.",
            keys=(source,),
            examples=tuple(_example(p) for p in conflicts[0][:_EXAMPLES]),
        )
    repeated = sum(len(prompts) - 1 for prompts in doubles)
    if repeated and not conflicts:
        yield Finding(
            code="data.duplicate",
            severity="note",
            message=f"{share_text(repeated, len(job.train))} training prompts repeat the text of another one; each "
            "counts as a prompt of its own.",
            remedy="Fine if it is meant as weight; else set prompts.unique=true.",
            keys=("prompts.unique",),
            examples=tuple(_example(p) for p in doubles[0][:2]),
        )


def _missing(job: Job, source: str) -> Iterator[Finding]:
    """Answers that are empty, and prompts without one where others have one."""
    every = (*job.train, *job.held_out)
    golds = {prompt.uid: gold_of(prompt) for prompt in every}
    empty = [p for p in every if golds[p.uid] is not None and not (golds[p.uid] or "").strip()]
    lacking = [p for p in every if "answer" not in p.data]
    if empty and job.recipe.environment is None:
        yield Finding(
            code="data.empty",
            severity=by_share(len(empty), len(every)),
            message=f"The answer of {share_text(len(empty), len(every))} prompts is empty, so nothing is right.",
            remedy=f"Fill the answers in {source}, or remove these prompts.",
            keys=(source,),
            examples=tuple(_example(p) for p in empty[:_EXAMPLES]),
        )
    if lacking and len(lacking) < len(every):
        yield Finding(
            code="data.missing",
            severity=by_share(len(lacking), len(every)),
            message=f"{share_text(len(lacking), len(every))} prompts have no answer, and the others have one.",
            remedy=f"Give them one in {source}, or remove them.",
            keys=(source,),
            examples=tuple(_example(p) for p in lacking[:_EXAMPLES]),
        )


def _unwritable(answers: _Answers, recipe: Recipe) -> Iterator[Finding]:
    """Answers that the model has no tokens for."""
    count = len(answers.unwritable)
    if count:
        read = count + len(answers.lengths)
        yield Finding(
            code="data.tokens",
            severity=by_share(count, read),
            message=f"The answer of {share_text(count, read)} prompts has characters or tokens that the model does not "
            "know, so it can never be written.",
            remedy=f"Take a model with a larger vocabulary (model.path={recipe.model.path}), or change these answers.",
            keys=("model.path",),
            examples=tuple(_example(p) for p in answers.unwritable[:_EXAMPLES]),
        )


def _too_long(answers: _Answers, recipe: Recipe) -> Iterator[Finding]:
    """Answers that do not fit the budget of a completion."""
    budget = recipe.sampling.max_tokens
    over = [(prompt, length) for prompt, length in answers.lengths if length > budget]
    if over:
        longest = max(length for _, length in over)
        yield Finding(
            code="data.budget",
            severity=by_share(len(over), len(answers.lengths)),
            message=f"{share_text(len(over), len(answers.lengths))} answers cannot be written within "
            f"sampling.max_tokens={budget}: the longest takes {longest} tokens with its end.",
            remedy=f"Set sampling.max_tokens={longest} or more, or remove these prompts.",
            keys=("sampling.max_tokens",),
            examples=tuple(_example(p) for p, _ in over[:_EXAMPLES]),
        )


def _passes(job: Job) -> Iterator[Finding]:
    """How often the prompts are seen."""
    phase, num = job.phases[-1], len(job.train)
    per_step = phase.pool.groups_per_step
    if num < per_step:
        yield Finding(
            code="data.few",
            severity="warning",
            message=f"A step takes {per_step} groups and there are {num} prompts to train on, so each step sees "
            "prompts twice.",
            remedy=f"Set schedule.groups_per_step={num} or less, or give more prompts.",
            keys=("schedule.groups_per_step",),
        )
    elif per_step * phase.steps < num:
        yield Finding(
            code="data.unseen",
            severity="note",
            message=f"{phase.steps:,} steps of {per_step} groups see {share_text(per_step * phase.steps, num)} of the "
            "training prompts.",
            remedy=f"For a whole pass set steps={-(-num // per_step)}, or epochs=1.",
            keys=("steps", "epochs"),
        )


def _of_model(job: Job, key: str) -> int | None:
    """A number of the model's configuration; None for a fake engine, which has no model."""
    if isinstance(job.recipe.engine, FakeEngineConfig):
        return None
    value = load_hf_config(job.model).get(key)
    return value if isinstance(value, int) else None
