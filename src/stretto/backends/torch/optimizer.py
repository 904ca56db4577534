"""AdamW over named parameters: its moments by name, in float32 or 8 bits, its arithmetic torch's fused kernel.

``torch.optim.AdamW`` would compute the same; asking it for an object loads torch's compiler, which takes longer than
everything else that a run loads. Of weights that are cut over ranks it moves this rank's shards. Owns moments and
counts of steps; no gradients, no files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stretto.backends.torch.quantised import BLOCK, Quantised
from stretto.backends.torch.shards import local_of
from stretto.config.backends import TorchBackendConfig

__all__ = ["AdamW", "Moments"]

SMALL = 4096
"""Parameters with fewer numbers keep float32 moments, as in the paper of 8-bit optimizers."""
SLICE = 2**10 * BLOCK
"""Numbers whose 8-bit moments are float32 at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """Of one parameter: running means of the gradient and of its square, and how often it was stepped (a scalar)."""

    exp_avg: Tensor | Quantised
    exp_avg_sq: Tensor | Quantised
    step: Tensor


class AdamW:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101); matrices decay, norms and biases do not.

    With ``optimizer: adamw8bit`` moments are kept in 8 bits (Dettmers et al. 2022, arXiv:2110.02861), those of
    embeddings too, and a step computes with them in float32.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], config: TorchBackendConfig) -> None:
        self.parameters = parameters
        self._config = config
        self.moments: dict[str, Moments] = {}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move every parameter that has a gradient, at rate ``lr``."""
        moving = {name: p for name, p in self.parameters.items() if p.grad is not None}
        for name in moving:
            if name not in self.moments:
                self.moments[name] = self._fresh(name)
        matrices = [name for name, p in moving.items() if p.dim() >= 2]
        self._move(matrices, lr, self._config.weight_decay)
        self._move([name for name in moving if name not in set(matrices)], lr, 0.0)

    @property
    def kind(self) -> str:
        """As ``backend.optimizer`` names it."""
        return self._config.optimizer

    def state(self) -> Mapping[str, Tensor]:
        """Everything but counts of steps, by names under which ``restore`` takes it."""
        found: dict[str, Tensor] = {}
        for name, moments in self.moments.items():
            for kind in _KINDS:
                match getattr(moments, kind):
                    case Quantised(codes=codes, scales=scales):
                        found |= {f"{kind}.codes.{name}": codes, f"{kind}.scales.{name}": scales}
                    case plain:
                        found[f"{kind}.{name}"] = plain
        return found

    def steps(self) -> Mapping[str, int]:
        """How often each parameter was stepped."""
        return {name: int(moments.step.item()) for name, moments in self.moments.items()}

    def restore(self, state: Mapping[str, Tensor], steps: Mapping[str, int]) -> None:
        """Go on from the moments of another time. KeyError if they are not of these parameters."""
        self.moments = {name: self._fresh(name) for name in steps}
        own = self.state()
        if own.keys() != state.keys() or any(own[name].shape != state[name].shape for name in own):
            raise KeyError("moments of other parameters")
        for name, tensor in own.items():
            tensor.copy_(state[name])
        for name, count in steps.items():
            self.moments[name].step.fill_(count)

    def _fresh(self, name: str) -> Moments:
        parameter = self.parameters[name]
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        if self._config.optimizer == "adamw" or parameter.numel() < SMALL:
            own = local_of(parameter)
            return Moments(exp_avg=torch.zeros_like(own), exp_avg_sq=torch.zeros_like(own), step=step)
        first, second = (
            Quantised.zeros(parameter.numel(), signed=signed, device=parameter.device) for signed in (True, False)
        )
        return Moments(exp_avg=first, exp_avg_sq=second, step=step)

    def _move(self, names: Sequence[str], lr: float, weight_decay: float) -> None:
        plain = list[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]()
        for name in names:
            parameter, held = self.parameters[name], self.moments[name]
            grad = parameter.grad
            assert grad is not None
            match held.exp_avg, held.exp_avg_sq:
                case Quantised() as first, Quantised() as second:
                    self._move_quantised(parameter, grad, (first, second), held.step, (lr, weight_decay))
                case Tensor() as first, Tensor() as second:
                    plain.append((local_of(parameter), local_of(grad), first, second, held.step))
        if plain:
            self._kernel(plain, lr, weight_decay)

    def _move_quantised(
        self,
        parameter: Tensor,
        grad: Tensor,
        moments: tuple[Quantised, Quantised],
        step: Tensor,
        rates: tuple[float, float],
    ) -> None:
        """A slice at a time, so that little of it is float32 at once."""
        flat, grad = parameter.view(-1), grad.reshape(-1)
        before = step.clone()
        for start in range(0, len(flat), SLICE):
            stop = min(start + SLICE, len(flat))
            first, second = (each.read(start, stop) for each in moments)
            step.copy_(before)
            self._kernel([(flat[start:stop], grad[start:stop], first, second, step)], *rates)
            moments[0].write(start, first)
            moments[1].write(start, second)

    def _kernel(
        self, together: Sequence[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]], lr: float, weight_decay: float
    ) -> None:
        """Parameters, gradients, first and second moments, counts of steps: all but the gradients are changed."""
        parameters, grads, firsts, seconds, steps = map(list, zip(*together, strict=True))
        torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            parameters,
            grads,
            firsts,
            seconds,
            [],
            steps,
            amsgrad=False,
            lr=lr,
            beta1=self._config.betas[0],
            beta2=self._config.betas[1],
            weight_decay=weight_decay,
            eps=self._config.eps,
            maximize=False,
        )


_KINDS = ("exp_avg", "exp_avg_sq")
