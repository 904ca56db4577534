"""Losses against golden vectors (value and gradient), hand-computed cases, and the messages of what is wrong."""

import math

import numpy as np
import pytest
import torch

from stretto.algorithms.advantages import kl_estimate
from stretto.algorithms.aggregation import aggregation_weights
from stretto.algorithms.losses import Tokens, kl_in_loss, policy_clip, resolve_loss, sft, value_clip, with_ess
from stretto.errors import ConfigError
from stretto.types import LossRef, merge_metrics


def tensor(x):
    return torch.tensor(np.asarray(x, np.float64))


def tokens_of(batch_of, inputs, aggregate, names, **given):
    """The written tokens of a golden case."""
    places = np.flatnonzero(np.asarray(inputs["mask"]).ravel())
    flat = {ours: tensor(inputs[theirs]).ravel()[places] for ours, theirs in names.items()}
    weights = aggregation_weights(batch_of(inputs["mask"]), aggregate).values
    n = len(places)
    return Tokens(
        weights_N=tensor(weights)[places],
        sampler_logprobs_N=torch.zeros(n),
        sampled_N=torch.zeros(n, dtype=torch.bool),
        columns=flat,
        **{name: value.ravel()[places] for name, value in given.items()},
    )


def test_policy_clip_matches_golden(golden, check, batch_of):
    for case in golden("policy_loss", "policy.clip", "policy.clip+k3"):
        inputs, params = case["inputs"], case["params"]
        logp = tensor(inputs["logp"]).requires_grad_()
        names = {"old_logprobs": "old_logp", "advantages": "advantages"}
        if "ref_logp" in inputs:
            names["ref_logprobs"] = "ref_logp"
        tokens = tokens_of(batch_of, inputs, params["agg"], names, logprobs_N=logp)
        out = policy_clip(
            tokens, clip_low=params["clip_low"], clip_high=params["clip_high"], kl_coef=params.get("kl_coef", 0.0)
        )
        out.total.backward()
        check(case, "loss", out.total.item())
        check(case, "grad", logp.grad)
        # the fractions of other aggregations are averaged row by row there; ours are always over tokens
        if "clip_frac" in case["expected"] and params["agg"] == "token_mean":
            check(case, "clip_frac", out.metrics["clip_low"].value + out.metrics["clip_high"].value)
            check(case, "approx_kl", out.metrics["approx_kl"].value)


def test_policy_clip_by_hand():
    logp = torch.tensor([2.0, math.log(1.5), math.log(0.5)], requires_grad=True)
    tokens = Tokens(
        weights_N=torch.ones(3),
        sampler_logprobs_N=torch.zeros(3),
        sampled_N=torch.ones(3, dtype=torch.bool),
        columns={"old_logprobs": torch.zeros(3), "advantages": torch.tensor([-1.0, 1.0, 1.0])},
        logprobs_N=logp,
    )
    out = policy_clip(tokens, clip_low=0.2, clip_high=0.28)
    out.total.backward()
    assert out.total.item() == pytest.approx(7.389056 - 1.28 - 0.5, rel=1e-5)
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([7.389056, 0, -0.5], rel=1e-5)
    assert out.metrics["clip_high"].value == pytest.approx(1 / 3)
    assert out.metrics["clip_low"].value == 0


def test_without_old_logprobs_the_ratio_is_one():
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    tokens = Tokens(
        weights_N=torch.full((2,), 0.5),
        sampler_logprobs_N=torch.tensor([-1.1, -2.0]),
        sampled_N=torch.tensor([True, False]),
        columns={"advantages": torch.tensor([2.0, -3.0])},
        logprobs_N=logp,
        entropy_N=torch.tensor([0.5, 0.7], requires_grad=True),
    )
    out = policy_clip(tokens)
    out.total.backward()
    assert out.total.item() == pytest.approx(0.5 * (-2 + 3))
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-1.0, 1.5])
    # the gap to the sampler is over sampled tokens only
    assert out.metrics["sampler_gap"].value == pytest.approx(0.1)
    assert out.metrics["sampler_gap"].count == 1
    assert out.metrics["entropy"].value == pytest.approx(0.6)


def test_entropy_bonus_lowers_the_loss():
    entropy = torch.tensor([0.5, 0.7], requires_grad=True)
    tokens = Tokens(
        weights_N=torch.full((2,), 0.5),
        sampler_logprobs_N=torch.zeros(2),
        sampled_N=torch.zeros(2, dtype=torch.bool),
        columns={"advantages": torch.zeros(2)},
        logprobs_N=torch.zeros(2, requires_grad=True),
        entropy_N=entropy,
    )
    out = policy_clip(tokens, entropy_coef=0.1)
    out.total.backward()
    assert out.total.item() == pytest.approx(-0.06)
    assert entropy.grad is not None
    assert entropy.grad.tolist() == pytest.approx([-0.05, -0.05])


