"""Aggregation weights against golden vectors, the worked example and the law that cutting changes nothing."""

import numpy as np
import pytest

from stretto.algorithms.aggregation import aggregation_weights


def test_weights_match_golden(golden, check, batch_of):
    for case in golden("aggregation", "agg.token_mean", "agg.seq_mean_token_mean", "agg.seq_mean_token_sum"):
        values, mask = np.asarray(case["inputs"]["values"]), case["inputs"]["mask"]
        weights = aggregation_weights(batch_of(mask), case["variant"].removeprefix("agg."))
        check(case, "loss", float((weights.values * values.ravel()).sum()))
        check(case, "grad", weights.values.reshape(values.shape))


@pytest.mark.parametrize(
    ("aggregate", "expected"), [("token_mean", 8 / 6), ("seq_mean_token_mean", 1.5), ("seq_mean_token_sum", 4.0)]
)
def test_weights_by_hand(batch_of, aggregate, expected):
    batch = batch_of([[1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 0], [0] * 6])
    losses = np.repeat([2.0, 1.0, 99.0], 6)
    assert float((aggregation_weights(batch, aggregate).values * losses).sum()) == pytest.approx(expected)
