"""Models cut into shards (FSDP2, Zhao et al., arXiv:2304.11277), and tensors of which a rank holds a part.

Gradients are sums over ranks, not means: losses are sums whose weights already are over the whole update. Weights are
gathered layer by layer as float32, and autocast makes the lower type of them as in one process: a policy of FSDP2 that
gathers bfloat16 would round norms and residuals too, and give other numbers. The backward pass keeps what autocast made
of all layers; with ``backend.activation_checkpointing`` of one at a time.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from stretto.backends.torch.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

__all__ = ["cut_root", "is_cut", "local_of", "release_root", "sum_over_copies", "whole_of"]


def cut_root(root: nn.Module, layers: Iterable[nn.Module], ranks: Ranks) -> None:
    """Leave of every parameter of ``root`` this rank's shard. Layers are gathered one by one while they compute; what
    lies outside them stays from the forward to the backward pass, so that a head may be used in between."""
    from torch.distributed.fsdp import fully_shard  # takes long, and one process does without

    for layer in layers:
        fully_shard(layer, mesh=ranks.mesh)
    fully_shard(root, mesh=ranks.mesh, reshard_after_forward=False)
    for module in root.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            sharded = cast("FSDPModule", module)
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)


def release_root(root: nn.Module) -> None:
    """Let go of what was gathered. Nothing for a Model that is not cut."""
    if hasattr(root, "reshard"):
        cast("FSDPModule", root).reshard()


def sum_over_copies(root: nn.Module, *, now: bool) -> None:
    """Whether the next backward passes sum gradients over copies too, or only within each."""
    cast("FSDPModule", root).set_requires_all_reduce(now)


def is_cut(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which this rank holds a shard. Asked without loading what makes them."""
    return type(tensor) not in (Tensor, nn.Parameter)


@torch.no_grad()
def local_of(tensor: Tensor) -> Tensor:
    """What this rank holds of ``tensor``, in the same memory; all of one that is not cut."""
    return cast(Tensor, cast(Any, tensor).detach().to_local()) if is_cut(tensor) else tensor.detach()


@torch.no_grad()
def whole_of(tensor: Tensor) -> Tensor:
    """All of ``tensor`` on this rank's device. Collective for one that is cut."""
    return cast(Tensor, cast(Any, tensor).detach().full_tensor()) if is_cut(tensor) else tensor.detach()
