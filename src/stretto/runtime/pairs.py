"""Preferences as a run knows them: which Model says which of two answers is better.

A reward model says it by its values, a policy that is trained on pairs by how much likelier than the reference it finds
an answer (Rafailov et al. 2023, arXiv:2305.18290, section 5.1). Owns no loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.data.tokens import Tokenizer
from stretto.errors import DataError
from stretto.graph import Graph, models_of
from stretto.runtime.binding import tokenize_for
from stretto.types import Prompt
from stretto.workflows.preferences import make_pair

__all__ = ["PairJudge", "check_pairs", "pair_judge_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairJudge:
    """The Model that says which answer is better: ``reward``, or ``policy`` beside its reference, times ``beta``."""

    model: str
    beta: float = 1.0


def pair_judge_of(graph: Graph, beta: float = 1.0) -> PairJudge | None:
    """What judges pairs in a run of this graph; None if it is not about pairs."""
    if not any(spec.use == "prefer" for spec in graph.nodes):
        return None
    models = models_of(graph)
    if "train" in models.get("reward", ()):
        return PairJudge(model="reward")
    return PairJudge(model="policy", beta=beta) if "reference" in models else None


def check_pairs(prompts: Sequence[Prompt], tokenizer: Tokenizer, positions: int | None) -> None:
    """Every prompt has two answers that can be read, in rows of at most ``positions`` tokens. DataError if not."""
    for prompt in prompts:
        for row in make_pair(prompt, tokenize_for(tokenizer)).trajectories:
            if positions is not None and len(row.token_ids_T) > positions:
                raise DataError(
                    f"prompt {prompt.uid!r} has {len(row.token_ids_T)} tokens with one of its two answers, and the "
                    f"model was made for {positions}. Shorten it, or leave it out."
                )
