"""Settings of policy losses: each is a loss of that name with those settings and defaults; wrong ones are refused."""

import inspect
from typing import get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from stretto.algorithms.covariance import draw_in_range, select_top
from stretto.algorithms.losses import LOSSES, resolve_loss
from stretto.config.algorithms import LossTerms, PolicyLoss, check_aggregation, loss_ref

MODELS = get_args(get_args(PolicyLoss)[0])


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_a_loss_with_the_same_settings_and_defaults(model):
    loss = TypeAdapter(PolicyLoss).validate_python({"type": model.model_fields["type"].default})
    ref = loss_ref(loss)
    resolve_loss(ref)
    parameters = inspect.signature(LOSSES[ref.use]).parameters.values()
    assert ref.settings == {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    elsewhere = loss.model_dump(exclude={"type", *ref.settings}).keys()
    chosen_by = {*inspect.signature(select_top).parameters, *inspect.signature(draw_in_range).parameters}
    assert elsewhere <= chosen_by


OTHERS = {"sft", "value_clip", "dpo", "bradley_terry", "distill"}
"""The losses that are not of a policy with advantages."""


def test_every_policy_loss_has_its_model():
    assert {model.model_fields["type"].default for model in MODELS} == LOSSES.keys() - OTHERS


def test_terms_are_among_the_settings():
    ref = loss_ref(TypeAdapter(PolicyLoss).validate_python({"type": "gpg"}), LossTerms(kl_coef=0.2, kl_kind="k2"))
    assert (ref.settings["kl_coef"], ref.settings["kl_kind"]) == (0.2, "k2")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "clip", "ratio_max": 1.1}, r"ratio_max=1.1 must be above 1 \+ clip_high = 1.2"),
        ({"type": "gpg", "clip_low": 0.1}, "Extra inputs are not permitted"),
        ({"type": "gmpo", "log_clip_low": 0.0}, "greater than 0"),
    ],
)
def test_what_a_loss_does_not_read_or_allow_is_refused(settings, message):  # pitfall 25, 35
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(PolicyLoss).validate_python(settings)


@pytest.mark.parametrize(
    ("aggregate", "norm", "empty_rows", "message"),
    [
        ("token_sum_norm", None, "exclude", "Set norm"),
        ("prompt_mean", 8.0, "exclude", "norm=8.0 is not read by aggregate=prompt_mean"),
        ("token_sum_norm", 8.0, "include", "empty_rows=include is not read"),
    ],
)
def test_aggregations_say_what_they_need(aggregate, norm, empty_rows, message):
    with pytest.raises(ValueError, match=message):
        check_aggregation(aggregate, norm, empty_rows)
    check_aggregation("seq_mean_token_sum_norm", 8.0, "include")
