"""What attempts at problems say about a policy: pass@k, majority votes, extremes, how sure an accuracy is. Pure.

A problem was attempted n times, c of them right. Owns no prompts and no rewards; see ``runtime.evaluation``.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Extremes",
    "clustered",
    "consensus_at",
    "extremes",
    "interval",
    "majority",
    "pass_all",
    "pass_at",
    "wilson",
]

Z_95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


def pass_at(k: int, n: int, c: int) -> float:
    """The chance that at least one of k attempts is right, of n drawn ones of which c were: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al. 2021, arXiv:2107.03374, eq. 1, in whole numbers. ``1 <= k <= n``.
    """
    assert 1 <= k <= n, (k, n)
    assert 0 <= c <= n, (c, n)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_all(k: int, n: int, c: int) -> float:
    """The chance that all of k attempts are right, of n drawn ones of which c were: C(c, k) / C(n, k), or pass^k.

    The unbiased estimator of Yao et al. 2024, arXiv:2406.12045, section 3. ``1 <= k <= n``.
    """
    assert 1 <= k <= n, (k, n)
    assert 0 <= c <= n, (c, n)
    return math.comb(c, k) / math.comb(n, k)


def majority(votes: Sequence[str | None]) -> int | None:
    """The first attempt that gave the most frequent answer; of equally frequent ones, the one that came first.

    None abstains; if all do, so does the majority. Self-consistency, Wang et al. 2022, arXiv:2203.11171.
    """
    counts = Counter(vote for vote in votes if vote is not None)
    if not counts:
        return None
    winner = max(counts, key=lambda vote: counts[vote])  # the first of equals: counts keep the order of votes
    return votes.index(winner)


def consensus_at(k: int, votes: Sequence[str | None], values: Sequence[float]) -> float:
    """The mean value of the majority's attempt over all choices of k of the n attempts, in their order (cons@k).

    Of equally frequent answers the one that comes first in a choice wins, and its first attempt there has the value
    that counts; a choice in which all abstain (None) counts 0. No choice is made: the ways in which an answer can win
    with its first vote at a place are counted, by the product of what the other answers may have.
    """
    n = len(votes)
    assert 1 <= k <= n == len(values), (k, n, len(values))
    places: dict[str | None, list[int]] = {}
    for place, vote in enumerate(votes):
        places.setdefault(vote, []).append(place)
    silent = len(places.pop(None, []))
    abstaining = [float(math.comb(silent, m)) for m in range(k + 1)]
    total = 0.0
    for answer, own in places.items():
        others = [held for name, held in places.items() if name != answer]
        for index, first in enumerate(own):
            for count in range(1, min(k, len(own) - index) + 1):
                ways = math.comb(len(own) - index - 1, count - 1) * _ways(others, abstaining, first, count, k - count)
                total += values[first] * ways
    return total / math.comb(n, k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """Mean and standard deviation of the best and of the worst of n scores."""

    best_mean: float
    best_std: float
    worst_mean: float
    worst_std: float


def extremes(n: int, scores: Sequence[float], *, with_replacement: bool = True) -> Extremes:
    """The best and the worst of ``n`` scores drawn from ``scores`` (best@n, worst@n), exactly.

    The best is at most the i-th smallest of N with probability (i/N)^n, or C(i, n) / C(N, n) without replacement. Peers
    resample instead. Without replacement n is at most N.
    """
    ordered = np.sort(np.asarray(scores, np.float64))
    size = len(ordered)
    assert size >= 1 and n >= 1 and (with_replacement or n <= size), (n, size)
    below = [(i / size) ** n if with_replacement else math.comb(i, n) / math.comb(size, n) for i in range(size + 1)]
    chances = np.diff(below)
    best, worst = _moments(ordered, chances), _moments(ordered, chances[::-1])
    return Extremes(best_mean=best[0], best_std=best[1], worst_mean=worst[0], worst_std=worst[1])


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a share of ``n`` independent problems.

    Wilson 1927 (J. Am. Stat. Assoc. 22, 209-212): it stays in [0, 1] and does not vanish at 0 and 1.
    """
    assert 0 <= share <= 1, share
    assert n > 0, n
    z2 = Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return (0.0 if share == 0 else centre - half, 1.0 if share == 1 else centre + half)


def clustered(means: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of ``means``, one per problem: mean +- 1.96 s / sqrt(P), within [0, 1].

    Attempts at the same problem are not independent, so the problem is the unit (Miller 2024, arXiv:2411.00640, on
    clustered standard errors; every problem has the same number of attempts, which makes it the normal interval of the
    problems' means). Where all means are equal, their spread says nothing, and it is Wilson's interval of the mean over
    P problems, which is the wider one whatever the attempts were.
    """
    count, mean = len(means), math.fsum(means) / len(means)
    if min(means) == max(means):
        return wilson(means[0], count)
    variance = math.fsum((value - mean) ** 2 for value in means) / (count - 1)
    half = Z_95 * math.sqrt(variance / count)
    return max(0.0, mean - half), min(1.0, mean + half)


def interval(right: Sequence[float], n: int) -> tuple[float, float]:
    """The 95 % interval of an accuracy: Wilson's for one attempt a problem, else clustered by problem.

    ``right``: of every problem how many of its n attempts were right.
    """
    return wilson(sum(right) / len(right), len(right)) if n == 1 else clustered([c / n for c in right])


def _ways(others: Sequence[Sequence[int]], abstaining: Sequence[float], first: int, count: int, rest: int) -> float:
    """In how many ways ``rest`` attempts come from the other answers and abstentions, such that an answer with
    ``count`` votes, the first at place ``first``, wins: each other has fewer votes, or as many that all come later."""
    ways = np.asarray(abstaining[: rest + 1])
    for held in others:
        later = sum(place > first for place in held)
        fewer = [float(math.comb(len(held), m)) for m in range(min(count, rest + 1))]
        ways = np.convolve(ways, [*fewer, float(math.comb(later, count))])[: rest + 1]
    return float(ways[rest])


def _moments(values: NDArray[np.float64], chances: NDArray[np.float64]) -> tuple[float, float]:
    mean = float((values * chances).sum())
    return mean, math.sqrt(float(((values - mean) ** 2 * chances).sum()))
