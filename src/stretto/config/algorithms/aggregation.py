"""How token losses become one number: the names of the ways, and which settings each of them reads."""

from typing import Literal, TypeAlias

__all__ = ["COUNTLESS", "Aggregation", "EmptyRows", "check_aggregation"]

Aggregation: TypeAlias = Literal[
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "token_sum_norm",
    "seq_mean_token_sum_norm",
    "prompt_mean",
]
"""The formulas are in ``stretto.algorithms.aggregation``."""

EmptyRows: TypeAlias = Literal["exclude", "include"]
"""Whether a row (or prompt) without a token to train on counts in the number of rows (or prompts)."""

_NORMED = ("token_sum_norm", "seq_mean_token_sum_norm")
COUNTLESS = ("token_mean", "token_sum_norm")
"""The ways that count no rows or prompts."""


def check_aggregation(aggregate: Aggregation, norm: float | None, empty_rows: EmptyRows = "exclude") -> None:
    """Raises ValueError for a setting that ``aggregate`` needs and did not get, or got and does not read."""
    if aggregate in _NORMED and norm is None:
        raise ValueError(
            f"aggregate={aggregate} divides by a constant, and norm is not set. Set norm, usually to the largest "
            "number of tokens of a completion."
        )
    if aggregate not in _NORMED and norm is not None:
        raise ValueError(f"norm={norm} is not read by aggregate={aggregate}. Leave norm out, or take {_NORMED[0]}.")
    if aggregate in COUNTLESS and empty_rows != "exclude":
        raise ValueError(
            f"empty_rows={empty_rows} is not read by aggregate={aggregate}, which counts no rows. Leave it out."
        )
