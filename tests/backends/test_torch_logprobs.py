"""Log-probs and entropies without logits: values and gradients against the plain computation."""

import pytest
import torch

from stretto.backends.torch import logprobs
from stretto.backends.torch.logprobs import token_logprobs


def inputs(dtype=torch.float64, rows=7, hidden=5, vocabulary=11):
    generator = torch.Generator().manual_seed(1)
    h = torch.randn(rows, hidden, generator=generator, dtype=dtype).requires_grad_()
    w = torch.randn(vocabulary, hidden, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    inverse_temperature = torch.linspace(0.5, 2.0, rows, dtype=torch.float32)
    return h, w, targets, inverse_temperature


def plain(h, w, targets, inverse_temperature):
    logp = ((h @ w.t()) * inverse_temperature[:, None]).log_softmax(-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("chunk", [1, 22, 2**22])
def test_values_and_gradients_are_those_of_the_plain_computation(monkeypatch, chunk):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    h, w, targets, it = inputs()
    for ours, theirs in zip(token_logprobs(h, w, targets, it), plain(h, w, targets, it), strict=True):
        torch.testing.assert_close(ours, theirs)
    coefficients = torch.linspace(-1, 1, len(h), dtype=torch.float64)
    for pick in (lambda lp, en: (coefficients * lp).sum(), lambda lp, en: (coefficients * (lp + 0.3 * en)).sum()):
        got = torch.autograd.grad(pick(*token_logprobs(h, w, targets, it)), (h, w))
        want = torch.autograd.grad(pick(*plain(h, w, targets, it)), (h, w))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def test_gradcheck():
    h, w, targets, it = inputs(rows=3, hidden=2, vocabulary=4)
    assert torch.autograd.gradcheck(lambda a, b: token_logprobs(a, b, targets, it), (h, w))


def test_softmax_is_in_float32_for_bfloat16_states():
    h, w, targets, it = inputs(torch.float32)
    lp, entropy = token_logprobs(h.detach().bfloat16(), w, targets, it)
    assert lp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(lp, plain(h, w, targets, it)[0], atol=0.1, rtol=0.05)
    loss = token_logprobs(h.bfloat16(), w, targets, it)[0].sum()
    (grad,) = torch.autograd.grad(loss, (w,))
    assert grad.dtype == torch.float32


def test_entropy_of_large_logits_loses_nothing_and_is_never_negative():
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(200, 64, generator=generator).requires_grad_()
    w = torch.randn(1000, 64, generator=generator) * 4
    targets, it = torch.zeros(200, dtype=torch.long), torch.ones(200)
    entropy = token_logprobs(h, w, targets, it)[1]
    assert float(entropy.detach().min()) >= 0
    # of the same float32 logits, so that only what follows them is compared
    exact = torch.distributions.Categorical(logits=(h.detach() @ w.t()).double()).entropy()
    torch.testing.assert_close(entropy.detach().double(), exact, atol=5e-5, rtol=1e-5)
    wide = h.detach().double().requires_grad_()
    (got,) = torch.autograd.grad(entropy.sum(), h)
    (want,) = torch.autograd.grad(plain(wide, w.double(), targets, it)[1].sum(), wide)
    assert (got - want).norm() < 1e-4 * want.norm()
