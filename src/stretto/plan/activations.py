"""What a micro-batch takes beside weights, gradients and moments: tensors that the backward pass needs, those that are
alive for a moment, and gaps between them. Counted as Stretto's own decoder computes on a CPU; elsewhere an estimate.
"""

from dataclasses import dataclass
from math import isqrt

from stretto.config.backends import TorchBackendConfig
from stretto.errors import ConfigError
from stretto.plan.models import ModelFacts
from stretto.plan.sizes import BYTES, show_bytes

__all__ = ["Computing", "activation_bytes", "microbatch_tokens"]

CHUNK_ELEMENTS = 2**24
"""Logits that a head makes at a time."""
SCORES = 2**17
"""Scores of a row, beyond which attention makes them anew."""
GAPS = 1.7
"""Memory taken for a byte of what comes and goes: the C library leaves gaps, measured 1.2 to 2.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """How a Model computes: bytes per number in products of layers and of the head, tokens of the longest sequence,
    whether layers are computed again in the backward pass, whether there is one, and whether all weights learn."""

    layer_bytes: int = 4
    head_bytes: int = 4
    longest: int
    recomputes: bool = False
    backward: bool = True
    learns: bool = True

    @classmethod
    def of(cls, config: TorchBackendConfig, *, longest: int, backward: bool, learns: bool = True) -> "Computing":
        """As the torch backend computes under ``config``."""
        return cls(
            layer_bytes=BYTES[config.dtype],
            head_bytes=BYTES[config.head_dtype or config.dtype],
            longest=longest,
            recomputes=config.activation_checkpointing,
            backward=backward,
            learns=learns,
        )


def activation_bytes(facts: ModelFacts, tokens: int, how: Computing) -> int:
    """Bytes of memory for a micro-batch of ``tokens``.

    A layer keeps, per token: in float32 what goes into its two norms, queries, keys, values and probabilities; and in
    the type of its products, the norms' outputs, what attention gives, gate, up and their product. The head comes when
    every layer has kept its own, and logits are alive four times; then the last layer's gradients, when they are gone.
    """
    hidden, heads = facts.hidden, facts.heads
    q, kv, low = heads * facts.head_dim, facts.kv_heads * facts.head_dim, how.layer_bytes
    scores = heads * min(how.longest, isqrt(SCORES))
    layer = 4 * (2 * hidden + q + 2 * kv + scores) + low * (2 * hidden + q + 3 * facts.intermediate)
    states = 3 * 4 * hidden
    kept = facts.layers * (4 * hidden if how.recomputes else layer) if how.backward else 0
    again = layer if how.recomputes or not how.backward else 0
    gradients = 3 * facts.intermediate * low if how.backward else 0
    in_layers = tokens * (kept + again + gradients)
    in_head = tokens * kept + (0 if facts.value_head else _head_bytes(facts, tokens, how))
    # Autocast keeps a copy of the weights while it computes.
    casts = low * facts.parameters if low != 4 else 0
    return round(GAPS * (tokens * states + max(in_layers, in_head))) + casts


def microbatch_tokens(facts: ModelFacts, config: TorchBackendConfig, how: Computing) -> int:
    """The most tokens of a micro-batch: ``backend.microbatch_tokens``, or fewer that keep ``microbatch_memory``.

    ConfigError if that is too little for any.
    """
    low, high = 0, config.microbatch_tokens
    memory = config.microbatch_memory
    if memory is None:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if activation_bytes(facts, middle, how) <= memory:
            low = middle
        else:
            high = middle - 1
    if not low:
        raise ConfigError(
            f"backend.microbatch_memory={show_bytes(memory)} is too little: one token takes "
            f"{show_bytes(activation_bytes(facts, 1, how))} of this model. Set it to more, or to null."
        )
    return low


def _head_bytes(facts: ModelFacts, tokens: int, how: Computing) -> int:
    """Logits of a chunk, four times in float32 and once more in a lower type, and the gradient of the head's matrix."""
    size = 16 + (how.head_bytes if how.head_bytes != 4 else 0)
    logits = min(tokens * facts.vocab_size, CHUNK_ELEMENTS) * size
    matrix = facts.vocab_size * facts.hidden
    lowered = matrix * how.head_bytes if how.head_bytes != 4 else 0
    return logits + lowered + 4 * matrix * (how.backward and how.learns)
