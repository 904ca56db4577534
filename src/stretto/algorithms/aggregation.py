"""How token losses become one number: a weight per token, computed over the whole update before any of it is cut.

A loss is ``sum(weight_t * loss_t)``, so micro-batches, packing and ranks change nothing but rounding. Where several
ranks hold parts of an update, each counts its own (``denominators``), the counts are added, and every rank weighs its
part by the sum: the gradients then add up to that of the whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.algorithms.names import known_names_only
from stretto.config.algorithms import Aggregation, EmptyRows, check_aggregation
from stretto.errors import ConfigError
from stretto.types import Batch, Column

__all__ = ["Denominators", "aggregation_weights", "denominators"]

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Denominators:
    """What weights are divided by: counts over an update, or over a part of it; parts add up.

    ``tokens``: those to train on. ``rows``: attempts with such a token; ``empty_rows``: the others.
    ``prompt_tokens``: tokens to train on by draw. An attempt must lie whole in one part; a draw need not.
    """

    tokens: int = 0
    rows: int = 0
    empty_rows: int = 0
    prompt_tokens: Mapping[int, int] = field(default_factory=dict[int, int])

    def __add__(self, other: "Denominators") -> "Denominators":
        both = {
            draw: self.prompt_tokens.get(draw, 0) + other.prompt_tokens.get(draw, 0)
            for draw in {**self.prompt_tokens, **other.prompt_tokens}
        }
        return Denominators(
            tokens=self.tokens + other.tokens,
            rows=self.rows + other.rows,
            empty_rows=self.empty_rows + other.empty_rows,
            prompt_tokens=both,
        )


def denominators(batch: Batch, keep: Column | None = None) -> Denominators:
    """The counts of ``batch``; tokens that ``keep`` marks with 0 are not trained on."""
    trained = _trained(batch, keep)
    row_tokens = np.bincount(_attempt_of_token(batch), weights=trained, minlength=_num_attempts(batch))
    draws, place = _draws(batch)
    prompt_tokens = np.bincount(_spread(batch, place), weights=trained, minlength=len(draws))
    filled = int((row_tokens > 0).sum())
    return Denominators(
        tokens=int(trained.sum()),
        rows=filled,
        empty_rows=len(row_tokens) - filled,
        prompt_tokens=dict(zip(draws.tolist(), prompt_tokens.astype(np.int64).tolist(), strict=True)),
    )


@known_names_only
def aggregation_weights(
    batch: Batch,
    aggregate: Aggregation = "token_mean",
    *,
    norm: float | None = None,
    empty_rows: EmptyRows = "exclude",
    keep: Column | None = None,
    counts: Denominators | None = None,
    num_ranks: int = 1,
) -> Column:
    """The Column ``weights`` [sum T, float64], 0 where there is nothing to train on; a batch without any has only 0.

    token_mean: 1 / tokens. seq_mean_token_mean: 1 / (tokens of the row * rows). seq_mean_token_sum: 1 / rows.
    token_sum_norm: 1 / norm. seq_mean_token_sum_norm: 1 / (norm * rows) (Dr. GRPO, arXiv:2503.20783).
    prompt_mean: 1 / (tokens of the draw * draws). The parts of an attempt are one row here.

    ``empty_rows``: whether rows (draws) without a token to train on count. ``keep``: a per-token Column, 0 where a
    written token is rejected: it leaves numerator and denominators. ``counts``: those of the whole update, where
    ``batch`` is a part of it. ``num_ranks``: for a backend that averages the gradients of so many ranks instead of
    adding them. ConfigError for a ``norm`` or ``empty_rows`` that ``aggregate`` lacks or does not read.
    """
    try:
        check_aggregation(aggregate, norm, empty_rows)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    counts = denominators(batch, keep) if counts is None else counts
    trained = _trained(batch, keep)
    rows = counts.rows + (counts.empty_rows if empty_rows == "include" else 0)
    if aggregate == "token_mean":
        divisor = np.full(len(trained), float(counts.tokens))
    elif aggregate == "seq_mean_token_mean":
        row = _attempt_of_token(batch)
        divisor = np.bincount(row, weights=trained, minlength=_num_attempts(batch))[row] * rows
    elif aggregate == "prompt_mean":
        draws, place = _draws(batch)
        of_draw = np.asarray([counts.prompt_tokens[draw] for draw in draws.tolist()], np.float64)
        num_draws = sum(tokens > 0 or empty_rows == "include" for tokens in counts.prompt_tokens.values())
        divisor = of_draw[_spread(batch, place)] * num_draws
    else:
        constant = 1.0 if norm is None else norm
        divisor = np.full(len(trained), constant * (1 if aggregate == "token_sum_norm" else rows))
    weights = np.divide(num_ranks * trained, divisor, out=np.zeros(len(trained)), where=trained > 0)
    return Column.per_token("weights", batch, weights)


def _trained(batch: Batch, keep: Column | None) -> Doubles:
    """1.0 for every token to train on [sum T]."""
    if keep is None:
        return batch.mask.astype(np.float64)
    if keep.offsets is None or keep.keys != batch.keys:
        raise ConfigError(
            f"the column {keep.name!r} is not a per-token column of the batch whose tokens it keeps. "
            "Make it with Column.per_token from this batch."
        )
    return ((batch.mask != 0) & (keep.values != 0)).astype(np.float64)


def _spread(batch: Batch, values_B: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number per row, for each of its tokens [sum T]."""
    return np.repeat(values_B, np.diff(batch.offsets))


def _num_attempts(batch: Batch) -> int:
    return int(batch.attempts.max(initial=-1)) + 1


def _attempt_of_token(batch: Batch) -> NDArray[np.int64]:
    return _spread(batch, batch.attempts)


def _draws(batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct draws of a batch, and the place of each row's among them [B]."""
    return np.unique(np.asarray([key.draw for key in batch.keys], np.int64), return_inverse=True)
