"""Losses by hand, what they have in common, and the messages of what is wrong. The golden cases are in tests/golden."""

import math

import pytest
import torch

from stretto.algorithms.advantages import kl_estimate
from stretto.algorithms.losses import (
    LOSSES,
    TokenLosses,
    Tokens,
    clip,
    gmpo,
    gspo,
    kl_in_loss,
    policy_loss,
    resolve_loss,
    sft,
    value_clip,
    with_ess,
)
from stretto.config.algorithms import LossTerms, loss_ref
from stretto.config.algorithms.losses import ClipLoss
from stretto.errors import ConfigError
from stretto.types import LossRef, merge_metrics


def tokens_with(
    logprobs=None, *, weights=None, rows=None, columns=None, sampler=None, sampled=False, **given
) -> Tokens:
    """Tokens of one row each unless ``rows`` says otherwise, with weight 1."""
    leaf = logprobs if logprobs is not None else given["values_N"]
    n = len(leaf)
    return Tokens(
        weights_N=torch.ones(n) if weights is None else torch.tensor(weights),
        sampler_logprobs_N=torch.zeros(n) if sampler is None else torch.tensor(sampler),
        sampled_N=torch.full((n,), sampled) if isinstance(sampled, bool) else torch.tensor(sampled),
        rows_N=torch.arange(n) if rows is None else torch.tensor(rows),
        num_rows=n if rows is None else max(rows) + 1,
        columns={name: torch.tensor(values) for name, values in (columns or {}).items()},
        logprobs_N=logprobs,
        **given,
    )


def test_clip_by_hand():
    logp = torch.tensor([2.0, math.log(1.5), math.log(0.5)], requires_grad=True)
    tokens = tokens_with(logp, columns={"old_logprobs": [0.0] * 3, "advantages": [-1.0, 1.0, 1.0]})
    out = clip(tokens, clip_low=0.2, clip_high=0.28)
    out.total.backward()
    assert out.total.item() == pytest.approx(7.389056 - 1.28 - 0.5, rel=1e-5)
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([7.389056, 0, -0.5], rel=1e-5)
    assert out.metrics["clip_high"].value == out.metrics["clip_frac"].value == pytest.approx(1 / 3)
    assert out.metrics["clip_low"].value == 0
    assert "clip_lower" not in out.metrics

    logp.grad = None
    dual = clip(tokens, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    dual.total.backward()
    assert dual.total.item() == pytest.approx(3 - 1.28 - 0.5, rel=1e-5)
    assert logp.grad.tolist() == pytest.approx([0, 0, -0.5], rel=1e-5)
    assert dual.metrics["clip_lower"].value == pytest.approx(1 / 3)


def test_sequence_losses_by_hand():
    """Row 0 has log-ratios 0.1 and 0.3 (mean 0.2), row 1 has -0.5."""
    logp = torch.tensor([0.1, 0.3, -0.5], dtype=torch.float64, requires_grad=True)
    columns = {"old_logprobs": [0.0] * 3, "advantages": [1.0, 1.0, -2.0]}
    tokens = tokens_with(logp, rows=[0, 0, 1], weights=[0.25, 0.25, 0.5], columns=columns)
    out = gspo(tokens, clip_low=0.5, clip_high=0.5)
    out.total.backward()
    up, down = math.exp(0.2), math.exp(-0.5)
    assert out.total.item() == pytest.approx(0.5 * -up + 0.5 * 2 * down)
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-0.25 * up, -0.25 * up, down])

    # clipped at 0.25 above: (0.1 + 0.25) / 2; with A < 0 the lower value of the two would be the better one: kept
    value = gmpo(tokens, log_clip_low=0.25, log_clip_high=0.25).total.item()
    assert value == pytest.approx(0.5 * -math.exp(0.175) + 0.5 * 2 * math.exp(-0.25))


