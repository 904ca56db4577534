"""Causal language models of transformers as modules: made without weights, and looked at before they are trusted.

A module is run with an attention of ours (``AttentionInterface``), so it needs neither masks nor a cache of its own.
What its code must do for that is checked on the meta device, where nothing is computed: every layer calls the attention
once, with keywords handed through, and says its sliding window, soft cap and sinks there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

from stretto.errors import DataError, nearest
from stretto.families.facts import LogitShape, check_config
from stretto.types import Json

__all__ = [
    "FamilyShape",
    "causal_on_meta",
    "classifier_of",
    "empty_causal",
    "inspect_family",
    "logit_shape",
    "resolve_config",
]

_TRACED = "stretto_traced"
_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyShape:
    """What an engine must know: sizes of the cache, of hidden states and of the vocabulary. Tied weights count once.

    matrices: rows and columns of all that tokens are multiplied by.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden: int
    vocab_size: int
    max_positions: int | None
    num_parameters: int
    logits: LogitShape
    matrices: tuple[tuple[int, int], ...]


@dataclass(slots=True, eq=False)
class _Trace:
    """The calls of the attention in one pass over a module: its layer, query heads, key and value shapes, the rest."""

    layers: list[int | None] = field(default_factory=list[int | None])
    heads: list[int] = field(default_factory=list[int])
    keys: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])
    values: set[tuple[int, ...]] = field(default_factory=set[tuple[int, ...]])
    sliding: list[bool] = field(default_factory=list[bool])
    masked: bool = False
    causal: bool = True


def resolve_config(config: Mapping[str, Json]) -> PretrainedConfig:
    """The configuration object of a ``config.json``, defaults of its family filled in. DataError if there is none."""
    kind = str(config.get("model_type"))
    if kind not in CONFIG_MAPPING_NAMES:
        raise DataError(
            f"the model's config.json has model_type {kind!r}, which transformers does not know."
            f"{nearest(kind, CONFIG_MAPPING_NAMES)} Models that bring code of their own are not run."
        )
    try:
        return AutoConfig.for_model(kind, **{k: v for k, v in config.items() if k != "model_type"})
    except Exception as error:
        raise DataError(f"the config.json of model_type {kind!r} cannot be used: {_first_line(error)}") from error


def causal_on_meta(config: Mapping[str, Json]) -> PreTrainedModel:
    """The model of a ``config.json`` without memory for its weights: names and shapes. DataError if there is none."""
    return _on_meta(resolve_config(config), "eager", torch.float32)


def classifier_of(config: Mapping[str, Json]) -> str:
    """The class of transformers that holds this model's trunk with one output, ``score``, in place of its head.

    DataError if the family has none of the same names.
    """
    causal = causal_on_meta(config)
    kind = str(config["model_type"])
    resolved = resolve_config(config)
    resolved.num_labels = 1
    trunk = {f"{causal.base_model_prefix}.{name}" for name, _ in causal.base_model.named_parameters()}
    names, made = set[str](), ""
    if kind in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
        with torch.device("meta"):
            model = AutoModelForSequenceClassification.from_config(resolved)
        names, made = {name for name, _ in model.named_parameters()}, type(model).__name__
    if names != {*trunk, "score.weight"}:
        raise DataError(
            f"a model of model_type {kind!r} cannot be trained as a reward model: transformers has no classifier of "
            "its family with one linear output to load it as. Choose another family, such as llama or qwen3."
        )
    return made


def empty_causal(
    config: PretrainedConfig, *, attention: str, dtype: torch.dtype, device: torch.device
) -> PreTrainedModel:
    """The model with memory for its weights, not filled, and its fixed buffers (rotary frequencies, scales) computed.

    No global random state is read: built on the meta device, then every weight is marked as having its values, so that
    transformers' initialisation, which knows the fixed buffers of each family, leaves the weights alone.
    """
    model = _on_meta(config, attention, dtype).to_empty(device=device)
    for tensor in (*model.parameters(), *_persistent(model).values()):
        tensor._is_hf_initialized = True  # pyright: ignore[reportAttributeAccessIssue]
    model.initialize_weights()
    model.tie_weights()
    return model.requires_grad_(False).eval()


