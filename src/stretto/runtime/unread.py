"""Refuses keys that were given and that nothing in the run would read: a setting without effect is a mistake.

Looks only at what the user gave (``model_fields_set``), so it belongs to the start of a run, not to a resume. Keys of
``algorithm`` that a workflow does not take are refused where it is traced (``graphs``).
"""

from collections.abc import Iterator, Sequence

from stretto.config.algorithms.inert import inert_fields
from stretto.config.base import Section
from stretto.config.evaluation import HELD_OUT, EvaluateConfig, settings_of
from stretto.config.orders import SuccessOrder
from stretto.config.recipe import Recipe
from stretto.config.sections import WarmupConfig
from stretto.errors import ConfigError
from stretto.graph import Graph, models_of
from stretto.runtime.filters import drops_zero_variance
from stretto.runtime.graphs import UNJUDGED
from stretto.runtime.pairs import pair_judge_of

__all__ = ["refuse_unread"]

OF_ATTEMPTS = frozenset(
    {"n", "temperature", "top_k", "top_p", "min_p", "max_tokens", "stop", "score", "full_mark", "vote"}
)
"""The keys of an evaluation that say how attempts are sampled and counted."""


def refuse_unread(recipe: Recipe, graphs: Sequence[Graph]) -> None:
    """Raises ConfigError that names every key without effect, with the reason, a line each."""
    lines = [f"{key} is set, and {why}" for key, why in _unread(recipe, graphs)]
    if lines:
        raise ConfigError("\n".join(lines))


def _unread(recipe: Recipe, graphs: Sequence[Graph]) -> Iterator[tuple[str, str]]:
    """Every given key that is not read, and why with what to do."""
    roles = {(model, kind) for graph in graphs for model, kinds in models_of(graph).items() for kind in kinds}
    if recipe.critic.model_fields_set and not any(model == "critic" for model, _ in roles):
        yield "critic.lr", "no workflow of the run has a critic. Remove it, or use algorithm.type=ppo."
    if recipe.teacher is not None and not any(model == "teacher" for model, _ in roles):
        yield "teacher", "no workflow of the run has a teacher. Remove it, or use algorithm.type=distill."
    if not any(kind == "generate" for _, kind in roles):
        for key in sorted(recipe.sampling.model_fields_set & {"n", "temperature", "top_k", "top_p", "min_p"}):
            yield f"sampling.{key}", "no workflow of the run samples (evaluations have evaluate.*). Remove it."
    if "to" in recipe.offload.model_fields_set and recipe.offload.trainer == "none":
        yield "offload.to", "the trainer gives up nothing. Remove it, or set offload.trainer=optimizer."
    if recipe.publish.check_weights == "off":
        for key in sorted(recipe.publish.model_fields_set & {"clear", "tolerance"}):
            yield f"publish.{key}", "publish.check_weights=off checks nothing. Remove it, or set check_weights=once."
    reward = recipe.reward
    given = reward.model_fields_set
    if "retries" in given and reward.on_error != "retry":
        yield "reward.retries", f"reward.on_error={reward.on_error} never retries. Remove it, or set on_error=retry."
    if "max_dropped" in given and reward.on_error != "drop":
        yield "reward.max_dropped", f"reward.on_error={reward.on_error} never drops. Remove it, or set on_error=drop."
    if "timeout_s" in given and reward.workers == 0:
        yield "reward.timeout_s", "reward.workers=0 judges without a timeout. Remove it, or set reward.workers=1."
    yield from _unread_environment(recipe, graphs)
    if all(spec.use in UNJUDGED for graph in graphs for spec in graph.nodes if spec.world == "group"):
        for key in _looks_at_rewards(recipe):
            yield key, "no node of the workflow gives rewards. Remove it, or train with a workflow that judges."
    bounds = recipe.filter.reward
    if recipe.filter.score is not None and not drops_zero_variance(recipe) and bounds.min is bounds.max is None:
        yield "filter.score", "no filter looks at rewards. Remove it, or set filter.zero_variance or filter.reward."
    if recipe.filter.zero_variance is not None and "dynamic_sampling" in recipe.algorithm.model_fields_set:
        yield "algorithm.dynamic_sampling", "filter.zero_variance decides in its place. Remove one of them."
    if recipe.workflow in (None, recipe.algorithm.type):
        for key, why in inert_fields(recipe.algorithm).items():
            if _is_given(recipe.algorithm, key.split(".")):
                yield f"algorithm.{key}", f"{why}. Remove it."
    yield from _unread_evaluate("evaluate", recipe.evaluate, EvaluateConfig())
    if recipe.warmup is not None:
        yield from _unread_evaluate("warmup.evaluate", recipe.warmup.evaluate, WarmupConfig().evaluate)
    if pair_judge_of(graphs[-1]) is not None:
        yield from _unread_beside_pairs(recipe)


