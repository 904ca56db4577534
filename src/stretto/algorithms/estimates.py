"""What attempts at problems say about a policy: pass@k, majority votes, and how sure an accuracy is. Pure.

A problem was attempted n times, c of them right. Owns no prompts and no rewards; see ``runtime.evaluation``.
"""

import math
from collections import Counter
from collections.abc import Sequence

__all__ = ["clustered", "interval", "majority", "pass_at", "wilson"]

Z_95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


def pass_at(k: int, n: int, c: int) -> float:
    """The chance that at least one of k attempts is right, of n drawn ones of which c were: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al. 2021, arXiv:2107.03374, eq. 1, in whole numbers. ``1 <= k <= n``.
    """
    assert 1 <= k <= n, (k, n)
    assert 0 <= c <= n, (c, n)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority(votes: Sequence[str | None]) -> int | None:
    """The first attempt that gave the most frequent answer; of equally frequent ones, the one that came first.

    None abstains; if all do, so does the majority. Self-consistency, Wang et al. 2022, arXiv:2203.11171.
    """
    counts = Counter(vote for vote in votes if vote is not None)
    if not counts:
        return None
    winner = max(counts, key=lambda vote: counts[vote])  # the first of equals: counts keep the order of votes
    return votes.index(winner)


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


def interval(right: Sequence[int], n: int) -> tuple[float, float]:
    """The 95 % interval of an accuracy: Wilson's for one attempt a problem, else clustered by problem.

    ``right``: of every problem how many of its n attempts were right.
    """
    return wilson(sum(right) / len(right), len(right)) if n == 1 else clustered([c / n for c in right])
