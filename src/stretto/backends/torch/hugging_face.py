"""Models that a module of transformers computes: loaded, looked at, and tried, its packed forward against a plain one.

What a family's code does to a packed row (positions that begin again, scales, caps, windows) cannot be known from its
configuration. Forty tokens show it before a run begins. Importing this takes seconds.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.logging import disable_progress_bar, enable_progress_bar, is_progress_bar_enabled

from stretto.backends.torch.attention import attend, gather_rows, picked
from stretto.backends.torch.hf_config import check_weights
from stretto.backends.torch.layout import AttentionLayout
from stretto.backends.torch.loading import check_fit
from stretto.backends.torch.logprobs import token_logprobs
from stretto.backends.torch.packing import Pack, microbatches
from stretto.backends.torch.parts import Parts
from stretto.data.locations import folder_of
from stretto.errors import DataError
from stretto.families.modules import inspect_family, logit_shape
from stretto.types import Batch, Group, Json, Key, Prompt, Span, Trajectory

__all__ = ["load_tried"]

TOLERANCE = 1e-2
"""Largest gap in nats; rounding gives about 1e-5, a forgotten scale or mask whole nats."""

PACKED_ATTENTION = "stretto_packed"
"""The name under which transformers finds the attention."""


def load_tried(config: Mapping[str, Json], path: str) -> Parts:
    """The model of a folder. DataError names what is wrong with its files, or why its family cannot be trained."""
    inspect_family(config)
    folder = folder_of(path)
    assert folder is not None, "the built-in models without a folder are of Stretto's own forward"
    # Without a mask function of that name transformers builds no mask.
    AttentionInterface.register(PACKED_ATTENTION, cast(Callable[..., tuple[Tensor, None]], _packed_attention))
    causal = _load(path, folder)
    head = cast(nn.Linear, causal.get_output_embeddings())
    parts = Parts(
        trunk_name=causal.base_model_prefix,
        trunk=causal.base_model,
        layers=tuple(m for m in causal.base_model.modules() if isinstance(m, GradientCheckpointingLayer)),
        head_name=next(name for name, child in causal.named_children() if child is head),
        head=head,
        tied=bool(causal.config.tie_word_embeddings),
        logits=logit_shape(causal.config),
        run=_run,
    )
    _check_like_plain(parts, causal, path)
    return parts


def _run(trunk: nn.Module, pack: Pack) -> Tensor:
    output = cast(Callable[..., Any], trunk)(
        input_ids=pack.input_ids_M[None],
        position_ids=pack.position_ids_M[None],
        use_cache=False,
        layout=pack.layout,
    )
    return picked(cast(Tensor, output.last_hidden_state)[0], pack.predicting_P)


def _packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: AttentionLayout,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """``attend`` as transformers calls it: query [1, H, M, D], key and value [1, Hkv, M, D]; gives [1, M, H, D].

    The other keywords transformers passes (dropout, cache, position ids) do not apply: Models run without dropout and
    without a cache.
    """
    assert attention_mask is None, "packed attention takes no mask"
    # Under autocast the rotary embedding has made queries and keys float32 again; values say what was meant.
    q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    mixed = attend(q, k, v, layout, scaling=scaling, window=sliding_window, softcap=softcap, sinks=s_aux)
    return mixed[None], None


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


def _load(path: str, folder: Path) -> PreTrainedModel:
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
    check_fit(path, {w: list(map(str, info[f"{w}_keys"])) for w in ("missing", "unexpected", "mismatched")})
    # Some families look for this token in every input to warn about padding, of which there is none here.
    model.config.pad_token_id = None
    return model


@torch.no_grad()
def _check_like_plain(parts: Parts, causal: PreTrainedModel, path: str) -> None:
    """DataError if log-probs of two packed sequences are not those of transformers, one sequence at a time."""
    batch = _batch(parts.head.out_features)
    (pack,) = microbatches(batch, 2**30, parts.head.weight.device)
    ours = _packed(parts, pack)
    run = cast(Callable[..., Any], causal)
    causal.set_attn_implementation("eager")
    plain = []
    for trajectory in batch.trajectories:
        ids = torch.from_numpy(trajectory.token_ids_T).long()[None].to(ours.device)
        logp = run(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
        plain.append(logp.gather(1, ids[0, 1:, None])[trajectory.mask_T[1:] != 0, 0])
    causal.set_attn_implementation(PACKED_ATTENTION)
    gap = float((torch.cat(plain) - ours).abs().max())
    if not gap <= TOLERANCE:
        raise DataError(
            f"the model in {path!r} ({causal.config.model_type}) gives other log-probs in a packed row than alone "
            f"({gap:.3g} nats apart), so it would be trained wrongly. Choose another model, and report this one."
        )


def _packed(parts: Parts, pack: Pack) -> Tensor:
    hidden = gather_rows(parts.run(parts.trunk, pack), pack.source)
    weight, targets = parts.head.weight, pack.targets_N
    return token_logprobs(hidden, weight, targets, pack.inverse_temperature_N, parts.logits)[0]


def _batch(vocab_size: int) -> Batch:
    rng = np.random.default_rng(0)
    groups = []
    for draw, (prompt, written) in enumerate(((5, 14), (9, 12))):
        ids = rng.integers(0, vocab_size, prompt + written).astype(np.int32)
        trajectory = Trajectory(
            key=Key(draw, 0),
            token_ids_T=ids,
            mask_T=np.repeat(np.array([0, 1], np.uint8), (prompt, written)),
            logprobs_T=np.zeros(len(ids), np.float32),
            versions=(Span(0, written),),
            finish="length",
            temperature=1.0,
        )
        task = Prompt(uid=str(draw), text="", token_ids=ids[:prompt])
        groups.append(Group(draw=draw, prompt=task, trajectories=(trajectory,)))
    return Batch(groups=tuple(groups))