def test_on_fresh_samples_every_ratio_is_exactly_one():
    """The first update: without old log-probs, no bound acts, and the gradient is the plain policy gradient -w A."""
    advantages = [2.0, -3.0, 0.5]
    for name in ("clip", "gspo", "gspo_token", "cispo", "sapo", "cpgd", "vespo", "reinforce", "clip_cov", "kl_cov"):
        logp = torch.tensor([-1.3, -2.0, -0.01], requires_grad=True)
        columns = {"advantages": advantages, "selected": [0.0] * 3}
        tokens = tokens_with(logp, weights=[0.5, 0.25, 0.25], rows=[0, 1, 2], columns=columns)
        out = LOSSES[name](tokens)
        out.total.backward()
        assert logp.grad is not None
        assert logp.grad.tolist() == pytest.approx([-1.0, 0.75, -0.125], rel=1e-6), name
        for metric in ("clip_frac", "clip_low", "clip_high", "approx_kl"):
            assert metric not in out.metrics or out.metrics[metric].value == 0.0, (name, metric)


def test_the_gap_to_the_sampler_is_over_sampled_tokens_only():
    tokens = tokens_with(
        torch.tensor([-1.0, -2.0]),
        sampler=[-1.1, -2.0],
        sampled=[True, False],
        columns={"advantages": [2.0, -3.0]},
        entropy_N=torch.tensor([0.5, 0.7]),
    )
    metrics = clip(tokens).metrics
    assert metrics["sampler_gap"].value == pytest.approx(0.1)
    assert metrics["sampler_gap"].count == 1
    assert metrics["entropy"].value == pytest.approx(0.6)


def test_the_common_terms_are_added_to_any_policy_loss():
    """correction * loss + kl_coef * KL - entropy_coef * entropy, by hand for a plain policy gradient."""
    logp = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    entropy = torch.tensor([0.5, 0.7], dtype=torch.float64, requires_grad=True)
    columns = {"advantages": [1.0, -1.0], "correction": [0.5, 0.0], "ref_logprobs": [-1.5, -2.0]}
    tokens = tokens_with(logp, weights=[0.5, 0.5], columns=columns, entropy_N=entropy)
    out = resolve_loss(LossRef(use="gpg", settings={"kl_coef": 0.1, "kl_kind": "k2", "entropy_coef": 0.2}))(tokens)
    out.total.backward()
    assert out.total.item() == pytest.approx(0.5 * (0.5 * 1.0) + 0.5 * 0.1 * 0.125 - 0.2 * 0.6)
    assert out.metrics["ref_kl"].value == pytest.approx(0.0625)
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([0.5 * (-0.5 + 0.1 * 0.5), 0.0])
    assert entropy.grad is not None
    assert entropy.grad.tolist() == pytest.approx([-0.1, -0.1])


def test_a_rejected_row_of_gmpo_and_the_geometric_mean_of_its_correction():
    columns = {"advantages": [1.0, 1.0, 1.0], "correction": [4.0, 1.0, 0.0]}
    tokens = tokens_with(torch.zeros(3), rows=[0, 0, 1], weights=[0.25, 0.25, 0.5], columns=columns)
    assert gmpo(tokens).total.item() == pytest.approx(0.5 * -2.0)


def test_the_weighted_kl_takes_the_ratio_as_a_constant():
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    columns = {"advantages": [0.0], "old_logprobs": [-1.5], "ref_logprobs": [-0.8]}
    out = clip(tokens_with(logp, columns=columns), kl_coef=1.0, kl_kind="k3_weighted")
    out.total.backward()
    assert out.total.item() == pytest.approx(math.exp(0.5) * (math.exp(0.2) - 1 - 0.2))
    assert logp.grad is not None
    assert logp.grad.item() == pytest.approx(math.exp(0.5) * (1 - math.exp(0.2)))


