"""``Tokens``: what a loss is given, and ``LossOutput``: what it gives. Owns reductions over rows; knows no formula."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from stretto.errors import ConfigError, nearest
from stretto.types import Metrics

__all__ = ["Loss", "LossOutput", "Tokens", "VocabularyFunction"]

VocabularyFunction: TypeAlias = Callable[..., Tensor]
"""``f(logp_nV, *teachers_nV) -> [n]`` of log-probs over the vocabulary at n tokens, the Model's own first."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """The written tokens of one micro-batch, N of them, in key order, from R rows.

    A Model with a value head gives ``values_N``; any other ``logprobs_N`` and ``entropy_N``. These carry gradient.
    ``sampler_logprobs_N`` are those of the engine; ``sampled_N`` is False for tokens of demonstrations, which no engine
    sampled. ``rows_N``: each token's row, 0 to ``num_rows - 1``; a row is a trajectory (a part of an attempt), and it
    is never cut by micro-batches. ``columns`` are the per-token Columns that were passed, by name.

    Only where the LossRef asks for it: ``groups_R``, each row's group, 0 to ``num_groups - 1``, which is not cut either
    (``unit`` "group"); ``vocabulary``, which applies a function to whole distributions (``teachers``).
    """

    weights_N: Tensor
    sampler_logprobs_N: Tensor
    sampled_N: Tensor
    rows_N: Tensor
    num_rows: int
    columns: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    logprobs_N: Tensor | None = None
    entropy_N: Tensor | None = None
    values_N: Tensor | None = None
    groups_R: Tensor | None = None
    num_groups: int = 0
    vocabulary: Callable[[VocabularyFunction, Tensor | None], Tensor] | None = None

    def column(self, name: str) -> Tensor:
        """The Column ``name`` [N]. ConfigError if it was not passed."""
        if name not in self.columns:
            raise ConfigError(
                f"the loss needs the column {name!r}, and it was not passed to the update.{nearest(name, self.columns)}"
            )
        return self.columns[name]

    def policy_logprobs(self) -> Tensor:
        """The Model's log-probs [N], with gradient. ConfigError on a Model with a value head."""
        if self.logprobs_N is None:
            raise ConfigError("the loss needs log-probs, and the Model has a value head. Train a policy with it.")
        return self.logprobs_N

    def critic_values(self) -> Tensor:
        """The Model's values [N], with gradient. ConfigError on a Model without a value head."""
        if self.values_N is None:
            raise ConfigError("the loss needs values, and the Model has no value head. Train a critic with it.")
        return self.values_N

    def old_logprobs(self) -> Tensor:
        """The column ``old_logprobs`` [N]; left out, the current ones without gradient: every ratio is exactly 1."""
        return self.columns.get("old_logprobs", self.policy_logprobs().detach())

    def weighted_sum(self, loss_N: Tensor) -> Tensor:
        """``sum(weights_N * loss_N)``, the only reduction a loss needs."""
        return (self.weights_N * loss_N).sum()

    def row_sum(self, values_N: Tensor) -> Tensor:
        """The sum over the tokens of each row [R]."""
        return values_N.new_zeros(self.num_rows).index_add(0, self.rows_N, values_N)

    def row_mean(self, values_N: Tensor) -> Tensor:
        """The mean over the tokens of each row [R]; 0 of a row without any."""
        return self.row_sum(values_N) / self.row_sum(torch.ones_like(values_N)).clamp(min=1)

    def group_sum(self, values_N: Tensor) -> Tensor:
        """The sum over the tokens of each group [G]. ConfigError if groups may be cut."""
        if self.groups_R is None:
            raise ConfigError(
                "the loss compares the rows of a group, and micro-batches may cut groups. Say unit='group' in its "
                "LossRef."
            )
        return values_N.new_zeros(self.num_groups).index_add(0, self.groups_R[self.rows_N], values_N)

    def over_vocabulary(self, function: VocabularyFunction) -> Tensor:
        """``function`` of log-probs over the vocabulary at every token [N], some tokens at a time, with gradient.

        It is given those of the Model, with gradient, and those of each of ``LossRef.teachers``. ConfigError without
        any.
        """
        if self.vocabulary is None:
            raise ConfigError(
                "the loss asks for whole distributions, and its LossRef names no Model to compare with. Name it in "
                "teachers=(...)."
            )
        return self.vocabulary(function, None)

    def to_tokens(self, values_R: Tensor) -> Tensor:
        """Each token's value of its row [N]."""
        return values_R[self.rows_N]

    def trained(self) -> "Tokens":
        """The tokens that are trained on: without those whose weight is 0, which a correction rejected.

        They leave the means over rows too, and whatever stands there (even NaN) reaches no loss and no gradient.
        """
        kept = self.weights_N != 0
        if bool(kept.all()):
            return self

        def own(values_N: Tensor | None) -> Tensor | None:
            return None if values_N is None else values_N[kept]

        def vocabulary(function: VocabularyFunction, places: Tensor | None) -> Tensor:
            assert self.vocabulary is not None
            of_all = kept.nonzero().squeeze(1)
            return self.vocabulary(function, of_all if places is None else of_all[places])

        return Tokens(
            weights_N=self.weights_N[kept],
            sampler_logprobs_N=self.sampler_logprobs_N[kept],
            sampled_N=self.sampled_N[kept],
            rows_N=self.rows_N[kept],
            num_rows=self.num_rows,
            columns={name: values_N[kept] for name, values_N in self.columns.items()},
            logprobs_N=own(self.logprobs_N),
            entropy_N=own(self.entropy_N),
            values_N=own(self.values_N),
            groups_R=self.groups_R,
            num_groups=self.num_groups,
            vocabulary=None if self.vocabulary is None else vocabulary,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LossOutput:
    """``total`` is the scalar to differentiate; ``metrics`` add up over micro-batches."""

    total: Tensor
    metrics: Metrics


Loss: TypeAlias = Callable[..., object]
"""``loss(tokens, **settings)``, which gives a LossOutput or a scalar tensor; ``resolve_loss`` binds the settings."""
