"""What the scheduler asks of a model: the one seam of the engine. Two implementations stand behind it.

``model.Decoder`` is Stretto's own for the Llama family, ``hugging_face.HuggingFaceForward`` runs a module of
transformers. Everything else (slots, prefill, sampling, windows, probe) is one code. Batch invariance is the
implementation's part of the bargain: a row's bits must not depend on its company, given rows x tokens and keys as
``Padding`` counts them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from stretto.engines.native.cache import KVCache
from stretto.engines.native.matrix import Product
from stretto.engines.native.shared import SharedPast
from stretto.engines.native.window import WeightWindow

__all__ = ["Forward", "HeldWeights", "Sizes"]

HeldWeights: TypeAlias = Any
"""What a forward keeps its weights in; opaque to everybody else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A model from outside. ``max_positions`` is None where nothing limits them."""

    vocab_size: int
    hidden: int
    max_positions: int | None


class Forward(Protocol):
    """Computes hidden states and logits over a KV cache, with weights that it lays out but does not keep."""

    @property
    def sizes(self) -> Sizes:
        """The sizes of the model."""
        ...

    @property
    def products(self) -> Sequence[Product]:
        """What rows x tokens are multiplied by."""
        ...

    @property
    def shares_prompts(self) -> bool:
        """Whether rows can have a part of their past in common."""
        ...

    def new_cache(self, rows: int, length: int) -> KVCache:
        """An empty cache."""
        ...

    def new_weights(self, *, invariant: bool) -> HeldWeights:
        """Memory for the weights, not yet filled. With ``invariant`` products of a multiple of rows that suits all
        ``products`` (``rows_alike``) give a row the same bits, however many rows there are."""
        ...

    def window(self, weights: HeldWeights) -> WeightWindow:
        """The sink that fills ``weights``."""
        ...

    def settle(self, weights: HeldWeights) -> None:
        """A window has filled all of ``weights``: be ready to compute with them."""
        ...

    def hidden(
        self,
        weights: HeldWeights,
        cache: KVCache,
        first: int,
        ids: torch.Tensor,
        positions: torch.Tensor,
        num_keys: int,
        shared: SharedPast | None = None,
    ) -> torch.Tensor:
        """Last hidden states [R, C, hidden] of tokens ``ids`` [R, C] at ``positions`` [R, C], int64.

        Row r of ``ids`` continues row ``first + r`` of the cache, whose keys and values at ``positions`` are written.
        With ``shared`` (one token a row, and only where ``shares_prompts``) the row holds what comes after the shared
        part, from its first place on. ``num_keys`` (of ``Padding``) is past every position; R x C is of it too.
        """
        ...

    def logits(self, weights: HeldWeights, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V], float32, of hidden states [R, hidden]; R is of ``Padding``."""
        ...
