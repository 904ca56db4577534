"""Nodes of on-policy distillation: what a teacher says of the policy's tokens, as advantages or as distributions."""

from stretto.algorithms.advantages import teacher_credit
from stretto.config.algorithms import Distillation, UpdateSettings
from stretto.graph import node
from stretto.roles import Score, Train
from stretto.types import Batch, Column, Credit, Distribution, LossRef, UpdateReport
from stretto.workflows.updates import each_part, weights_of

__all__ = ["distribution", "learn_distribution", "teacher_advantages"]


@node(on="teacher")
def distribution(batch: Batch, model: Score) -> Distribution:
    """What the teacher would write at every token of the batch. Nothing is computed yet: losses ask for it in pieces.

    It is an input of what learns from it, and says in the graph that the Model is needed.
    """
    return Distribution(model=model.model)


@node
def teacher_advantages(batch: Batch, teacher: Column) -> Credit:
    """Advantages that are the teacher's log-prob of each token less the policy's, as it was sampled; no rewards."""
    return teacher_credit(batch, teacher)


@node
def learn_distribution(
    batch: Batch,
    teacher: Distribution,
    model: Train,
    *,
    settings: Distillation = Distillation(),
    entropy_coef: float = 0.0,
    updates: UpdateSettings = UpdateSettings(),
) -> UpdateReport:
    """The updates of the policy in a step, towards the teacher's distribution at every token that the policy wrote."""
    given = {"divergence": settings.divergence, "beta": settings.beta, "top_k": settings.top_k}
    ref = LossRef(use="distill", settings={**given, "entropy_coef": entropy_coef}, teachers=(teacher.model,))
    return each_part(model, batch, updates, lambda part, _: ((weights_of(part, updates),), ref))
