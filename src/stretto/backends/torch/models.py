"""Models: the trunk of a causal language model with its head or a value head, from a folder or built in.

Owns construction and names; a Model's tensors carry their Hugging Face names. Scoring and training are elsewhere.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from stretto.backends.torch.decoder import UnfilledLinear, decoder_parts, fill_from_seed
from stretto.backends.torch.hf_config import check_weights, load_hf_config
from stretto.backends.torch.loading import load_weights
from stretto.backends.torch.lora import (
    BaseOrigin,
    activate,
    adapter_parameters,
    add_adapter,
    merged_weights,
    targets_of,
)
from stretto.backends.torch.packing import Pack
from stretto.backends.torch.parts import Parts
from stretto.backends.torch.ranks import Cut, Ranks
from stretto.backends.torch.recompute import recompute_layers
from stretto.backends.torch.shards import cut_root, local_of, release_root, sum_over_copies
from stretto.config.models import LoraConfig
from stretto.data.locations import folder_of
from stretto.errors import ConfigError
from stretto.families.decoder import DecoderSpec, own_decoder
from stretto.types import Json

__all__ = ["ModelSpec", "Network", "build_network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A Model to hold: ``path`` is a folder or ``builtin:NAME``; a value head replaces the language-model head.

    With ``lora`` adapters are what is trained and saved, over a base that stays. ``origin``: how exported adapters name
    that base, if not by ``path``. ``fixed``: nothing ever changes its weights, so a checkpoint knows them by a hash and
    does not hold them.
    """

    path: str
    trainable: bool = True
    fixed: bool = False
    value_head: bool = False
    lora: LoraConfig | None = None
    origin: BaseOrigin | None = None


class _Root(nn.Module):
    """Trunk and head as one module that computes states: what is cut into shards, by whatever name a Model calls it."""

    def __init__(self, trunk: nn.Module, head: nn.Module, parts: Parts) -> None:
        super().__init__()
        self.trunk, self.head = trunk, head
        self.layers_of_trunk = parts.layers
        self._run = parts.run

    def forward(self, pack: Pack) -> Tensor:
        return self._run(self.trunk, pack)


class Network(nn.Module):
    """The parts of a causal model under their own names: a trunk, and its head or a value head in place of it."""

    def __init__(self, parts: Parts, *, value_head: bool) -> None:
        super().__init__()
        self.config: Mapping[str, Json] = {}
        self.adapter: str | None = None
        self.trains_adapter = False
        self._own: Mapping[str, nn.Parameter] | None = None
        self.fill: Callable[[Cut], None] | None = None
        self.tied = parts.tied and not value_head
        self.logits = parts.logits
        self._trunk, self._head = parts.trunk_name, parts.head_name
        self.add_module(parts.trunk_name, parts.trunk)
        if not value_head:
            self.add_module(parts.head_name, parts.head)
        else:
            self.value_head = UnfilledLinear(parts.head.in_features, 1, bias=False)
            with torch.no_grad():
                self.value_head.weight.zero_()
        # In a tuple, for torch would name its parameters a second time.
        self._root = (_Root(parts.trunk, self.value_head if value_head else parts.head, parts),)

    @property
    def head(self) -> nn.Linear:
        """The language-model head."""
        return cast(nn.Linear, getattr(self, self._head))

    @property
    def has_values(self) -> bool:
        """Whether it is a critic."""
        return hasattr(self, "value_head")

    def hidden(self, pack: Pack) -> Tensor:
        """The states of the tokens that predict a written one, after the last norm, [P, C]."""
        if self.adapter is not None:
            # Which weights have gradients is told to shards, and passed on when they are gathered.
            self.release()
            activate(self, self.adapter, trained=self.trains_adapter)
        return self._root[0](pack)

    def cut(self, ranks: Ranks) -> None:
        """Keep this rank's shard of every weight from here on. Once for all views of a base, and after the last one.
        One without memory for its weights gets what its shards take, and they are read."""
        cut_root(self._root[0], self._root[0].layers_of_trunk, ranks)
        self._own = None
        if self.fill is not None:
            self._root[0].to_empty(device=ranks.device)
            self.fill(ranks.cut)
            if self.has_values:
                local_of(self.value_head.weight).zero_()

    def release(self) -> None:
        """Let go of weights that were gathered to compute with. Nothing where they are not cut."""
        release_root(self._root[0])

    def put_shards(self, device: torch.device) -> None:
        """Move what this rank holds; parameters stay the same objects."""
        self.release()
        self._root[0].to(device)

    def sum_over_copies(self, *, now: bool) -> None:
        """Whether the next backward passes sum gradients over copies too."""
        sum_over_copies(self._root[0], now=now)

    def stands_on(self, other: "Network") -> bool:
        """Whether both are views of one base."""
        return self._root[0] is other._root[0]

    def own_parameters(self) -> Mapping[str, nn.Parameter]:
        """What training changes and a checkpoint holds: all weights, tied ones once, or the adapters and value head."""
        if self._own is None:
            self.release()
            # torch walks over all modules to list them, and every step asks.
            if self.adapter is None:
                self._own = dict(self.named_parameters())
            else:
                heads = {n: p for n, p in self.named_parameters() if n.startswith("value_head.")}
                self._own = {**dict(adapter_parameters(self, self.adapter)), **heads}
        return self._own

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name in a fixed order, tied ones once, adapters merged one tensor at a time."""
        self.release()
        yield from self.own_parameters().items() if self.adapter is None else merged_weights(self, self.adapter)

    def trunk_weights(self) -> Iterator[tuple[str, Tensor]]:
        """``weights`` without those of a value head."""
        yield from (pair for pair in self.weights() if not pair[0].startswith("value_head."))

    def published(self) -> Iterator[tuple[str, Tensor]]:
        """As ``weights``, with the head even if it is the embedding's."""
        yield from self.weights()
        if self.tied:
            yield f"{self._head}.weight", self.head.weight

    def named_weights(self) -> Mapping[str, Tensor]:
        """``published``, all at once."""
        return dict(self.published())

    def with_adapters(self, name: str, lora: LoraConfig, *, seed: int | None, trained: bool) -> "Network":
        """A view of this network that computes with adapters named ``name``, which are put on it. The base is shared.

        Without a seed they do nothing until they are set.
        """
        trunk = cast(nn.Module, getattr(self, self._trunk))
        if self.adapter is None:
            self.requires_grad_(False)
            targets = targets_of(trunk, self._trunk, lora)
        else:
            targets = sorted(n for n, module in self.named_modules() if hasattr(module, "lora_A"))
        add_adapter(self, name, targets, lora, seed)
        view = copy.copy(self)
        view.adapter, view.trains_adapter, view._own = name, trained, None
        if self.has_values:
            view.value_head.requires_grad_(trained)
        activate(view, name, trained=trained)
        return view.eval()


