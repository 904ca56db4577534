"""Learning-rate schedules by hand and their laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.algorithms.schedules import lr_at


def test_lr_by_hand():
    linear = [lr_at(s, steps=6, peak=1.0, warmup=2, decay="linear") for s in range(7)]
    assert linear == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0])
    assert lr_at(2, steps=4, peak=2.0, decay="cosine") == pytest.approx(1.0)
    assert [lr_at(s, steps=3, peak=2.0) for s in range(3)] == [2.0] * 3


@given(steps=st.integers(1, 50), warmup=st.integers(0, 60), decay=st.sampled_from(["constant", "linear", "cosine"]))
def test_every_step_has_a_rate_between_zero_and_the_peak(steps, warmup, decay):
    rates = [lr_at(s, steps=steps, peak=0.1, warmup=warmup, decay=decay) for s in range(steps)]
    assert all(0 < r <= 0.1 + 1e-12 for r in rates)
    after = rates[warmup:]
    assert after == sorted(after, reverse=True)