def test_cpgd_drift_is_the_kl_from_the_old_policy():
    logp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    columns = {"advantages": [0.0], "old_logprobs": [-1.5]}
    out = LOSSES["cpgd"](tokens_with(logp, columns=columns), drift_coef=2.0)
    out.total.backward()
    assert out.total.item() == pytest.approx(2 * (math.exp(0.5) - 1 - 0.5))
    assert logp.grad is not None
    assert logp.grad.item() == pytest.approx(2 * (math.exp(0.5) - 1))


def test_cpgd_drift_goes_on_along_its_tangent_beyond_its_bound():
    """The paper's clip of the gradient: never more than ``drift_max``, and never gone however far the ratio is."""
    for log_ratio, slope in ((-0.5, math.expm1(-0.5)), (0.1, math.expm1(0.1)), (1.0, 0.2), (40.0, 0.2)):
        logp = torch.tensor([log_ratio], dtype=torch.float64, requires_grad=True)
        columns = {"advantages": [0.0], "old_logprobs": [0.0]}
        out = LOSSES["cpgd"](tokens_with(logp, columns=columns), drift_coef=1.0, drift_max=0.2)
        out.total.backward()
        assert logp.grad is not None
        assert logp.grad.item() == pytest.approx(slope)
        bound = math.log(1.2)
        tangent = 0.2 - bound + 0.2 * (log_ratio - bound)
        expected = tangent if log_ratio > bound else math.expm1(log_ratio) - log_ratio
        assert out.total.item() == pytest.approx(expected)


def test_a_sure_sampler_does_not_break_the_binary_kl():
    logp = torch.tensor([0.0, -1e-9, -0.7], requires_grad=True)
    tokens = tokens_with(logp, sampler=[0.0, 0.0, 0.0], sampled=True, columns={"advantages": [1.0, -1.0, -1.0]})
    out = LOSSES["dppo_kl"](tokens)
    out.total.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.0, 1.0, 0.0])  # the last fell by a KL of about 0.7 * 26


def test_values_by_hand():
    values = torch.tensor([1.0, 3.0], requires_grad=True)
    tokens = tokens_with(values_N=values, weights=[0.5, 0.5], columns={"returns": [0.0, 0.0], "old_values": [2.0, 2.9]})
    out = value_clip(tokens, value_clip=0.2)
    out.total.backward()
    assert out.total.item() == pytest.approx(0.5 * (1.8**2 / 2 + 9 / 2))  # 1 is held at 1.8, which is the larger error
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([0.0, 1.5])
    assert out.metrics["clip_frac"].value == 0.5
    plain = value_clip(tokens, value_clip=None)
    assert plain.total.item() == pytest.approx(0.5 * (0.5 + 4.5))
    assert plain.metrics["clip_frac"].value == 0