def _looks_at_rewards(recipe: Recipe) -> Iterator[str]:
    """The given keys of filter and order that nothing can be made of without rewards."""
    if recipe.filter.zero_variance:
        yield "filter.zero_variance"
    bounds = recipe.filter.reward
    yield from (f"filter.reward.{key}" for key in ("min", "max") if getattr(bounds, key) is not None)
    if isinstance(recipe.order, SuccessOrder):
        yield "order.type=success"


def _is_given(section: Section, names: Sequence[str]) -> bool:
    """Whether the recipe says something at a dotted key below ``section``."""
    below = getattr(section, names[0])
    if names[0] not in section.model_fields_set or len(names) == 1:
        return names[0] in section.model_fields_set
    return isinstance(below, Section) and _is_given(below, names[1:])


def _unread_environment(recipe: Recipe, graphs: Sequence[Graph]) -> Iterator[tuple[str, str]]:
    environment = recipe.environment
    if environment is None:
        return
    kinds = {role.kind for graph in graphs for spec in graph.nodes for role in spec.roles.values()}
    if "environment" not in kinds and not (recipe.evaluate.every or recipe.evaluate.at_start or recipe.evaluate.at_end):
        yield "environment", "no node of the workflow plays against it (rollout does). Remove it."
    given = environment.model_fields_set
    if "retries" in given and environment.on_error != "retry":
        yield "environment.retries", f"environment.on_error={environment.on_error} never retries. Remove it."
    if "max_dropped" in given and environment.on_error != "drop":
        yield "environment.max_dropped", f"environment.on_error={environment.on_error} never drops. Remove it."
    if "timeout_s" in given and environment.workers == 0:
        yield "environment.timeout_s", "environment.workers=0 plays without a timeout. Remove it, or set workers=1."


def _unread_beside_pairs(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What is only about attempts, of a main phase whose workflow learns from pairs."""
    evaluate, why = recipe.evaluate, "evaluations are about pairs of answers. Remove it, or set"
    names = [HELD_OUT] if recipe.prompts.held_out > 0 else []
    of_pairs = [name for name in (*names, *evaluate.sets) if settings_of(evaluate, name).by != "attempts"]
    for name in of_pairs:
        own = evaluate.sets.get(name)
        for key in sorted(own.model_fields_set & {*OF_ATTEMPTS, "reward"}) if own is not None else ():
            yield f"evaluate.sets.{name}.{key}", f"{why} evaluate.sets.{name}.by=attempts."
    if len(of_pairs) == len(names) + len(evaluate.sets):
        for key in sorted(evaluate.model_fields_set & OF_ATTEMPTS):
            yield f"evaluate.{key}", f"{why} evaluate.by=attempts."


def _unread_evaluate(where: str, evaluate: EvaluateConfig, left_out: EvaluateConfig) -> Iterator[tuple[str, str]]:
    """``left_out``: what the section is where nothing is said; its keys fill one that says only some."""
    never = not (evaluate.every or evaluate.at_start or evaluate.at_end)
    said = evaluate.model_fields_set - {"every", "at_start", "at_end"}
    given = sorted(key for key in said if getattr(evaluate, key) and getattr(evaluate, key) != getattr(left_out, key))
    for key in given if never else ():
        yield f"{where}.{key}", f"nothing is evaluated. Remove it, or set {where}.every."
    once = all(settings_of(evaluate, name).n == 1 for name in (HELD_OUT, *evaluate.sets))
    if evaluate.vote is not None and once:
        yield f"{where}.vote", f"one attempt has no majority. Remove it, or set {where}.n=8."
    for name, own in evaluate.sets.items():
        if "held_out" in own.prompts.model_fields_set:
            key = f"{where}.sets.{name}.prompts.held_out"
            yield key, f"a set is evaluated whole. Remove it; {where}.sets.{name}.limit takes fewer prompts."
