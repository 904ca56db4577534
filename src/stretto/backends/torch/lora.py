"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) on a loaded model: chosen, made, merged, written. The layers are
peft's, an extra that is imported where it is used.

An adapted linear map computes ``W x + s B A x`` with ``s = alpha / rank``. The base W stays as it is and is held once:
a frozen Model that starts from the same folder (the reference) is another set of adapters on the same modules, all of
whose B are 0 at first, so that it is the base to the bit until it is set to a later policy.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from stretto.backends.torch.decoder import decoder_parts
from stretto.backends.torch.shards import whole_of
from stretto.config.models import LoraConfig
from stretto.errors import ConfigError, StoreError, nearest
from stretto.families.decoder import own_decoder
from stretto.types import Json

__all__ = [
    "BaseOrigin",
    "activate",
    "adapter_parameters",
    "add_adapter",
    "count_adapters",
    "export_adapter",
    "merged_weights",
    "require_peft",
    "targets_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseOrigin:
    """How a file of adapters names the model they stand on: a hub id with its commit, or a folder."""

    name: str
    revision: str | None = None


def targets_of(trunk: nn.Module, prefix: str, lora: LoraConfig) -> list[str]:
    """Full names of the linear maps to adapt: every one of the trunk, or those whose name ends as ``targets`` say.

    ConfigError for a target that is no linear map of the model.
    """
    kinds = (nn.Linear, _transposed_linear())
    names = [f"{prefix}.{name}" for name, module in trunk.named_modules() if isinstance(module, kinds)]
    if lora.targets == "auto":
        return names
    for target in lora.targets:
        if not any(name.endswith(f".{target}") for name in names):
            ends = sorted({name.rpartition(".")[2] for name in names})
            raise ConfigError(
                f"model.lora.targets has {target!r}, and the linear maps of the model are {', '.join(ends)}."
                f"{nearest(target, ends)} Choose among these, or set model.lora.targets=auto."
            )
    return [name for name in names if any(name.endswith(f".{target}") for target in lora.targets)]


def count_adapters(config: Mapping[str, Json], lora: LoraConfig) -> int:
    """Parameters of one set of adapters on a model with this ``config.json``; nothing is allocated.

    ConfigError for a target that is no linear map of the model.
    """
    decoder = own_decoder(config)
    if decoder is not None:
        parts = decoder_parts(decoder, "meta")
        prefix, trunk = parts.trunk_name, parts.trunk
    else:
        from stretto.families.modules import causal_on_meta  # loads transformers

        causal = causal_on_meta(config)
        prefix, trunk = causal.base_model_prefix, causal.base_model
    names = (name.removeprefix(f"{prefix}.") for name in targets_of(trunk, prefix, lora))
    return lora.rank * sum(sum(trunk.get_submodule(name).get_parameter("weight").shape) for name in names)


def add_adapter(network: nn.Module, adapter: str, targets: list[str], lora: LoraConfig, seed: int | None) -> None:
    """Put adapters named ``adapter`` on ``targets``: A from ``seed`` (uniform, as a linear map of torch), B = 0.

    Without a seed A is 0 as well. No global random state is read: adapters are made without storage, then filled.
    """
    device = next(network.parameters()).device
    with torch.device("meta"):
        _peft().inject_adapter_in_model(
            _peft_config(network, targets, lora), network, adapter_name=adapter, low_cpu_mem_usage=True
        )
    del network.peft_config  # peft's note of what it has done; it would warn of it at the next set
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in _layers(network):
            down, up = layer.lora_A[adapter].to_empty(device=device), layer.lora_B[adapter].to_empty(device=device)
            up.weight.zero_()
            if generator is None:
                down.weight.zero_()
            else:
                bound = 1 / math.sqrt(down.weight.shape[1])
                fresh = torch.empty(down.weight.shape).uniform_(-bound, bound, generator=generator)
                down.weight.copy_(fresh)


def activate(network: nn.Module, adapter: str, *, trained: bool) -> None:
    """Compute with these adapters from here on; their gradients are kept if they are ``trained``."""
    for layer in _layers(network):
        layer.set_adapter(adapter, inference_mode=not trained)


def adapter_parameters(network: nn.Module, adapter: str) -> Iterator[tuple[str, nn.Parameter]]:
    """The weights of these adapters, under names that do not tell whose they are."""
    for name, parameter in network.named_parameters():
        if ".lora_" in name and f".{adapter}." in name:
            yield name.replace(f".{adapter}.", "."), parameter


@torch.no_grad()
def merged_weights(network: nn.Module, adapter: str) -> Iterator[tuple[str, Tensor]]:
    """Every weight by the base's name, ``W + s B A`` where there are adapters; each made as it is asked for."""
    layers: dict[str, Any] = {name: m for name, m in network.named_modules() if hasattr(m, "lora_A")}
    for name, parameter in network.named_parameters():
        if ".lora_" in name:
            continue
        owner, _, kind = name.partition(".base_layer.")
        if owner == name:
            yield name, parameter.detach()
        elif kind == "weight":
            yield f"{owner}.weight", parameter.detach() + layers[owner].get_delta_weight(adapter)
        else:
            yield f"{owner}.{kind}", parameter.detach()


def export_adapter(
    network: nn.Module, adapter: str, lora: LoraConfig, base: BaseOrigin, folder: Path, *, writes: bool = True
) -> None:
    """Write ``adapter_config.json`` and ``adapter_model.safetensors`` as peft loads them. StoreError with the cause.

    Of several ranks one ``writes``, and every one gives its shards."""
    full = [name for name, module in network.named_modules() if hasattr(module, "lora_A")]
    targets = sorted({name.rpartition(".")[2] for name in full}) if lora.targets == "auto" else list(lora.targets)
    config = _peft_config(network, targets, lora)
    config.base_model_name_or_path, config.revision = base.name, base.revision
    config.task_type, config.inference_mode = "CAUSAL_LM", True
    config.target_modules = targets  # peft has made a set of them, whose order varies from process to process
    tensors = {
        f"base_model.model.{name}": whole_of(p).cpu().contiguous() for name, p in adapter_parameters(network, adapter)
    }
    if not writes:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config.save_pretrained(str(folder))
        save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    except OSError as error:
        raise StoreError(f"the export folder {str(folder)!r} cannot be written: {error}.") from error


def require_peft() -> None:
    """ConfigError that names the extra if peft is not there."""
    _peft()


def _layers(network: nn.Module) -> Iterator[Any]:
    return (module for module in network.modules() if hasattr(module, "lora_A"))


def _peft_config(network: nn.Module, targets: list[str], lora: LoraConfig) -> Any:
    turned = any(isinstance(module, _transposed_linear()) for module in network.modules())
    return _peft().LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, fan_in_fan_out=turned)


def _transposed_linear() -> type[nn.Module]:
    """The linear map of GPT-2, which keeps its matrix transposed."""
    from transformers.pytorch_utils import Conv1D  # peft loads transformers in any case

    return Conv1D


def _peft() -> Any:
    try:
        import peft  # an extra: only runs with model.lora need it
    except ImportError as error:
        raise ConfigError("model.lora needs the package peft. Install it: pip install 'stretto[lora]'.") from error
    return peft
