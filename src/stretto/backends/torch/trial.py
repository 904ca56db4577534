"""A trial of a loaded model: its packed forward against a plain one of transformers. Owns nothing else.

What a family's code does to a packed row (positions that begin again, scales, caps, windows) cannot be known from its
configuration. Forty tokens show it before a run begins.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from transformers import PreTrainedModel

from stretto.backends.torch.attention import PACKED_ATTENTION, gather_rows
from stretto.backends.torch.logprobs import token_logprobs
from stretto.backends.torch.packing import Pack, microbatches
from stretto.errors import DataError
from stretto.types import Batch, Group, Key, Prompt, Span, Trajectory

if TYPE_CHECKING:  # models.py calls this file
    from stretto.backends.torch.models import Network

__all__ = ["check_like_plain"]

TOLERANCE = 1e-2
"""Largest gap in nats; rounding gives about 1e-5, a forgotten scale or mask whole nats."""


@torch.no_grad()
def check_like_plain(network: "Network", causal: PreTrainedModel, path: str) -> None:
    """DataError if log-probs of two packed sequences are not those of transformers, one sequence at a time."""
    batch = _batch(network.head.out_features)
    (pack,) = microbatches(batch, 2**30, network.head.weight.device)
    ours = _packed(network, pack)
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


def _packed(network: "Network", pack: Pack) -> torch.Tensor:
    hidden = gather_rows(network.hidden(pack), pack.source)
    weight, targets = network.head.weight, pack.targets_N
    return token_logprobs(hidden, weight, targets, pack.inverse_temperature_N, network.logits)[0]


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