def test_value_clip_matches_golden(golden, check, batch_of):
    for case in golden("value_loss", "value.clip", "value.mse"):
        inputs, params = case["inputs"], case["params"]
        values = tensor(inputs["values"]).requires_grad_()
        names = {"returns": "returns"}
        if case["variant"] == "value.clip":
            names["old_values"] = "old_values"
        tokens = tokens_of(batch_of, inputs, params["agg"], names, values_N=values)
        out = value_clip(tokens, value_clip=params.get("clip", 0.2))
        out.total.backward()
        check(case, "loss", out.total.item())
        check(case, "grad", values.grad)
        if "clip_frac" in case["expected"]:
            check(case, "clip_frac", out.metrics["clip"].value)


def test_kl_in_loss_matches_golden_gradients(golden, check):
    for case in golden("kl", "kl.k1", "kl.k2", "kl.k3"):
        logp = tensor(case["inputs"]["logp"]).requires_grad_()
        kl = kl_in_loss(logp, tensor(case["inputs"]["ref_logp"]), case["variant"].removeprefix("kl."))
        kl.sum().backward()
        check(case, "kl", kl.detach())
        check(case, "grad", logp.grad)


def test_which_kl_each_estimator_pulls_on():
    """Expectations over a whole vocabulary, so no sampling noise: see ``kl_in_loss`` and ``kl_estimate``."""
    logits = torch.linspace(-1, 2, 6, dtype=torch.float64).requires_grad_()
    logp = logits.log_softmax(0)
    ref = torch.tensor([0.3, 0.05, 0.2, 0.25, 0.1, 0.1], dtype=torch.float64).log()
    sampled = logp.detach().exp()

    def gradient(value):
        return torch.autograd.grad(value, logits, retain_graph=True)[0]

    reverse, forward = gradient((logp.exp() * (logp - ref)).sum()), gradient((ref.exp() * (ref - logp)).sum())
    in_loss = {kind: gradient((sampled * kl_in_loss(logp, ref, kind)).sum()) for kind in ("k1", "k2", "k3")}
    torch.testing.assert_close(in_loss["k1"], torch.zeros(6, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(in_loss["k2"], reverse)
    torch.testing.assert_close(in_loss["k3"], forward)
    penalty = torch.from_numpy(kl_estimate(logp.detach().numpy(), ref.numpy(), "k1"))
    torch.testing.assert_close(gradient((sampled * penalty * logp).sum()), reverse)


def test_ess_of_equal_ratios_is_one_and_is_taken_over_all_micro_batches():
    def part(gaps):
        n = len(gaps)
        return sft(
            Tokens(
                weights_N=torch.ones(n),
                sampler_logprobs_N=-torch.tensor(gaps),
                sampled_N=torch.ones(n, dtype=torch.bool),
                logprobs_N=torch.zeros(n),
            )
        ).metrics

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
    tokens = Tokens(
        weights_N=torch.ones(2),
        sampler_logprobs_N=torch.zeros(2),
        sampled_N=torch.zeros(2, dtype=torch.bool),
        logprobs_N=torch.tensor([1.0, 2.0]),
    )
    assert loss(tokens).total.item() == 6.0
    with pytest.raises(ConfigError, match=r"has no 'mone'. Did you mean 'mine'"):
        resolve_loss(LossRef(use="my_stretto_losses:mone"))


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        (LossRef(use="policy_clp"), r"no loss 'policy_clp'. Did you mean 'policy_clip'"),
        (LossRef(use="no_such_module_x:f"), r"'no_such_module_x:f': there is no module"),
        (LossRef(use="policy_clip", settings={"clip_lo": 0.1}), r"no setting 'clip_lo'. Did you mean 'clip_low'"),
    ],
)
def test_wrong_names_are_answered_with_the_nearest(ref, message):  # pitfall 25
    with pytest.raises(ConfigError, match=message):
        resolve_loss(ref)


def test_missing_inputs_are_named():
    tokens = Tokens(
        weights_N=torch.ones(1),
        sampler_logprobs_N=torch.zeros(1),
        sampled_N=torch.zeros(1, dtype=torch.bool),
        columns={"advantage": torch.zeros(1)},
    )
    with pytest.raises(ConfigError, match=r"column 'advantages'.*Did you mean 'advantage'"):
        tokens.column("advantages")
    with pytest.raises(ConfigError, match="value head"):
        sft(tokens)
    with pytest.raises(ConfigError, match="no value head"):
        value_clip(tokens)
