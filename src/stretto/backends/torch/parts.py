"""What a Model is made of, whoever computes its trunk: Stretto's own decoder or a module of transformers."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from stretto.backends.torch.packing import Pack
from stretto.families.facts import LogitShape

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """A causal language model in two pieces, under the names that its checkpoint gives them.

    ``run`` computes the states after the last norm [P, C] of the tokens of a Pack that predict one. ``layers`` are
    those of the trunk that come one after the other. ``tied``: the head's matrix is the embedding's.
    """

    trunk_name: str
    trunk: nn.Module
    layers: tuple[nn.Module, ...]
    head_name: str
    head: nn.Linear
    tied: bool
    logits: LogitShape
    run: Callable[[nn.Module, Pack], Tensor]
