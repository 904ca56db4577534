"""Models: the trunk of a causal language model with its head or a value head, from a folder or built in.

Owns construction and names; a Model's tensors carry their Hugging Face names. Scoring and training are elsewhere.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from stretto.backends.torch.attention import PACKED_ATTENTION, register_packed_attention
from stretto.backends.torch.hf_config import check_weights, load_hf_config
from stretto.backends.torch.lora import (
    BaseOrigin,
    activate,
    adapter_parameters,
    add_adapter,
    merged_weights,
    targets_of,
)
from stretto.backends.torch.packing import Pack
from stretto.backends.torch.trial import check_like_plain
from stretto.config.models import LoraConfig
from stretto.data.locations import folder_of
from stretto.errors import DataError
from stretto.families.facts import OWN_FORWARD
from stretto.families.modules import inspect_family, logit_shape
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


class Network(nn.Module):
    """The parts of a causal model under their own names: a trunk, and its head or a value head in place of it."""

    def __init__(self, causal: PreTrainedModel, *, value_head: bool) -> None:
        super().__init__()
        self.config: Mapping[str, Json] = {}
        self.adapter: str | None = None
        self.trains_adapter = False
        self.tied: bool = not value_head and bool(causal.config.tie_word_embeddings)
        self.logits = logit_shape(causal.config)
        self._trunk = causal.base_model_prefix
        head = cast(nn.Linear, causal.get_output_embeddings())
        for name, child in causal.named_children():
            if child is head:
                self._head = name
            if child is not head or not value_head:
                self.add_module(name, child)
        if value_head:
            # torch fills a new linear map from the global generator; this one is left as it is and then zeroed.
            self.value_head = cast(nn.Linear, nn.utils.skip_init(nn.Linear, head.in_features, 1, bias=False))
            nn.init.zeros_(self.value_head.weight)

    @property
    def head(self) -> nn.Linear:
        """The language-model head."""
        return cast(nn.Linear, getattr(self, self._head))

    @property
    def has_values(self) -> bool:
        """Whether it is a critic."""
        return hasattr(self, "value_head")

    def hidden(self, pack: Pack) -> Tensor:
        """The states that predict the written tokens' places, after the last norm, [M, C]."""
        if self.adapter is not None:
            activate(self, self.adapter, trained=self.trains_adapter)
        run = cast(Callable[..., Any], getattr(self, self._trunk))
        output = run(
            input_ids=pack.input_ids_M[None],
            position_ids=pack.position_ids_M[None],
            use_cache=False,
            layout=pack.layout,
        )
        return cast(Tensor, output.last_hidden_state)[0]

    def own_parameters(self) -> Mapping[str, nn.Parameter]:
        """What training changes and a checkpoint holds: all weights, tied ones once, or the adapters and value head."""
        if self.adapter is None:
            return dict(self.named_parameters())
        own = dict(adapter_parameters(self, self.adapter))
        return {**own, **{n: p for n, p in self.named_parameters() if n.startswith("value_head.")}}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name in a fixed order, tied ones once, adapters merged one tensor at a time."""
        yield from self.named_parameters() if self.adapter is None else merged_weights(self, self.adapter)

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
        view.adapter, view.trains_adapter = name, trained
        if self.has_values:
            view.value_head.requires_grad_(trained)
        activate(view, name, trained=trained)
        return view.eval()


def build_network(spec: ModelSpec, *, seed: int, device: torch.device) -> Network:
    """The Model of ``spec``, float32, in evaluation mode (no dropout). No global random state is read or changed.

    Initial weights that are not loaded depend on ``seed`` alone, so all Models of one path start equal. A value head
    starts at zero. DataError names a folder's missing config, weights or tensors. A family that Stretto has no forward
    of its own for is looked at and tried before it is believed.
    """
    register_packed_attention()
    config = load_hf_config(spec.path)
    own = config["model_type"] in OWN_FORWARD
    if not own:
        inspect_family(config)
    folder = folder_of(spec.path)
    causal = _from_seed(config, seed) if folder is None else _from_folder(spec.path, folder)
    with torch.device("cpu"):
        network = Network(causal, value_head=spec.value_head)
    if not own and not spec.value_head:
        check_like_plain(network, causal, spec.path)
    network.config = copy.deepcopy(dict(config))
    network.requires_grad_(spec.trainable)
    return network.eval().to(device)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """A library's bar has no place in the display of a run."""
    shown = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            enable_progress_bar()


def _from_folder(path: str, folder: Path) -> PreTrainedModel:
    check_weights(path)
    try:
        with _no_progress_bar():
            loaded = AutoModelForCausalLM.from_pretrained(
                str(folder),
                local_files_only=True,
                use_safetensors=True,
                dtype=torch.float32,
                attn_implementation=PACKED_ATTENTION,
                output_loading_info=True,
            )
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise DataError(f"the model in {path!r} cannot be loaded: {error}") from error
    model, info = cast(tuple[PreTrainedModel, Mapping[str, Collection[object]]], loaded)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(map(str, info[what]))
        if names:
            raise DataError(
                f"the weights in {path!r} do not fit its config.json: {what.replace('_keys', '')} {_some(names)}. "
                "Use a folder whose config and weights belong together."
            )
    # Some families look for this token in every input to warn about padding, of which there is none here.
    model.config.pad_token_id = None
    return model


def _from_seed(config: Mapping[str, Json], seed: int) -> PreTrainedModel:
    """Weights from a generator of its own: normal(0, initializer_range), norms 1, the padding embedding 0."""
    settings = {k: v for k, v in config.items() if k != "model_type"}
    hf_config = AutoConfig.for_model(str(config["model_type"]), **settings)
    # Built without storage, so that no initialisation of torch's or transformers' draws from the global generator.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(hf_config, attn_implementation=PACKED_ATTENTION, dtype=torch.float32)
    model.to_empty(device="cpu")
    model.tie_weights()
    rotary = model.base_model.rotary_emb
    model.base_model.rotary_emb = type(rotary)(config=hf_config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, hf_config.initializer_range, generator=generator)
        if hf_config.pad_token_id is not None:
            model.get_input_embeddings().weight[hf_config.pad_token_id].zero_()
    return model


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
