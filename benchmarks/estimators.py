"""Seconds that each advantage estimator takes for 100,000 sequences of 64 tokens, rewards in, advantages of tokens out.

Beside it a plain loop over sequences, as many frameworks have it, which is run on 2,000 sequences and scaled; on those
both must agree. Sequences are in groups of 8; a tenth of the tokens was read, not written.

Prediction (written before the first run, ``PREDICTED``): relative to the group 0.1 s, most of it spreading rows over
6.4 million tokens; 0.1 s more where tokens are whitened; rewards to go 0.4 s, GAE 0.6 s, with two lambdas 0.7 s. Loops:
2 s and 15 s. Target: under a second each.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.algorithms.advantages import (
    broadcast_rows,
    cpgd_advantages,
    discounted_returns,
    gae,
    gdpo_advantages,
    gpg_advantages,
    group_advantages,
    length_adaptive_lambdas,
    maxrl_advantages,
    opo_advantages,
    pass_at_k_advantages,
    remax_advantages,
    rloo_advantages,
    whiten,
)
from table import print_table, write_result

SEQUENCES, TOKENS, GROUP, LOOPED, TIMES = 100_000, 64, 8, 2_000, 3


@dataclass(frozen=True)
class Inputs:
    """Rewards and groups by row, rewards and values by token; ``second`` is another reward."""

    rewards: np.ndarray
    second: np.ndarray
    groups: np.ndarray
    token_rewards: np.ndarray
    values: np.ndarray
    mask: np.ndarray

    @property
    def offsets(self) -> np.ndarray:
        return np.arange(len(self.rewards) + 1) * TOKENS

    @property
    def lengths(self) -> np.ndarray:
        return self.mask.reshape(-1, TOKENS).sum(1)

    def first(self, rows: int) -> "Inputs":
        """The first ``rows`` rows."""
        tokens = rows * TOKENS
        by_row = (x[:rows] for x in (self.rewards, self.second, self.groups))
        return Inputs(*by_row, self.token_rewards[:tokens], self.values[:tokens], self.mask[:tokens])


def make_inputs() -> Inputs:
    """Seeded."""
    rng = np.random.default_rng(0)
    tokens = SEQUENCES * TOKENS
    return Inputs(
        rewards=rng.integers(0, 2, SEQUENCES) + rng.integers(0, 5, SEQUENCES) / 10,
        second=rng.random(SEQUENCES),
        groups=np.arange(SEQUENCES) // GROUP,
        token_rewards=rng.normal(size=tokens),
        values=rng.normal(size=tokens),
        mask=(rng.random(tokens) < 0.9).astype(np.uint8),
    )


# --- ours ------------------------------------------------------------------------------------------------------------


def rows(estimate: Callable[[Inputs], np.ndarray]) -> Callable[[Inputs], np.ndarray]:
    """An estimator of one number per row, on every token."""
    return lambda x: broadcast_rows(estimate(x), x.mask, x.offsets)


def gae_of(x: Inputs, **settings: float) -> np.ndarray:
    lam = settings.pop("lam", None) or length_adaptive_lambdas(x.mask, x.offsets, 0.05)
    return gae(x.token_rewards, x.values, x.mask, x.offsets, gamma=0.99, lam=lam, **settings)[0]


OURS: dict[str, Callable[[Inputs], np.ndarray]] = {
    "grpo": rows(lambda x: group_advantages(x.rewards, x.groups)),
    "grpo mean only": rows(lambda x: group_advantages(x.rewards, x.groups, scale="none")),
    "grpo batch std": rows(lambda x: group_advantages(x.rewards, x.groups, scale="batch_std")),
    "grpo leave-one-out std": rows(
        lambda x: group_advantages(x.rewards, x.groups, center="leave_one_out", scale="leave_one_out_std")
    ),
    "rloo": rows(lambda x: rloo_advantages(x.rewards, x.groups)),
    "opo": rows(lambda x: opo_advantages(x.rewards, x.groups, x.lengths)),
    "gpg": rows(lambda x: gpg_advantages(x.rewards, x.groups)),
    "maxrl": rows(lambda x: maxrl_advantages(x.rewards, x.groups)),
    "pass@k": rows(lambda x: pass_at_k_advantages(x.rewards, x.groups)),
    "cpgd": rows(lambda x: cpgd_advantages(x.rewards, x.groups)),
    "gdpo, 2 rewards": rows(lambda x: gdpo_advantages([x.rewards, x.second], x.groups, [1.0, 0.5])),
    "reinforce++ baseline": lambda x: whiten(
        broadcast_rows(group_advantages(x.rewards, x.groups, scale="none"), x.mask, x.offsets), x.mask
    ),
    "reinforce++": lambda x: whiten(discounted_returns(x.token_rewards, x.mask, x.offsets, gamma=0.99), x.mask),
    "remax": lambda x: remax_advantages(x.token_rewards, x.second, x.mask, x.offsets)[0],
    "gae": lambda x: gae_of(x, lam=0.95),
    "gae whitened": lambda x: whiten(gae_of(x, lam=0.95), x.mask),
    "gae two lambdas": lambda x: gae_of(x, lam=0.95, lam_value=1.0),
    "gae length-adaptive": lambda x: gae_of(x, lam_value=1.0),
}

# --- loops -----------------------------------------------------------------------------------------------------------


def group_loop(x: Inputs, formula: Callable[[list[float], int], float], rewards: Sequence[float]) -> list[float]:
    """``formula(rewards of the group, place in it)`` of every row."""
    members: dict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(x.groups.tolist()):
        members[group].append(row)
    out = [0.0] * len(rewards)
    for siblings in members.values():
        of_group = [rewards[row] for row in siblings]
        if max(of_group) > min(of_group):
            for place, row in enumerate(siblings):
                out[row] = formula(of_group, place)
    return out


def spread_loop(x: Inputs, values: Sequence[float]) -> list[float]:
    out: list[float] = []
    mask = x.mask.tolist()
    for row, value in enumerate(values):
        out += [value if mask[t] else 0.0 for t in range(row * TOKENS, (row + 1) * TOKENS)]
    return out


def deviation(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))


def mean_loop(of_group: list[float], place: int) -> float:
    return of_group[place] - sum(of_group) / len(of_group)


def std_loop(of_group: list[float], place: int) -> float:
    return mean_loop(of_group, place) / (deviation(of_group) + 1e-6)


def without_loop(of_group: list[float], place: int) -> float:
    others = of_group[:place] + of_group[place + 1 :]
    return of_group[place] - sum(others) / len(others)


def without_std_loop(of_group: list[float], place: int) -> float:
    others = of_group[:place] + of_group[place + 1 :]
    std = deviation(others) if max(others) > min(others) else 0.0
    return without_loop(of_group, place) / (std + 1e-6 if std else 1.0)


def max_loop(of_group: list[float], place: int) -> float:
    mean = sum(of_group) / len(of_group)
    return (of_group[place] - mean) / mean


def best_loop(of_group: list[float], place: int) -> float:
    first, second = sorted(of_group, reverse=True)[:2]
    return (first - second) / (deviation(of_group) + 1e-6) if of_group[place] == first else 0.0


def of_rewards(formula: Callable[[list[float], int], float]) -> Callable[[Inputs], list[float]]:
    return lambda x: spread_loop(x, group_loop(x, formula, x.rewards.tolist()))


def opo_loop(x: Inputs) -> list[float]:
    lengths, weighted, total = x.lengths.tolist(), defaultdict(float), defaultdict(float)
    for group, length, reward in zip(x.groups.tolist(), lengths, x.rewards.tolist(), strict=True):
        weighted[group] += length * reward
        total[group] += length
    groups = x.groups.tolist()
    minus = [weighted[group] / total[group] for group in groups]
    kept = group_loop(x, lambda of_group, place: 1.0, x.rewards.tolist())
    return spread_loop(x, [k * (r - m) for k, r, m in zip(kept, x.rewards.tolist(), minus, strict=True)])


def scaled_loop(x: Inputs, count: Callable[[list[float]], float]) -> list[float]:
    centred = group_loop(x, mean_loop, x.rewards.tolist())
    factor = count(group_loop(x, lambda of_group, place: 1.0, x.rewards.tolist()))
    return spread_loop(x, [factor * c for c in centred])


def batch_std_loop(x: Inputs) -> list[float]:
    centred = group_loop(x, mean_loop, x.rewards.tolist())
    std = math.sqrt(sum(c * c for c in centred) / (len(centred) - 1))
    return spread_loop(x, [c / (std + 1e-6) for c in centred])


def gdpo_loop(x: Inputs) -> list[float]:
    one, two = (group_loop(x, std_loop, r.tolist()) for r in (x.rewards, x.second))
    total = [a + 0.5 * b for a, b in zip(one, two, strict=True)]
    std = deviation(total)
    return spread_loop(x, [t / std for t in total])


def whiten_loop(x: Inputs, values: list[float]) -> list[float]:
    mask = x.mask.tolist()
    kept = [v for v, m in zip(values, mask, strict=True) if m]
    mean = sum(kept) / len(kept)
    scale = 1 / math.sqrt(sum((v - mean) ** 2 for v in kept) / (len(kept) - 1) + 1e-8)
    return [(v - mean) * scale if m else 0.0 for v, m in zip(values, mask, strict=True)]


def gae_loop(x: Inputs, gamma: float, lam: float | None, *, critic: bool = True, passes: int = 1) -> list[float]:
    """Also rewards to go, without a critic and with lambda 1. ``passes``: 2 for two lambdas."""
    rewards, mask, lengths = x.token_rewards.tolist(), x.mask.tolist(), x.lengths.tolist()
    values = x.values.tolist() if critic else [0.0] * len(rewards)
    out = [0.0] * len(rewards)
    for _ in range(passes):
        for row in range(len(rewards) // TOKENS):
            own = lam if lam is not None else 1 - 1 / max(0.05 * lengths[row], 1.0)
            following = advantage = 0.0
            for t in range((row + 1) * TOKENS - 1, row * TOKENS - 1, -1):
                if mask[t]:
                    advantage = rewards[t] + gamma * following - values[t] + gamma * own * advantage
                    following = values[t]
                    out[t] = advantage
    return out


def remax_loop(x: Inputs) -> list[float]:
    to_go, minus = gae_loop(x, 1.0, 1.0, critic=False), spread_loop(x, x.second.tolist())
    return [r - m for r, m in zip(to_go, minus, strict=True)]


LOOPS: dict[str, Callable[[Inputs], list[float]]] = {
    "grpo": of_rewards(std_loop),
    "grpo mean only": of_rewards(mean_loop),
    "grpo batch std": batch_std_loop,
    "grpo leave-one-out std": of_rewards(without_std_loop),
    "rloo": of_rewards(without_loop),
    "opo": opo_loop,
    "gpg": lambda x: scaled_loop(x, lambda varied: len(varied) / sum(varied)),
    "maxrl": of_rewards(max_loop),
    "pass@k": of_rewards(lambda g, p: best_loop(g, p)),
    "cpgd": lambda x: scaled_loop(x, lambda varied: min(len(varied) / sum(varied), 3.0)),
    "gdpo, 2 rewards": gdpo_loop,
    "reinforce++ baseline": lambda x: whiten_loop(x, of_rewards(mean_loop)(x)),
    "reinforce++": lambda x: whiten_loop(x, gae_loop(x, 0.99, 1.0, critic=False)),
    "remax": remax_loop,
    "gae": lambda x: gae_loop(x, 0.99, 0.95),
    "gae whitened": lambda x: whiten_loop(x, gae_loop(x, 0.99, 0.95)),
    "gae two lambdas": lambda x: gae_loop(x, 0.99, 0.95, passes=2),
    "gae length-adaptive": lambda x: gae_loop(x, 0.99, None, passes=2),
}


PREDICTED = {
    "reinforce++ baseline": 0.2,
    "reinforce++": 0.5,
    "remax": 0.4,
    "gae": 0.6,
    "gae whitened": 0.7,
    "gae two lambdas": 0.7,
    "gae length-adaptive": 0.7,
}
"""CPU seconds; 0.1 for the others."""


def seconds_of(call: Callable[[], object], times: int) -> float:
    """CPU seconds of the fastest of several calls."""
    spent = []
    for _ in range(times):
        begin = time.process_time()
        call()
        spent.append(time.process_time() - begin)
    return min(spent)


def main() -> None:
    """Check, time, print the table, write results/estimators.json."""
    whole = make_inputs()
    part = whole.first(LOOPED)
    result = []
    for name, ours in OURS.items():
        loop = LOOPS[name]
        np.testing.assert_allclose(ours(part), loop(part), rtol=1e-6, atol=1e-9, err_msg=name)
        seconds = seconds_of(lambda ours=ours: ours(whole), TIMES)
        looped = seconds_of(lambda loop=loop: loop(part), 1) * SEQUENCES / LOOPED
        result.append(
            {
                "estimator": name,
                "cpu_s": seconds,
                "predicted_s": PREDICTED.get(name, 0.1),
                "loop_s_scaled": looped,
                "times": looped / seconds,
            }
        )
    print_table(f"{SEQUENCES:,} sequences of {TOKENS} tokens, CPU seconds (target: 1)", result)
    write_result("estimators", result)


if __name__ == "__main__":
    main()
