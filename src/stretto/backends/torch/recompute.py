"""Activation checkpointing (Chen et al. 2016, arXiv:1604.06174): of a layer only what goes into it is kept for the
backward pass, which computes the layer once more.

The graph stays as it is and saved tensors are left out of it, so gradients are the same bits; of a Function these are
what it gives to ``save_for_backward``. ``torch.utils.checkpoint`` would do the same and load torch's compiler.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["recompute_layers", "recomputed"]


def recomputed(function: Callable[[], Tensor], device: torch.device) -> Tensor:
    """``function()``, computed again in the backward pass. It gives the same whenever it is called."""
    with _left_out(function, device.type):
        return function()


def recompute_layers(layers: Iterable[nn.Module]) -> None:
    """From here on each of ``layers`` keeps its inputs alone when gradients are wanted."""
    for layer in layers:
        under_way: list[saved_tensors_hooks] = []
        layer.register_forward_pre_hook(partial(_enter, under_way), with_kwargs=True)
        layer.register_forward_hook(partial(_leave, under_way), always_call=True)


def _enter(
    under_way: list[saved_tensors_hooks], layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    device = next(layer.parameters()).device.type
    under_way.append(_left_out(partial(layer.forward, *args, **kwargs), device))
    under_way[-1].__enter__()


def _leave(under_way: list[saved_tensors_hooks], *_: object) -> None:
    under_way.pop().__exit__(None, None, None)


def _left_out(again: Callable[[], object], device: str) -> saved_tensors_hooks:
    """Inside, saved tensors are numbered and let go; the first one that is asked for brings them all back."""
    autocast = torch.autocast(
        device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device), cache_enabled=False
    )
    numbers = itertools.count()
    held: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> None:
        held[len(held)] = tensor.detach()

    def bring(number: int) -> Tensor:
        if not held:
            with torch.enable_grad(), autocast, saved_tensors_hooks(keep, _never):
                again()
        return held.pop(number)

    return saved_tensors_hooks(lambda _: next(numbers), bring)


def _never(_: object) -> Tensor:
    raise AssertionError("nobody goes back through a second computation")
