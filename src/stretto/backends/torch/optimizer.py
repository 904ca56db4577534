"""AdamW over named parameters: its moments by name, its arithmetic torch's fused kernel.

``torch.optim.AdamW`` would compute the same; asking it for an object loads torch's compiler, which takes longer than
everything else that a run loads. Owns moments and counts of steps; no gradients, no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from stretto.config.backends import TorchBackendConfig

__all__ = ["AdamW", "Moments"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Of one parameter: running means of the gradient and of its square, and how often it was stepped (a scalar)."""

    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor


class AdamW:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101); matrices decay, norms and biases do not."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: TorchBackendConfig) -> None:
        self._parameters = parameters
        self._config = config
        self.moments: dict[str, Moments] = {}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move every parameter that has a gradient, at rate ``lr``."""
        moving = {name: p for name, p in self._parameters.items() if p.grad is not None}
        for name, parameter in moving.items():
            if name not in self.moments:
                self.moments[name] = Moments(
                    exp_avg=torch.zeros_like(parameter),
                    exp_avg_sq=torch.zeros_like(parameter),
                    step=torch.zeros((), dtype=torch.float32, device=parameter.device),
                )
        matrices = [name for name, p in moving.items() if p.dim() >= 2]
        self._move(matrices, lr, self._config.weight_decay)
        self._move([name for name in moving if name not in set(matrices)], lr, 0.0)

    def restore(self, moments: Mapping[str, Moments]) -> None:
        """Go on from the moments of another time."""
        self.moments = dict(moments)

    def _move(self, names: list[str], lr: float, weight_decay: float) -> None:
        if not names:
            return
        held = [self.moments[name] for name in names]
        grads = [grad for name in names if (grad := self._parameters[name].grad) is not None]
        adamw(
            [self._parameters[name] for name in names],
            grads,
            [m.exp_avg for m in held],
            [m.exp_avg_sq for m in held],
            [],
            [m.step for m in held],
            fused=True,
            amsgrad=False,
            beta1=self._config.betas[0],
            beta2=self._config.betas[1],
            lr=lr,
            weight_decay=weight_decay,
            eps=self._config.eps,
            maximize=False,
        )
