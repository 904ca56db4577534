"""How much arithmetic a model's matrix products are, and how fast this machine does such."""

import time

import torch

from stretto.families.decoder import DecoderSpec

__all__ = ["forward_products", "generation_products", "product_rate", "training_products"]


def product_rate(dtype: torch.dtype = torch.float32) -> float:
    """The most operations of products a second one thread makes here, as the best of several shapes and tries."""
    best = 0.0
    torch.set_num_threads(1)
    for rows, inner, columns in ((64, 576, 1536), (512, 576, 1536), (512, 1024, 1024)):
        left, right = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
        for _ in range(20):
            begin, count = time.thread_time(), 0
            while time.thread_time() - begin < 0.02:
                torch.nn.functional.linear(left, right)
                count += 1
            best = max(best, 2 * rows * inner * columns * count / (time.thread_time() - begin))
    return best


def forward_products(spec: DecoderSpec, tokens: float, heads: float, pairs: float) -> float:
    """Operations of ``tokens`` through the layers, ``heads`` through the head, and ``pairs`` of a token and a key."""
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    layer = spec.hidden * (2 * queries + 2 * keys) + 3 * spec.hidden * spec.intermediate
    return 2.0 * (spec.num_layers * layer * tokens + spec.vocab_size * spec.hidden * heads) + (
        4.0 * spec.num_layers * queries * pairs
    )


def generation_products(spec: DecoderSpec, groups: int, n: int, prompt: float, new: float) -> float:
    """What writing ``new`` tokens needs, ``n`` times for each of ``groups`` prompts, which are computed once."""
    decoded = groups * n * (new - 1)  # the last token written is not computed
    return forward_products(spec, groups * prompt + decoded, groups + decoded, _pairs(groups, n, prompt, new))


def training_products(spec: DecoderSpec, groups: int, n: int, prompt: float, new: float) -> float:
    """What a forward and a backward pass over them needs, which is three times a forward pass."""
    tokens = groups * prompt + groups * n * (new - 1)
    return 3 * forward_products(spec, tokens, groups * n * new, _pairs(groups, n, prompt, new))


def _pairs(groups: int, n: int, prompt: float, new: float) -> float:
    return groups * prompt * (prompt + 1) / 2 + groups * n * (new - 1) * (prompt + new / 2)
