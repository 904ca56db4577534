"""What a trained Model says of pairs of answers: by the values of a reward model, or by how much likelier than the
reference a policy finds one (Rafailov et al. 2023, arXiv:2305.18290, section 5.1).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.data.tokens import Tokenizer
from stretto.runtime.binding import tokenize_for
from stretto.runtime.learning import Learners
from stretto.runtime.pairs import PairJudge
from stretto.runtime.worker import Worker
from stretto.types import Batch, Group, Prompt
from stretto.workflows.preferences import closed, make_pair

__all__ = ["pair_rewards"]

AT_ONCE = 256
"""Pairs that are scored in one call."""


async def pair_rewards(
    learners: Learners, judge: PairJudge, tokenizer: Tokenizer, prompts: Sequence[Prompt]
) -> NDArray[np.float64]:
    """The rewards of every prompt's answers, the chosen one's first [P, 2]."""
    pairs = [make_pair(prompt, tokenize_for(tokenizer, draw)) for draw, prompt in enumerate(prompts)]
    found = [await learners.call(_rewards, judge, pairs[at : at + AT_ONCE]) for at in range(0, len(pairs), AT_ONCE)]
    return np.concatenate(found).reshape(-1, 2)


def _rewards(worker: Worker, judge: PairJudge, pairs: Sequence[Group]) -> NDArray[np.float64]:
    """One number a row, in key order."""
    batch, backend = Batch(groups=tuple(pairs)), worker.models
    if judge.model == "reward":
        ends = closed(batch)
        (values,) = backend.score("reward", ends, frozenset({"values"}))
        return values.values[ends.offsets[1:] - 1].astype(np.float64)
    (own,), (ref,) = (backend.score(model, batch, frozenset({"logprobs"})) for model in ("policy", "reference"))
    ratio = own.values.astype(np.float64) - ref.values
    return judge.beta * np.add.reduceat(ratio, batch.offsets[:-1])