def inspect_family(config: Mapping[str, Json]) -> FamilyShape:
    """Run the model of ``config`` on the meta device and see what it does. DataError names what cannot work."""
    kind = str(config.get("model_type"))
    check_config(config, kind)
    resolved = resolve_config(config)
    AttentionInterface.register(_TRACED, cast(Callable[..., tuple[Tensor, None]], _traced_attention))
    trace = _Trace()
    try:
        model = _on_meta(resolved, _TRACED, torch.float32)
        ids = torch.zeros(1, 8, dtype=torch.long, device="meta")
        run = cast(Callable[..., Any], model.base_model)
        with torch.no_grad():
            run(input_ids=ids, position_ids=ids, use_cache=False, trace=trace)
        head = model.get_output_embeddings()
        parameters = sum(p.numel() for p in model.parameters())
        problem = _problem(resolved, trace, model, head)
    except Exception as error:
        raise DataError(_refusal(kind, _first_line(error))) from error
    if problem:
        raise DataError(_refusal(kind, problem))
    (key,) = trace.keys
    positions = getattr(resolved, "max_position_embeddings", None)
    return FamilyShape(
        num_layers=len(trace.layers),
        num_heads=max(trace.heads),
        num_kv_heads=key[1],
        head_dim=key[3],
        hidden=cast(nn.Linear, head).in_features,
        vocab_size=cast(nn.Linear, head).out_features,
        max_positions=positions if isinstance(positions, int) else None,
        num_parameters=parameters,
        logits=logit_shape(resolved),
        matrices=_matrices(model),
    )


def _matrices(model: nn.Module) -> tuple[tuple[int, int], ...]:
    """Sizes of linear maps, each once; GPT-2's hold theirs turned."""
    linear = {(m.out_features, m.in_features) for m in model.modules() if isinstance(m, nn.Linear)}
    turned = {(int(m.nf), int(m.nx)) for m in model.modules() if isinstance(m, Conv1D)}
    return tuple(sorted(linear | turned))


def logit_shape(config: PretrainedConfig) -> LogitShape:
    """What the family does to logits after the head."""
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    return LogitShape(scale=scale, cap=None if cap is None else float(cap))


def _on_meta(config: PretrainedConfig, attention: str, dtype: torch.dtype) -> PreTrainedModel:
    with torch.device("meta"):
        model = cast(
            PreTrainedModel, AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)
        )
    # Some families look for this token in every input to warn about padding, of which there is none here.
    model.config.pad_token_id = None
    return model.eval()


def _traced_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    trace: _Trace,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    trace.layers.append(getattr(module, "layer_idx", None))
    trace.heads.append(query.shape[1])
    trace.keys.add(tuple(key.shape))
    trace.values.add(tuple(value.shape))
    trace.sliding.append(sliding_window is not None)
    trace.masked |= attention_mask is not None
    trace.causal &= bool(getattr(module, "is_causal", True))
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None


def _problem(config: PretrainedConfig, trace: _Trace, model: PreTrainedModel, head: nn.Module | None) -> str | None:
    """Why the traced model cannot be run, or None."""
    layers = int(config.num_hidden_layers)
    kinds = getattr(config, "layer_types", None)
    strange = sorted({kind for kind in kinds or () if kind not in _LAYERS})
    if strange:
        return f"it has layers of the kind {', '.join(strange)}"
    if trace.layers != list(range(layers)):
        return f"of its {layers} layers, {len(trace.layers)} call an attention that can be replaced"
    if trace.masked or not trace.causal:
        return "its attention is not plainly causal"
    if len(trace.keys) != 1 or trace.keys != trace.values:
        return "keys and values differ in shape between each other or between layers"
    if kinds and [kind == "sliding_attention" for kind in kinds] != trace.sliding:
        return "its layers do not tell their sliding windows"
    if model.base_model is model or head not in set(model.children()):
        return "its trunk and its head are not apart"
    if any(child not in (model.base_model, head) and list(child.parameters()) for child in model.children()):
        return "it has weights beside its trunk and its head"
    if type(head) is not nn.Linear or head.bias is not None:
        return "its head is not one matrix without a bias"
    if stray := sorted(_persistent(model)):
        return f"it has state that is no weight ({stray[0]})"
    return None


def _persistent(model: nn.Module) -> Mapping[str, Tensor]:
    """Buffers that belong to the saved state."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: t for name, t in model.state_dict(keep_vars=True).items() if name not in parameters}


def _refusal(kind: str, why: str) -> str:
    return (
        f"a model of model_type {kind!r} cannot be run: {why.rstrip('.')}. Choose another model; llama, qwen2, qwen3, "
        "gemma3_text, mistral, phi3, olmo2, gpt_neox and gpt2 are among those that work."
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