def test_which_kl_each_estimator_pulls_on():
    """Expectations over a whole vocabulary, so no sampling noise: see ``kl_in_loss`` and ``kl_estimate``."""
    logits = torch.linspace(-1, 2, 6, dtype=torch.float64).requires_grad_()
    logp = logits.log_softmax(0)
    ref = torch.tensor([0.3, 0.05, 0.2, 0.25, 0.1, 0.1], dtype=torch.float64).log()
    sampled = logp.detach().exp()

    def gradient(value):
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    def in_loss(kind, how="value"):
        return gradient((sampled * kl_in_loss(logp, ref, kind, gradient=how)).sum())

    reverse, forward = gradient((logp.exp() * (logp - ref)).sum()), gradient((ref.exp() * (ref - logp)).sum())
    torch.testing.assert_close(in_loss("k1"), torch.zeros(6, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(in_loss("k3"), forward)
    for kind in ("k2", "k1_st", "k3_st", "abs_st"):
        torch.testing.assert_close(in_loss(kind), reverse)
    for kind in ("k1", "k3"):
        torch.testing.assert_close(in_loss(kind, "value_and_score"), reverse)
    # DeepSeek-V3.2's: samples of an older policy, weighted by the ratio to it.
    old = torch.tensor([0.1, 0.1, 0.3, 0.2, 0.2, 0.1], dtype=torch.float64)
    weighted = kl_in_loss(logp, ref, "k3_weighted", gradient="value_and_score", weights_N=sampled / old)
    torch.testing.assert_close(gradient((old * weighted).sum()), reverse)
    penalty = torch.from_numpy(kl_estimate(logp.detach().numpy(), ref.numpy(), "k1"))
    torch.testing.assert_close(gradient((sampled * penalty * logp).sum()), reverse)


def test_ess_of_equal_ratios_is_one_and_is_taken_over_all_micro_batches():
    def part(gaps):
        return sft(tokens_with(torch.zeros(len(gaps)), sampler=[-gap for gap in gaps], sampled=True)).metrics

    assert with_ess(part([0.3, 0.3]))["ess"].value == pytest.approx(1)
    merged = with_ess(merge_metrics([part([0.0]), part([math.log(3.0)])]))
    assert merged["ess"].value == pytest.approx((1 + 3) ** 2 / (2 * (1 + 9)))
    assert merged["sampler_gap_max"].value == pytest.approx(math.log(3.0))
    assert "sampler_ratio_square" not in merged


def test_a_loss_of_ones_own_by_name(monkeypatch, tmp_path):
    (tmp_path / "my_stretto_losses.py").write_text(
        "from stretto.algorithms.losses import LossOutput\n"
        "def mine(tokens, *, scale=1.0):\n"
        "    return LossOutput(total=tokens.weighted_sum(scale * tokens.policy_logprobs()), metrics={})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loss = resolve_loss(LossRef(use="my_stretto_losses:mine", settings={"scale": 2.0}))
    assert loss(tokens_with(torch.tensor([1.0, 2.0]))).total.item() == 6.0
    with pytest.raises(ConfigError, match=r"has no 'mone'. Did you mean 'mine'"):
        resolve_loss(LossRef(use="my_stretto_losses:mone"))


def test_a_policy_loss_of_ones_own_has_the_common_terms():
    @policy_loss
    def mine(tokens: Tokens, *, scale: float = 1.0) -> TokenLosses:
        return TokenLosses(loss_N=-scale * tokens.policy_logprobs(), metrics={})

    tokens = tokens_with(torch.tensor([-1.0]), entropy_N=torch.tensor([0.5]))
    loss = resolve_loss(LossRef(use="mine", settings={"scale": 2.0, "entropy_coef": 0.1}, function=mine))
    assert loss(tokens).total.item() == pytest.approx(2.0 - 0.05)
    with pytest.raises(ConfigError, match=r"no setting 'entropy_coeff'. Did you mean 'entropy_coef'"):
        resolve_loss(LossRef(use="mine", settings={"entropy_coeff": 0.1}, function=mine))


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        (LossRef(use="gsop"), r"no loss 'gsop'. Did you mean 'gspo'"),
        (LossRef(use="no_such_module_x:f"), r"'no_such_module_x:f': there is no module"),
        (LossRef(use="clip", settings={"clip_lo": 0.1}), r"no setting 'clip_lo'. Did you mean 'clip_low'"),
        (LossRef(use="gspo", settings={"dual_clip": 3.0}), r"the loss 'gspo' has no setting 'dual_clip'"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest(ref, message):  # pitfall 25
    with pytest.raises(ConfigError, match=message):
        resolve_loss(ref)


def test_missing_inputs_are_named():
    tokens = tokens_with(values_N=torch.zeros(1), columns={"advantage": [0.0]})
    with pytest.raises(ConfigError, match=r"column 'advantages'.*Did you mean 'advantage'"):
        tokens.column("advantages")
    with pytest.raises(ConfigError, match="value head"):
        sft(tokens)
    with pytest.raises(ConfigError, match="no value head"):
        value_clip(tokens_with(torch.zeros(1)))
    with pytest.raises(ConfigError, match="column 'ref_logprobs'"):
        resolve_loss(loss_ref(ClipLoss(), LossTerms(kl_coef=0.1)))(
            tokens_with(torch.zeros(1), columns={"advantages": [0.0]})
        )
