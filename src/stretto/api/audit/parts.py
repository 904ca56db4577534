"""What is wrong with a reward's parts by name: those that say nothing, and names that the recipe counts by in vain."""

from collections.abc import Iterator, Mapping, Sequence

from stretto.api.audit.findings import Finding
from stretto.config.recipe import Recipe
from stretto.environments.rewards import Rewards
from stretto.errors import nearest

__all__ = ["part_findings", "score_findings"]


def part_findings(rewards: Rewards, given: Sequence[Mapping[str, float | None]]) -> list[Finding]:
    """Parts that applied to none of the answers. ``given``: what every answer that was judged got, by part."""
    silent = [part for part in rewards.parts if all(scores.get(part.name) is None for scores in given)]
    return [
        Finding(
            code="reward.part",
            severity="problem" if part.weight else "warning",
            message=f"Part {part.name} applied to none of {len(given):,} answers: it gave None for each (a forgotten "
            "return?), so it says nothing, and all that is told of the reward is of its other parts.",
            remedy=f"Let the function of reward.parts.{part.name} return a number, or remove reward.parts.{part.name}.",
            keys=(f"reward.parts.{part.name}",),
        )
        for part in silent
        if rewards.named and given
    ]


def score_findings(recipe: Recipe, given: Sequence[Mapping[str, float | None]]) -> Iterator[Finding]:
    """Scores that filter, order or evaluations count by, and that the reward's function gave for no answer.

    Before it is called nobody knows the names of a function that returns a dict, so ``prepare`` cannot refuse them.
    """
    names = sorted({name for scores in given for name in scores})
    order = getattr(recipe.order, "score", None)
    asked = {"filter.score": recipe.filter.score, "order.score": order, "evaluate.score": recipe.evaluate.score}
    for key, score in asked.items():
        if score is not None and names and score not in names:
            yield Finding(
                code="reward.score",
                severity="problem",
                message=f"{key}={score} is none of the scores that the reward gave, which are {', '.join(names)}, so "
                f"the run would fail where it counts by it.{nearest(score, names)}",
                remedy=f"Set {key} to one of them, or leave it out for the total.",
                keys=(key,),
            )
