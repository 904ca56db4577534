"""Drawing tokens: the random numbers, the support, the log-probs, and that rows do not see each other."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.engines.native.sampling import Draws, draw_tokens, uniforms


def _draws(rows, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, uniform=None):
    return Draws(
        temperature_R=np.full(rows, temperature, np.float32),
        top_k_R=np.full(rows, top_k, np.int64),
        top_p_R=np.full(rows, top_p, np.float64),
        min_p_R=np.full(rows, min_p, np.float64),
        uniform_R=np.asarray(uniform if uniform is not None else np.linspace(0, 1, rows, endpoint=False)),
    )


def _by_hand(logits, temperature, top_k, top_p, min_p):
    """The distribution, in float64, one token at a time."""
    scaled = logits.astype(np.float64) / temperature
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    kept = order[: top_k or None]
    weight = np.exp(scaled[kept] - scaled[kept].max())
    weight /= weight.sum()
    mass, support = 0.0, []
    for token, share in zip(kept, weight, strict=True):
        if top_p < 1 and support and mass >= top_p:
            break
        support.append(token)
        mass += share
    probs = np.zeros(len(scaled))
    probs[support] = weight[: len(support)] / mass
    probs[probs < min_p * probs.max() * (1 - 1e-12)] = 0
    return probs / probs.sum()


def test_splitmix64_is_that_of_its_paper():
    # Known answers: the stream of seed 1234567 as published with the reference implementation.
    from stretto.engines.native.sampling import _GOLDEN, _mix

    state = np.array([1234567], np.uint64) + np.arange(1, 6, dtype=np.uint64) * _GOLDEN
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert _mix(state).tolist() == expected


def test_uniforms_are_uniform_distinct_and_addressed():
    seeds = np.repeat(np.arange(200, dtype=np.uint64), 50)
    places = np.tile(np.arange(50, dtype=np.int64), 200)
    values = uniforms(seeds, places)
    assert len(np.unique(values)) == len(values)
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert ((counts - 500) ** 2 / 500).sum() < 45  # chi-square, 19 degrees of freedom, p about 1e-3
    table = values.reshape(200, 50)
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.04
    assert abs(np.corrcoef(table[:, :-1].ravel(), table[:, 1:].ravel())[0, 1]) < 0.04
    shuffled = np.random.default_rng(0).permutation(len(values))
    assert np.array_equal(uniforms(seeds[shuffled], places[shuffled]), values[shuffled])


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_tokens_and_logprobs_are_those_of_the_distribution_by_hand(data):
    vocab = data.draw(st.integers(2, 12))
    logits = np.array(data.draw(st.lists(st.integers(-40, 40), min_size=vocab, max_size=vocab)), np.float32) / 8
    temperature = data.draw(st.sampled_from([0.3, 0.7, 1.0, 1.7]))
    top_k = data.draw(st.integers(0, vocab + 1))
    top_p = data.draw(st.sampled_from([0.05, 0.33, 0.61, 0.93, 1.0]))
    min_p = data.draw(st.sampled_from([0.0, 0.04, 0.3, 0.77, 1.0]))
    rows = 64
    draws = _draws(rows, temperature, top_k, top_p, min_p)
    tokens, logprobs = draw_tokens(torch.from_numpy(logits).expand(rows, vocab).contiguous(), draws)
    probs = _by_hand(logits, temperature, top_k, top_p, min_p)
    assert (probs[tokens] > 0).all()
    np.testing.assert_allclose(logprobs, np.log(probs[tokens]), atol=2e-6)
    # 64 evenly spaced uniforms through the inverse distribution function: every token gets its share, to one.
    assert (np.abs(np.bincount(tokens, minlength=vocab) - rows * probs) <= 1.001).all()


def test_min_p_keeps_what_is_likely_enough_beside_the_likeliest():
    # Probabilities 0.5, 0.25, 0.15, 0.1: with min_p 0.3 the bar is 0.15 (arXiv:2407.01082, eq. 2), and 0.1 falls out.
    probs = torch.tensor([[0.5, 0.25, 0.15001, 0.09999]], dtype=torch.float64)
    logits = probs.log().float().expand(90, 4).contiguous()
    tokens, logprobs = draw_tokens(logits, _draws(90, min_p=0.3))
    assert np.bincount(tokens, minlength=4).tolist() == [50, 25, 15, 0]
    np.testing.assert_allclose(np.exp(logprobs), np.array([0.5, 0.25, 0.15001])[tokens] / 0.90001, rtol=1e-5)
    only, zero = draw_tokens(logits, _draws(90, min_p=1.0))
    assert (only == 0).all() and (zero == 0).all()


def test_ties_go_to_the_lower_id_and_greedy_reports_temperature_one():
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0]]).expand(8, 4).contiguous()
    tokens, logprobs = draw_tokens(logits, _draws(8, top_k=1))
    assert tokens.tolist() == [1] * 8 and logprobs.tolist() == [0.0] * 8
    logits = torch.tensor([[1.0, 3.5, 3.0, 0.0]]).expand(8, 4).contiguous()
    tokens, logprobs = draw_tokens(logits, _draws(8, temperature=0.0, top_k=1, top_p=0.1))
    assert tokens.tolist() == [1] * 8
    np.testing.assert_allclose(logprobs, torch.log_softmax(logits, -1)[:, 1].numpy())


def test_a_token_without_weight_is_never_drawn():
    logits = torch.full((4, 6), float("-inf"))
    logits[:, 2] = 0.0
    tokens, logprobs = draw_tokens(logits, _draws(4, uniform=[0.0, 0.5, 1 - 2.0**-52, 1e-300]))
    assert tokens.tolist() == [2] * 4 and logprobs.tolist() == [0.0] * 4


@pytest.mark.parametrize("vocab", [97, 1000])
def test_rows_do_not_see_each_other(vocab):
    rng = np.random.default_rng(1)
    rows = 40
    logits = torch.from_numpy(rng.normal(0, 2, (rows, vocab)).astype(np.float32))
    draws = Draws(
        temperature_R=rng.choice([0, 0.7, 1.0, 1.3], rows).astype(np.float32),
        top_k_R=rng.choice([0, 0, 5], rows).astype(np.int64),
        top_p_R=rng.choice([1.0, 1.0, 0.8], rows),
        min_p_R=rng.choice([0.0, 0.0, 0.1], rows),
        uniform_R=rng.random(rows),
    )
    tokens, logprobs = draw_tokens(logits, draws)
    for _ in range(20):
        some = rng.permutation(rows)[: rng.integers(1, rows + 1)]
        part = Draws(
            temperature_R=draws.temperature_R[some],
            top_k_R=draws.top_k_R[some],
            top_p_R=draws.top_p_R[some],
            min_p_R=draws.min_p_R[some],
            uniform_R=draws.uniform_R[some],
        )
        again_tokens, again_logprobs = draw_tokens(logits[torch.from_numpy(some)], part)
        assert np.array_equal(again_tokens, tokens[some])
        assert again_logprobs.tobytes() == logprobs[some].tobytes()


def test_not_finite_logits_give_not_finite_logprobs():
    logits = torch.tensor([[0.0, float("nan"), 1.0]]).expand(2, 3).contiguous()
    for temperature in (0.0, 1.0):
        _, logprobs = draw_tokens(logits, _draws(2, temperature=temperature))
        assert not np.isfinite(logprobs).any()
