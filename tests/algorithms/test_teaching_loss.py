"""Divergences from a teacher: against torch's own, by hand, their bounds and their gradients."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from stretto.algorithms.losses import Tokens, distill, divergence_of
from stretto.errors import ConfigError

KINDS = ("reverse_kl", "forward_kl", "jsd")


def logits(seed: int, n: int = 4, vocabulary: int = 7, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(n, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(kind: str, policy: Tensor, teacher: Tensor, beta: float) -> Tensor:
    """As torch.distributions has it."""
    p, q = Categorical(logits=policy), Categorical(logits=teacher)
    if kind == "reverse_kl":
        return kl_divergence(p, q)
    if kind == "forward_kl":
        return kl_divergence(q, p)
    m = Categorical(probs=beta * q.probs + (1 - beta) * p.probs)
    return beta * kl_divergence(q, m) + (1 - beta) * kl_divergence(p, m)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.8])
def test_value_and_gradient_are_those_of_torch(kind, beta):
    ours, theirs = (logits(1).requires_grad_() for _ in range(2))
    divergence = divergence_of(F.log_softmax(ours, -1), F.log_softmax(logits(2), -1), divergence=kind, beta=beta)
    expected = plain(kind, theirs, logits(2), beta)
    torch.testing.assert_close(divergence, expected, rtol=1e-10, atol=1e-12)
    divergence.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_top_k_by_hand():
    policy, teacher = torch.tensor([[0.5, 0.2, 0.2, 0.1]]), torch.tensor([[0.1, 0.6, 0.25, 0.05]])
    # The teacher's two likeliest are tokens 1 and 2; the rest has 0.15 there and 0.6 here.
    coarse = [(0.2, 0.6), (0.2, 0.25), (0.6, 0.15)]
    found = divergence_of(policy.log(), teacher.log(), divergence="reverse_kl", top_k=2)
    assert found.item() == pytest.approx(sum(p * math.log(p / q) for p, q in coarse), rel=1e-5)
    found = divergence_of(policy.log(), teacher.log(), divergence="forward_kl", top_k=2)
    assert found.item() == pytest.approx(sum(q * math.log(q / p) for p, q in coarse), rel=1e-5)


@given(seed=st.integers(0, 1000), kind=st.sampled_from(KINDS), k=st.integers(1, 7), scale=st.floats(0.1, 30))
@settings(max_examples=60, deadline=None)
def test_fewer_outcomes_never_differ_more(seed, kind, k, scale):
    policy = logits(seed, scale=scale).requires_grad_()
    teacher = F.log_softmax(logits(seed + 1, scale=scale), -1)
    whole = divergence_of(F.log_softmax(policy, -1), teacher, divergence=kind)
    coarse = divergence_of(F.log_softmax(policy, -1), teacher, divergence=kind, top_k=k)
    assert bool((coarse <= whole + 1e-9).all()) and bool((coarse >= -1e-12).all())
    if k == 7:
        assert torch.equal(coarse, whole)
    coarse.sum().backward()
    assert policy.grad is not None and bool(policy.grad.isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_like_its_teacher_is_left_alone(kind):
    policy = logits(3).requires_grad_()
    teacher = F.log_softmax(logits(3) + 5.0, -1)  # the same distribution
    for k in (None, 3):
        divergence = divergence_of(F.log_softmax(policy, -1), teacher, divergence=kind, top_k=k)
        assert divergence.abs().max().item() < 1e-12
        (gradient,) = torch.autograd.grad(divergence.sum(), policy)
        assert float(gradient.abs().max()) < 1e-12


def tokens_of(policy: Tensor, teacher: Tensor, weights: list[float]) -> Tokens:
    def over(function, places):
        own, other = F.log_softmax(policy, -1), F.log_softmax(teacher, -1)
        return function(own, other) if places is None else function(own[places], other[places])

    logp = F.log_softmax(policy, -1)
    return Tokens(
        weights_N=torch.tensor(weights, dtype=torch.float64),
        sampler_logprobs_N=torch.zeros(len(policy), dtype=torch.float64),
        sampled_N=torch.zeros(len(policy), dtype=torch.bool),
        rows_N=torch.arange(len(policy)),
        num_rows=len(policy),
        logprobs_N=logp[:, 0],
        entropy_N=-(logp.exp() * logp).sum(-1),
        vocabulary=over,
    )


def test_the_loss_is_a_weighted_sum_over_trained_tokens():
    policy, teacher = logits(4).requires_grad_(), logits(5)
    teacher[2] = math.nan  # its weight is 0
    weights = [0.5, 0.25, 0.0, 0.25]
    out = distill(tokens_of(policy, teacher, weights), divergence="forward_kl", entropy_coef=0.1)
    each = plain("forward_kl", policy[[0, 1, 3]], teacher[[0, 1, 3]], 0.5)
    entropy = Categorical(logits=policy[[0, 1, 3]]).entropy()
    expected = (torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64) * (each - 0.1 * entropy)).sum()
    assert out.total.item() == pytest.approx(expected.item(), rel=1e-10)
    assert out.metrics["divergence"].value == pytest.approx(each.mean().item(), rel=1e-10)
    (ours,), (theirs,) = (torch.autograd.grad(total, policy) for total in (out.total, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def test_without_a_teacher_it_says_so():
    policy = logits(1)
    tokens = tokens_of(policy, policy, [1.0] * 4)
    alone = Tokens(**{name: getattr(tokens, name) for name in Tokens.__dataclass_fields__ if name != "vocabulary"})
    with pytest.raises(ConfigError, match=r"names no Model to compare with. Name it in teachers="):
        distill(alone)


def test_what_is_trained_is_chosen_once_and_again():
    tokens = tokens_of(logits(6), logits(7), [1.0, 0.0, 1.0, 1.0])
    seen = tokens.trained().over_vocabulary(partial(divergence_of, divergence="jsd"))
    whole = tokens.over_vocabulary(partial(divergence_of, divergence="jsd"))
    assert torch.equal(seen, whole[[0, 2, 3]])
