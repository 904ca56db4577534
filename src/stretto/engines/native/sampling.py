"""Drawing one token per row from logits. Owns the random numbers, the support and the log-probs.

Random numbers are counted, not generated: the uniform of a token is a function of its request's seed and its place in
the completion, so it does not depend on company, order or slot, and there is no generator to save.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Draws", "draw_tokens", "uniforms"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """How each of R rows is drawn: temperature (0 greedy), top_k (0 all), top_p (1 all), min_p (0 all), and its uniform
    in [0, 1)."""

    temperature_R: NDArray[np.float32]
    top_k_R: NDArray[np.int64]
    top_p_R: NDArray[np.float64]
    min_p_R: NDArray[np.float64]
    uniform_R: NDArray[np.float64]


def uniforms(seeds_R: NDArray[np.uint64], places_R: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniforms in [0, 1 - 2**-52]: output number ``place`` of a SplitMix64 stream whose state starts at the
    first output of the stream of ``seed``.

    SplitMix64 is Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014. Mixing the seed
    first keeps the streams of neighbouring seeds from being shifted copies of each other.
    """
    counter = _mix(seeds_R + _GOLDEN) + (places_R.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (_mix(counter) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


def draw_tokens(logits: torch.Tensor, draws: Draws) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """One token per row of ``logits`` [R, V] (float32) and its log-prob, [R] each.

    The distribution is softmax(logits / temperature), cut to the ``top_k`` likeliest tokens, of these to the fewest
    likeliest whose mass reaches ``top_p`` (nucleus sampling, Holtzman et al. 2020, arXiv:1904.09751), of these to the
    ones at least ``min_p`` times as likely as the likeliest (Nguyen et al. 2024, arXiv:2407.01082, eq. 2-3),
    renormalised; the log-prob is of that distribution. Ratios to the likeliest token do not change by renormalising, so
    min-p keeps the same tokens wherever it comes in the order. Among equal logits the lower token id counts as
    likelier. A token is the first whose cumulative probability, in id order, exceeds the uniform. Greedy rows take the
    likeliest token and report its log-prob at temperature 1. Rows with logits that are not finite report a log-prob
    that is not finite.
    """
    device = logits.device
    greedy = draws.temperature_R == 0
    if not (draws.temperature_R == 1).all():
        scale = np.where(greedy, np.float32(1), draws.temperature_R)
        logits = logits / torch.from_numpy(scale).to(device)[:, None]
    cut = np.flatnonzero(~greedy & ((draws.top_k_R > 0) | (draws.top_p_R < 1) | (draws.min_p_R > 0)))
    if len(cut):
        rows = torch.from_numpy(cut).to(device)
        top_k = torch.from_numpy(draws.top_k_R[cut]).to(device)
        top_p = torch.from_numpy(draws.top_p_R[cut]).to(device)
        min_p = torch.from_numpy(draws.min_p_R[cut]).to(device)
        logits = logits.index_copy(0, rows, _restricted(logits[rows], top_k, top_p, min_p))
    logprobs = logits.log_softmax(dim=-1)
    if greedy.all():
        tokens = logits.argmax(dim=-1)
    else:
        uniform = torch.from_numpy(draws.uniform_R).to(device)
        tokens = _inverse_cdf(logprobs, uniform)
        if greedy.any():
            tokens = torch.where(torch.from_numpy(greedy).to(device), logits.argmax(dim=-1), tokens)
    chosen = logprobs.gather(1, tokens[:, None])[:, 0]
    return tokens.cpu().numpy(), chosen.cpu().numpy()


def _inverse_cdf(logprobs: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds ``uniform`` times the total, so never one of weight 0.

    The sums are in float64 and a uniform is at most 1 - 2**-52, so the target stays below the total; the clamp is for
    rows of NaN.
    """
    cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    target = uniform[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return tokens.clamp_(max=logprobs.shape[1] - 1)


def _restricted(logits: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Logits with -inf outside the support. Rows are sorted stably, so that ties go to the lower id."""
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    size = logits.shape[1]
    kept = torch.where(top_k > 0, top_k, size)
    rank = torch.arange(size, device=logits.device)
    ordered = ordered.masked_fill(rank >= kept[:, None], float("-inf"))
    probs = ordered.softmax(dim=-1).double()
    mass_before = probs.cumsum(dim=-1) - probs
    outside = (mass_before >= top_p[:, None]) & (top_p[:, None] < 1) & (rank > 0)
    ordered = ordered.masked_fill(outside, float("-inf"))
    behind = ordered.double() - ordered[:, :1].double()  # log of the ratio to the likeliest
    ordered = ordered.masked_fill(behind < min_p.log()[:, None], float("-inf"))  # the log of 0 keeps all
    return torch.full_like(logits, float("-inf")).scatter(1, order, ordered)
