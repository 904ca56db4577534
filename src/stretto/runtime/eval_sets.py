"""The sets that a phase evaluates: their prompts loaded and checked, how they are sampled, and who judges them.

Made before a run is created. Sampling and counting themselves are ``evaluation``'s.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from stretto.config.algorithms import DpoConfig
from stretto.config.evaluation import HELD_OUT, EvalSettings, EvaluateConfig, settings_of
from stretto.config.recipe import Recipe
from stretto.config.rewards import RewardConfig
from stretto.data.order import split
from stretto.data.sources import load_prompts
from stretto.data.tokens import Tokenizer
from stretto.errors import ConfigError, UserError
from stretto.graph import Graph
from stretto.roles import Sampling
from stretto.runtime.pairs import PairJudge, pair_judge_of
from stretto.types import Prompt

__all__ = ["EvalSet", "main_sets", "own_rewards", "warmup_sets"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvalSet:
    """Prompts to evaluate on, in a fixed order. ``everything``: those beyond ``limit`` too.

    An attempt is right if its ``score`` (a named reward; None: the total) is ``full_mark`` or more. ``vote`` finds the
    answer in a text. ``judge`` is the key of the recipe under which its reward stands, empty for the recipe's own.
    ``max_tokens_key`` is where the recipe says how long a completion may be. ``pairs``: who says which of a prompt's
    two answers is better, which is then what counts; nothing is sampled.
    """

    name: str
    prompts: Sequence[Prompt]
    everything: Sequence[Prompt]
    sampling: Sampling
    n: int = 1
    score: str | None = None
    full_mark: float = 1.0
    vote: re.Pattern[str] | None = None
    judge: str = ""
    max_tokens_key: str = "sampling.max_tokens"
    pairs: PairJudge | None = None


def main_sets(recipe: Recipe, graph: Graph, held_out: Sequence[Prompt], tokenizer: Tokenizer) -> tuple[EvalSet, ...]:
    """The sets of the main phase, the held-out share first. Raises UserError for prompts that cannot be loaded."""
    judge = pair_judge_of(graph, recipe.algorithm.beta if isinstance(recipe.algorithm, DpoConfig) else 1.0)
    return _sets(recipe, recipe.evaluate, "evaluate", held_out, tokenizer, judge)


def warmup_sets(recipe: Recipe, graph: Graph, held_out: Sequence[Prompt], tokenizer: Tokenizer) -> tuple[EvalSet, ...]:
    """The sets of the warm-up."""
    assert recipe.warmup is not None
    return _sets(recipe, recipe.warmup.evaluate, "warmup.evaluate", held_out, tokenizer, pair_judge_of(graph))


def own_rewards(recipe: Recipe) -> Mapping[str, RewardConfig]:
    """The rewards that sets bring along, by their keys in the recipe."""
    sections = {"evaluate.sets": recipe.evaluate}
    if recipe.warmup is not None:
        sections["warmup.evaluate.sets"] = recipe.warmup.evaluate
    return {
        f"{where}.{name}.reward": own.reward
        for where, section in sections.items()
        for name, own in section.sets.items()
        if own.reward is not None
    }


def _sets(
    recipe: Recipe,
    evaluate: EvaluateConfig,
    section: str,
    held_out: Sequence[Prompt],
    tokenizer: Tokenizer,
    pairs: PairJudge | None,
) -> tuple[EvalSet, ...]:
    where = f"{section}.sets"
    found = [(HELD_OUT, held_out, "")] if held_out else []
    found += list(_further(recipe, evaluate, where, tokenizer))
    made: list[EvalSet] = []
    for name, prompts, judge in found:
        settings = settings_of(evaluate, name)
        if settings.by == "pairs" and pairs is None:
            raise ConfigError(
                f"{section}.by=pairs asks which of two answers the trained Model finds better, and the workflow does "
                f"not learn from pairs. Set algorithm.type=dpo or reward-model, or {section}.by=attempts."
            )
        one = _set(name, prompts, judge, settings, _sampling(recipe, settings, tokenizer))
        key = _max_tokens_key(evaluate, where, name)
        made.append(replace(one, max_tokens_key=key, pairs=None if settings.by == "attempts" else pairs))
    return tuple(made)


def _max_tokens_key(evaluate: EvaluateConfig, where: str, name: str) -> str:
    own = evaluate.sets.get(name)
    if own is not None and own.max_tokens is not None:
        return f"{where}.{name}.max_tokens"
    return "sampling.max_tokens" if evaluate.max_tokens is None else f"{where.removesuffix('.sets')}.max_tokens"


def _further(
    recipe: Recipe, evaluate: EvaluateConfig, where: str, tokenizer: Tokenizer
) -> Iterator[tuple[str, Sequence[Prompt], str]]:
    """(name, prompts in the order of their ranks, judge) of every set that is named."""
    for name, own in evaluate.sets.items():
        try:
            prompts, _ = split(load_prompts(own.prompts, tokenizer), 0.0, recipe.seed)
        except UserError as error:
            raise type(error)(f"{where}.{name}: {error}") from error
        yield name, prompts, "" if own.reward is None else f"{where}.{name}.reward"


def _set(name: str, prompts: Sequence[Prompt], judge: str, settings: EvalSettings, sampling: Sampling) -> EvalSet:
    return EvalSet(
        name=name,
        prompts=prompts[: settings.limit],
        everything=prompts,
        sampling=sampling,
        n=settings.n,
        score=settings.score,
        full_mark=settings.full_mark,
        vote=None if settings.vote is None else re.compile(settings.vote),
        judge=judge,
    )


def _sampling(recipe: Recipe, settings: EvalSettings, tokenizer: Tokenizer) -> Sampling:
    greedy = settings.temperature == 0  # then nothing is cut, whatever the section around a set says
    return Sampling(
        temperature=settings.temperature,
        top_k=0 if greedy else settings.top_k,
        top_p=1.0 if greedy else settings.top_p,
        min_p=0.0 if greedy else settings.min_p,
        max_tokens=settings.max_tokens or recipe.sampling.max_tokens,
        stop_ids=tokenizer.stop_ids,
        stop=recipe.sampling.stop if settings.stop is None else settings.stop,
    )
