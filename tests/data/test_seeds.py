"""Seeds of samples: different in every argument, without collisions, fixed forever."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stretto.data.seeds import NAMESPACES, order_seed, sample_seed

u63 = st.integers(0, 2**63 - 1)
names = st.sampled_from(sorted(NAMESPACES))
identity = st.tuples(u63, names, u63, st.integers(0, 10**6), st.integers(0, 10**4))


def test_siblings_and_everything_else_differ_over_large_ranges():  # pitfall 21
    seeds = [
        sample_seed(run, name, draw, sample, turn)
        for run, name, draw, sample, turn in itertools.product(
            (0, 1, 2**63 - 1), NAMESPACES, range(1500), range(16), range(3)
        )
    ]
    assert len(set(seeds)) == len(seeds) == 3 * 3 * 1500 * 16 * 3
    assert all(0 <= seed < 2**64 for seed in seeds)


@given(identity, identity)
def test_a_seed_is_a_function_of_its_identity(a: tuple, b: tuple):
    assert (sample_seed(*a) == sample_seed(*b)) == (a == b)


def test_seeds_are_fixed_forever():
    # A change here breaks the resume of every run there is.
    assert sample_seed(0, "train", 0, 0) == 0x114DDFDA264D5AA9
    assert sample_seed(7, "evaluation", 12, 3, 1) == 0xB9B231940B69DDD0
    assert order_seed(0, "train") == 0xD1160D30EEBC8EDD


def test_order_seeds_differ():
    seeds = {order_seed(run, name) for run in range(1000) for name in NAMESPACES}
    assert len(seeds) == 3000
