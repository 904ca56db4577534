"""A Model that a backend holds, and what training adds to it: which tensors those are, by the names of checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from stretto.backends.torch.models import Network
from stretto.backends.torch.optimizer import AdamW
from stretto.backends.torch.ranks import WHOLE, Cut
from stretto.backends.torch.shards import is_cut, local_of
from stretto.backends.torch.state import ModelState
from stretto.plan import ModelFacts
from stretto.types import Json

__all__ = ["Held", "moments_of", "weights_of"]


@dataclass(slots=True, eq=False)
class Held:
    """``failure`` says why the gradient accumulated so far cannot be used.

    ``base``: what a checkpoint knows without holding it: what adapters stand on, or the weights of a ``fixed`` Model.
    ``facts``: its shape, where micro-batches are limited by memory.
    """

    network: Network
    optimizer: AdamW | None
    facts: ModelFacts | None = None
    base: Mapping[str, Json] | None = None
    failure: str | None = None
    fixed: bool = False

    def state(
        self,
        name: str,
        weights: Mapping[tuple[str, str], Tensor],
        moments: Mapping[tuple[str, str], Tensor],
        cut: Cut = WHOLE,
    ) -> ModelState:
        """What a checkpoint holds of it as Model ``name``; ``weights`` and ``moments`` are where released ones lie.
        Of a Model that is ``cut``: this rank's part."""
        own, optimizer = self.network.own_parameters(), self.optimizer
        return ModelState(
            name=name,
            weights=None if self.fixed else {key: weights.get((name, key), local_of(p)) for key, p in own.items()},
            moments=None if optimizer is None else {k: moments.get((name, k), t) for k, t in optimizer.state().items()},
            kind="" if optimizer is None else optimizer.kind,
            steps={} if optimizer is None else optimizer.steps(),
            base=self.base,
            cut=cut,
            shapes={key: tuple(p.shape) for key, p in own.items()},
        )


def moments_of(models: Mapping[str, Held]) -> dict[tuple[str, str], Tensor]:
    """Every tensor of an optimizer's state, by Model and name."""
    trained = [(name, held.optimizer) for name, held in models.items() if held.optimizer is not None]
    return {(name, key): tensor for name, optimizer in trained for key, tensor in optimizer.state().items()}


def weights_of(models: Mapping[str, Held]) -> dict[tuple[str, str], Tensor]:
    """Every weight once, whichever Models stand on it; by the name under which a checkpoint holds it, if any does.
    Shards are not among them: they move by themselves (``Network.put_shards``)."""
    found: dict[tuple[str, str], Tensor] = {}
    for name, held in models.items():
        own = held.network.own_parameters()
        found |= {(name, key): p for key, p in own.items()}
        others = {id(p) for p in own.values()}
        found |= {(name, f"#{i}"): p for i, p in enumerate(held.network.parameters()) if id(p) not in others}
    found = {key: tensor for key, tensor in found.items() if not is_cut(tensor)}
    once = {id(tensor): key for key, tensor in reversed(found.items())}
    return {key: tensor for key, tensor in found.items() if once[id(tensor)] == key}
