"""Memory settings hold while a run goes, and no longer."""

import gc

import numpy as np
import psutil
import pytest

from stretto.memory import give_back_memory, tuned_memory


def _fails(before):
    with tuned_memory():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
        raise ValueError("on the way")


def test_the_collector_is_as_before_afterwards():
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="on the way"):
        _fails(before)
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_garbage_made_inside_is_still_found():
    class Knot:
        alive = 0

        def __init__(self):
            self.self, Knot.alive = self, Knot.alive + 1

        def __del__(self):
            Knot.alive -= 1

    with tuned_memory():
        for _ in range(60_000):
            Knot()
        assert Knot.alive < 60_000
    gc.collect()
    assert Knot.alive == 0


@pytest.mark.skipif(not psutil.LINUX, reason="glibc's allocator")
def test_what_is_let_go_inside_can_be_given_back():
    resident = psutil.Process().memory_info

    def arrays():
        return [np.ones(2**18) for _ in range(64)]  # 2 MB each

    with tuned_memory():
        held = arrays()
        full = resident().rss
        del held
        give_back_memory()
        assert full - resident().rss > 100e6
    held = arrays()
    full = resident().rss
    del held
    assert full - resident().rss > 100e6, "afterwards freed memory goes back by itself, as before"
