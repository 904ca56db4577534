"""From a recipe to the settings of its algorithm's workflow. Pure."""

from stretto.config.algorithms import (
    DapoConfig,
    DistillConfig,
    DpoConfig,
    GaeConfig,
    PolicyGradient,
    PpoConfig,
    ProximalKind,
    RatioFields,
    RewardModelConfig,
    SftConfig,
    UpdateFields,
    VapoConfig,
)
from stretto.config.recipe import Recipe

__all__ = ["proximal_of", "settings_of"]


def proximal_of(recipe: Recipe) -> ProximalKind:
    """Where the old log-probs of the ratio come from, with ``auto`` resolved."""
    algorithm = recipe.algorithm
    if not isinstance(algorithm, RatioFields):
        return "detach"
    if algorithm.proximal != "auto":
        return algorithm.proximal
    weighted = isinstance(algorithm, UpdateFields) and algorithm.weighs_by_ratio
    if recipe.schedule.most_staleness and not weighted:  # else the ratio to the sampler would count twice
        return "sampler"
    return "recompute" if isinstance(algorithm, UpdateFields) and algorithm.num_updates > 1 else "detach"


def settings_of(recipe: Recipe) -> dict[str, object]:
    """The keyword arguments with which the workflow of the recipe's algorithm is traced."""
    algorithm, sampling = recipe.algorithm, recipe.sampling
    if isinstance(algorithm, SftConfig):
        return {"aggregate": algorithm.aggregate}
    if isinstance(algorithm, DpoConfig):
        return {name: getattr(algorithm, name) for name in ("beta", "loss", "label_smoothing")}
    if isinstance(algorithm, RewardModelConfig):
        return {"center_coef": algorithm.center_coef}
    if isinstance(algorithm, DistillConfig):
        return _distillation(recipe, algorithm)
    assert isinstance(algorithm, PolicyGradient), algorithm.type
    assert isinstance(algorithm, UpdateFields), algorithm.type
    settings: dict[str, object] = {
        "n": sampling.n,
        "estimator": algorithm.estimator,
        "penalty": algorithm.penalty,
        "loss": algorithm.loss,
        "terms": algorithm.terms,
        "correction": algorithm.correction,
        "proximal": proximal_of(recipe),
        "proximal_alpha": algorithm.proximal_alpha if isinstance(algorithm, RatioFields) else None,
        "updates": algorithm.updates(sampling.max_tokens),
    }
    if isinstance(algorithm.estimator, GaeConfig):
        assert isinstance(algorithm, PpoConfig | VapoConfig)
        return {**settings, "value_clip": algorithm.value_clip, "critic_warmup": algorithm.critic_warmup}
    settings["adaptive"] = algorithm.loss_kl
    settings["greedy"] = algorithm.takes_greedy
    if isinstance(algorithm, DapoConfig) and algorithm.charges:
        settings["max_tokens"] = sampling.max_tokens
        settings["overlong_buffer"] = algorithm.buffer(sampling.max_tokens)
        settings["overlong_penalty"] = algorithm.overlong_penalty
    return settings


def _distillation(recipe: Recipe, algorithm: DistillConfig) -> dict[str, object]:
    return {
        "n": recipe.sampling.n,
        "scored": algorithm.score_attempts,
        "over_vocabulary": algorithm.over_vocabulary,
        "entropy_coef": algorithm.entropy_coef,
        "loss": algorithm.loss,
        "correction": algorithm.correction,
        "proximal": proximal_of(recipe),
        "proximal_alpha": algorithm.proximal_alpha,
        "updates": algorithm.updates(recipe.sampling.max_tokens),
    }
