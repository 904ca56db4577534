"""Losses over pairs, by hand: DPO with its kin and Bradley-Terry, their gradients, and what is counted."""

import math

import pytest
import torch
from torch import Tensor

from stretto.algorithms.losses import Tokens, bradley_terry, dpo
from stretto.errors import ConfigError

# Two pairs: chosen rows 0 and 2 of two and one tokens, rejected rows 1 and 3 of one and two.
ROWS = [0, 0, 1, 2, 3, 3]
PREFERRED = [1.0, 1.0, -1.0, 1.0, -1.0, -1.0]
LOGP = [-0.5, -1.0, -2.0, -3.0, -0.25, -0.5]
REF = [-1.0, -1.5, -1.0, -1.0, -1.0, -1.0]
# log-ratios of rows: 1.0, -1.0, -2.0, 1.25; of pairs 2.0 and -3.25.
DELTAS = [2.0, -3.25]


def tokens_of(*, weights=None, keep=None, logp=None, values=None) -> Tokens:
    places = list(range(6)) if keep is None else keep

    def some(numbers):
        return torch.tensor([numbers[i] for i in places], dtype=torch.float64)

    return Tokens(
        weights_N=some(weights or [1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6]),
        sampler_logprobs_N=torch.zeros(len(places), dtype=torch.float64),
        sampled_N=torch.zeros(len(places), dtype=torch.bool),
        rows_N=torch.tensor([ROWS[i] for i in places]),
        num_rows=4,
        columns={"ref_logprobs": some(REF), "preferred": some(PREFERRED)},
        logprobs_N=logp,
        values_N=values,
        groups_R=torch.tensor([0, 0, 1, 1]),
        num_groups=2,
    )


def leaf(numbers=LOGP) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def test_dpo_by_hand():
    logp = leaf()
    out = dpo(tokens_of(logp=logp), beta=0.5)
    # Each pair weighs the sum of its tokens: 1/2.
    h = [0.5 * delta for delta in DELTAS]
    assert out.total.item() == pytest.approx(sum(math.log1p(math.exp(-x)) for x in h) / 2)
    assert out.metrics["pairs/accuracy"].value == 0.5
    assert out.metrics["pairs/margin"].value == pytest.approx(sum(h) / 2)
    assert out.metrics["pairs/chosen"].value == pytest.approx(0.5 * (1.0 - 2.0) / 2)
    assert out.metrics["pairs/rejected"].value == pytest.approx(0.5 * (-1.0 + 1.25) / 2)
    out.total.backward()
    assert logp.grad is not None
    # d/dlogp of -log sigmoid(h) is -beta sigmoid(-h) times the sign: eq. 7's gradient weighs pairs it gets wrong.
    wrong = [1 / (1 + math.exp(x)) for x in h]
    expected = [-0.5 * wrong[0 if i < 3 else 1] * PREFERRED[i] / 2 for i in range(6)]
    assert logp.grad.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "of"),
    [
        ({"label_smoothing": 0.2}, lambda h, _: 0.8 * math.log1p(math.exp(-h)) + 0.2 * math.log1p(math.exp(h))),
        ({"kind": "hinge"}, lambda h, _: max(0.0, 1 - h)),
        ({"kind": "ipo"}, lambda _, delta: (delta - 1 / (2 * 0.5)) ** 2),
    ],
)
def test_its_kin_by_hand(settings, of):
    out = dpo(tokens_of(logp=leaf()), beta=0.5, **settings)
    assert out.total.item() == pytest.approx(sum(of(0.5 * delta, delta) for delta in DELTAS) / 2)


def test_a_policy_equal_to_its_reference_is_undecided():
    out = dpo(tokens_of(logp=leaf(REF)), beta=0.1)
    assert out.total.item() == pytest.approx(math.log(2))
    assert (out.metrics["pairs/accuracy"].value, out.metrics["pairs/margin"].value) == (0.5, 0.0)


def test_bradley_terry_by_hand():
    # One token a row is trained on; what others hold, even NaN, does not matter.
    values = leaf([math.nan, 1.5, 0.5, -1.0, math.nan, 0.25])
    weights = [0, 1 / 4, 1 / 4, 1 / 4, 0, 1 / 4]
    out = bradley_terry(tokens_of(values=values, weights=weights), center_coef=0.1)
    margins, sums = [1.0, -1.25], [2.0, -0.75]
    expected = [math.log1p(math.exp(-m)) + 0.1 * s**2 for m, s in zip(margins, sums, strict=True)]
    assert out.total.item() == pytest.approx(sum(expected) / 2)
    assert out.metrics["pairs/accuracy"].value == 0.5
    assert out.metrics["pairs/chosen"].value == pytest.approx(0.25)
    assert out.metrics["pairs/rejected"].value == pytest.approx(0.375)
    out.total.backward()
    assert values.grad is not None
    assert values.grad[[0, 4]].tolist() == [0, 0] and bool(values.grad[[1, 2, 3, 5]].isfinite().all())


def test_pairs_that_nothing_is_trained_on_are_not_counted():
    out = dpo(tokens_of(logp=leaf(), weights=[1 / 3, 1 / 3, 1 / 3, 0, 0, 0]), beta=0.5)
    assert out.total.item() == pytest.approx(math.log1p(math.exp(-1)))
    assert out.metrics["pairs/accuracy"].value == 1
    assert out.metrics["pairs/margin"].count == 1


def test_groups_that_may_be_cut_are_refused():
    tokens = tokens_of(logp=leaf())
    cut = Tokens(**{name: getattr(tokens, name) for name in Tokens.__dataclass_fields__ if name != "groups_R"})
    with pytest.raises(ConfigError, match=r"micro-batches may cut groups\. Say unit='group'"):
        dpo(cut)
