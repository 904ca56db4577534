"""Parts and bins: against every partition there is, and what must hold of any."""

from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stretto.data.balance import pack_bins, partition
from stretto.errors import DataError


def largest(lengths, parts):
    return max(sum(lengths[i] for i in part) for part in parts)


@settings(max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 60), min_size=1, max_size=40),
    k=st.integers(1, 9),
    equal_size=st.booleans(),
)
@example(lengths=[9, 0, 0, 0], k=4, equal_size=False)
@example(lengths=[5, 5, 5, 1, 1], k=2, equal_size=True)
def test_every_sequence_once_no_part_empty_sizes_equal_if_asked(lengths, k, equal_size):  # pitfall 13
    k = min(k, len(lengths))
    parts = partition(lengths, k, equal_size=equal_size)
    assert sorted(i for part in parts for i in part) == list(range(len(lengths)))
    assert len(parts) == k and all(parts)
    sizes = [len(part) for part in parts]
    assert not equal_size or max(sizes) - min(sizes) <= 1
    assert parts == partition(lengths, k, equal_size=equal_size)
    # What any list of lengths allows: the largest part is at most an even share and one sequence more.
    assert equal_size or largest(lengths, parts) <= sum(lengths) / k + max(lengths)


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(1, 30), min_size=3, max_size=8), k=st.integers(2, 3))
def test_near_the_best_of_all_partitions(lengths, k):
    all_ways = product(range(k), repeat=len(lengths))
    best = min(
        max(sum(x for x, p in zip(lengths, way, strict=True) if p == part) for part in range(k)) for way in all_ways
    )
    assert (
        largest(lengths, partition(lengths, k)) <= best * 11 / 9
    )  # Michiels et al. 2003, for differencing in up to 3 parts


def test_exchanges_find_what_differencing_misses():
    """Differencing gives 16 and 14."""
    assert largest([8, 7, 6, 5, 4], partition([8, 7, 6, 5, 4], 2)) == 15
    assert partition([8, 7, 6, 5, 4], 2) == [[0, 1], [2, 3, 4]]


def test_lengths_may_be_costs():
    assert partition([0.5, 0.25, 0.25], 2) == [[0], [1, 2]]


def test_too_few_sequences_are_refused():
    with pytest.raises(DataError, match=r"2 sequences cannot make 3 parts.*1 to 2"):
        partition([4, 4], 3)


@given(lengths=st.lists(st.integers(0, 50), max_size=40), capacity=st.integers(50, 120))
def test_bins_hold_everything_and_are_few(lengths, capacity):
    bins = pack_bins(lengths, capacity)
    assert sorted(i for each in bins for i in each) == list(range(len(lengths)))
    assert not bins or largest(lengths, bins) <= capacity
    # Two bins that are at most half full together would have been one.
    assert sum(lengths) > capacity * (len(bins) - 1) / 2 or len(bins) < 2


def test_bins_by_hand():
    assert pack_bins([6, 2, 5, 3, 4], 10) == [[0, 4], [1, 2, 3]]
    with pytest.raises(DataError, match="a sequence of 11 does not fit a bin of 10"):
        pack_bins([3, 11], 10)