def build_network(
    spec: ModelSpec, *, seed: int, device: torch.device, activation_checkpointing: bool = False, later: bool = False
) -> Network:
    """The Model of ``spec``, float32, in evaluation mode (no dropout). No global random state is read or changed.

    Initial weights that are not loaded depend on ``seed`` alone, so all Models of one path start equal. A value head
    starts at zero. DataError names a folder's missing config, weights or tensors. A family that Stretto has no forward
    of its own for is looked at and tried before it is believed. With ``activation_checkpointing`` layers are computed
    again in the backward pass; ConfigError for a family of which they are not known. ``later``: weights are read when
    the Model is ``cut``, if Stretto computes it and it comes from a folder, so that no rank ever holds all of them.
    """
    config = load_hf_config(spec.path)
    own = own_decoder(config)
    folder = folder_of(spec.path)
    later = later and own is not None and folder is not None
    if own is not None:
        parts = _own_parts(own, config, spec.path, "meta" if later else "cpu", seed)
    else:
        # transformers takes seconds to import: the usual families do without.
        from stretto.backends.torch.hugging_face import load_tried

        parts = load_tried(config, spec.path)
    if activation_checkpointing:
        if not parts.layers:
            raise ConfigError(
                f"backend.activation_checkpointing=true cannot be kept: the model in {spec.path!r} "
                f"({config.get('model_type')}) has no layers that are known to be computed again. Set it to false."
            )
        recompute_layers(parts.layers)
    with torch.device("meta" if later else "cpu"):
        network = Network(parts, value_head=spec.value_head)
    network.config = copy.deepcopy(dict(config))
    network.requires_grad_(spec.trainable)
    if later:
        assert folder is not None
        network.fill = partial(load_weights, parts, spec.path, folder)
        return network.eval()
    return network.eval().to(device)


def _own_parts(decoder: DecoderSpec, config: Mapping[str, Json], path: str, device: str, seed: int) -> Parts:
    """The Model that Stretto computes itself, its weights loaded or drawn, or with ``meta`` neither yet."""
    folder, padding = folder_of(path), config.get("pad_token_id")
    if folder is not None:
        check_weights(path)
    parts = decoder_parts(decoder, device)
    if device == "meta":
        return parts
    if folder is None:
        fill_from_seed(parts, decoder, padding if isinstance(padding, int) else None, seed)
    else:
        load_weights(parts, path, folder)
    return parts
