"""Rewards sorted by group: what every group-relative estimator sums over. No loop over groups.

Shapes: B rows, S the same rows sorted by (group, reward), P groups in order of their ids. Since a group's rewards are
summed in the order of their size, a group's numbers are the same bits whatever the order of rows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Doubles", "Siblings"]

Doubles = NDArray[np.float64]
Places = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Siblings:
    """``rewards_S`` and their groups; ``order_S`` are the rows they came from, ``group_S`` the number of the group.

    ``constant_P``: whether all rewards of a group are equal, tested on the rewards themselves: a mean that is off by
    one ulp must not become an advantage. ``single_P``: whether there is only one.
    """

    order_S: Places
    group_S: Places
    starts_P: Places
    sizes_P: Places
    rewards_S: Doubles
    constant_P: Flags
    single_P: Flags

    @classmethod
    def of(cls, rewards_B: ArrayLike, groups_B: ArrayLike) -> "Siblings":
        """Sort finite rewards [B] by groups [B], whose ids are any integers in any order."""
        rewards, groups = np.asarray(rewards_B, np.float64), np.asarray(groups_B)
        assert rewards.shape == groups.shape and rewards.ndim == 1, (rewards.shape, groups.shape)
        order_S = np.lexsort((rewards, groups))
        rewards_S, ids_S = rewards[order_S], groups[order_S]
        begins_S = np.ones(len(ids_S), np.bool_)
        begins_S[1:] = ids_S[1:] != ids_S[:-1]
        starts_P = np.flatnonzero(begins_S)
        sizes_P = np.diff(starts_P, append=len(ids_S))
        return cls(
            order_S=order_S,
            group_S=np.cumsum(begins_S) - 1,
            starts_P=starts_P,
            sizes_P=sizes_P,
            rewards_S=rewards_S,
            constant_P=rewards_S[starts_P] == rewards_S[starts_P + sizes_P - 1],
            single_P=sizes_P == 1,
        )

    @property
    def sizes_S(self) -> Places:
        """The size of each row's group."""
        return self.sizes_P[self.group_S]

    def totals(self, values_S: Doubles) -> Doubles:
        """The sum of each group [P]."""
        return np.add.reduceat(values_S, self.starts_P) if len(values_S) else np.zeros(0)

    def means(self) -> Doubles:
        """The mean reward of each group [P]."""
        return self.totals(self.rewards_S) / self.sizes_P

    def deviations(self, ddof: int) -> Doubles:
        """The standard deviation of each group [P], from its squared differences; 0 where too few or all equal."""
        squares_S = (self.rewards_S - self.means()[self.group_S]) ** 2
        std_P = np.sqrt(self.totals(squares_S) / np.maximum(self.sizes_P - ddof, 1))
        return np.where(self.constant_P, 0.0, std_P)

    def differences(self) -> Doubles:
        """Rewards less the mean of their group [S]; exactly 0 where all are equal."""
        return np.where(self.constant_P[self.group_S], 0.0, self.rewards_S - self.means()[self.group_S])

    def others_deviations(self, ddof: int) -> Doubles:
        """The standard deviation of every row's siblings without itself [S]; 0 where too few or all equal.

        An outlier must not leave its size behind in the variance of the others, so they are summed without it (from
        both sides), never subtracted from a total; and from a middle reward, so that equal others have exactly 0.
        """
        last_S = (self.starts_P + self.sizes_P - 1)[self.group_S]
        first_S = self.starts_P[self.group_S]
        pivot_S = self.rewards_S[(first_S + last_S) // 2]
        shifted_S = self.rewards_S - pivot_S
        sum_S = self._others(shifted_S)
        square_S = self._others(shifted_S * shifted_S)
        count_S = np.maximum(self.sizes_S - 1, 1)
        variance_S = np.maximum(square_S - sum_S * sum_S / count_S, 0.0) / np.maximum(count_S - ddof, 1)
        place_S = np.arange(len(self.order_S))
        too_few_S = self.sizes_S - 1 - ddof < 1
        std_S = np.where(too_few_S, 0.0, np.sqrt(variance_S))
        # Sums from both sides round differently at every place; equal rewards of a group take what the first has.
        first_equal_S = np.ones(len(place_S), np.bool_)
        first_equal_S[1:] = (np.diff(self.rewards_S) != 0) | (np.diff(self.group_S) != 0)
        return std_S[np.maximum.accumulate(np.where(first_equal_S, place_S, 0))]

    def rows(self, values_S: Doubles) -> Doubles:
        """``values_S`` in the order of the rows they came from [B]."""
        values_B = np.empty(len(values_S))
        values_B[self.order_S] = values_S
        return values_B

    def _others(self, values_S: Doubles) -> Doubles:
        """The sum of a group's values without the row's own [S], as what stands before it plus what stands after it.

        Groups of one size are a matrix, so that sums start anew in each group.
        """
        out_S = np.zeros(len(values_S))
        sizes: list[int] = np.unique(self.sizes_P).tolist()
        for size in sizes:
            places_PG = self.starts_P[self.sizes_P == size][:, None] + np.arange(size)
            values_PG = values_S[places_PG]
            before_PG = np.zeros_like(values_PG)
            before_PG[:, 1:] = np.cumsum(values_PG[:, :-1], 1)
            after_PG = np.zeros_like(values_PG)
            after_PG[:, :-1] = np.cumsum(values_PG[:, :0:-1], 1)[:, ::-1]
            out_S[places_PG] = before_PG + after_PG
        return out_S
