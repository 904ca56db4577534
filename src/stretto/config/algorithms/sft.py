"""Supervised fine-tuning."""

from typing import ClassVar, Literal

from stretto.config.algorithms.base import Named

__all__ = ["SftConfig"]


class SftConfig(Named):
    """Supervised fine-tuning: the mean negative log-likelihood of demonstrations."""

    type: Literal["sft"] = "sft"
    """Which algorithm."""
    aggregate: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "prompt_mean"] = "token_mean"
    """How token losses become one number; denominators are taken over the whole update."""

    formula: ClassVar[str] = "L = -logp of the answer's tokens, mean over tokens"
    paper: ClassVar[str] = ""
