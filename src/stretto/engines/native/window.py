"""One update window: weights by Hugging Face name, copied to where a forward wants them. Knows no model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch

from stretto.engines.native.matrix import turned
from stretto.errors import EngineError, nearest
from stretto.roles import NamedTensor

__all__ = ["Place", "WeightWindow"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """Where a named tensor of ``shape`` goes, and where ``also``, if anywhere. A ``rotary`` target is viewed as
    [heads, head_dim / 2, 2, rest]."""

    target: torch.Tensor
    shape: tuple[int, ...]
    rotary: bool = False
    also: torch.Tensor | None = None


class WeightWindow:
    """The sink of one update window. ``write`` may be called from any one thread while the window is open."""

    def __init__(self, places: Mapping[str, Place], tied: Mapping[str, tuple[int, ...]]) -> None:
        """``tied`` gives the shapes of names that stand for a tensor which is in ``places`` under another name."""
        self._places = places
        self._tied = tied
        self._written: set[str] = set()
        self._open = True

    def write(self, tensor: NamedTensor) -> None:
        """Copy one weight into place, cast to the engine's dtype.

        The head of a model with tied embeddings is checked and passed over: the embedding is the truth.
        """
        if not self._open:
            raise EngineError(f"{tensor.name} was written after its update window closed. Open a new window.")
        place = self._places.get(tensor.name)
        shape = place.shape if place else self._tied.get(tensor.name)
        if shape is None:
            raise EngineError(
                f"The engine's model has no weight {tensor.name!r}.{nearest(tensor.name, self._places)} "
                "Publish the weights of the model the engine was made for."
            )
        data = tensor.data
        if not isinstance(data, torch.Tensor) or tuple(data.shape) != shape:
            came = tuple(data.shape) if isinstance(data, torch.Tensor) else type(data).__name__
            raise EngineError(
                f"{tensor.name} must be a tensor of shape {shape}, got {came}. "
                "Publish the weights of the model the engine was made for."
            )
        if place:
            self._copy(place, data)
            self._written.add(tensor.name)

    @torch.inference_mode()
    def clear(self, patterns: Sequence[str]) -> None:
        """Set every weight whose name matches one of ``patterns`` to NaN, so that it has to be written."""
        for name, place in self._places.items():
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                for target in (place.target, *([] if place.also is None else [place.also])):
                    target.fill_(float("nan"))

    def close(self) -> None:
        """No more writes."""
        self._open = False

    def check_complete(self) -> None:
        """Raise EngineError naming the weights that were not written."""
        missing = [name for name in self._places if name not in self._written]
        if missing:
            shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
            raise EngineError(
                f"{len(missing)} of {len(self._places)} weights were not published: {shown}. "
                "A window must write every weight of the model."
            )

    @torch.inference_mode()
    def _copy(self, place: Place, data: torch.Tensor) -> None:
        if place.also is not None:
            place.also.copy_(data)
        if data.dim() == 2 and place.target.stride(0) < place.target.stride(-1):
            data = turned(data)  # by blocks, which element by element into place would not be
        if not place.rotary:
            place.target.copy_(data)
            return
        pairs, _, rest = place.target.shape[1:]
        # [heads, D/2, 2, rest] <- [heads, 2, D/2, rest]; the one head of a per-head norm goes to all heads.
        place.target.copy_(data.reshape(-1, 2, pairs, rest).transpose(1, 2))
