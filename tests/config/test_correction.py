"""The section of off-policy correction: its defaults, and what it refuses. PITFALL 17 for every algorithm."""

import typing

import pytest
from pydantic import ValidationError

from stretto.config.algorithms import Algorithm
from stretto.config.algorithms.correction import KL_CRITERIA, CorrectionConfig
from stretto.config.load import recipe_from_mapping
from stretto.errors import ConfigError

WITHOUT_SAMPLES = {"sft", "dpo", "reward-model"}
"""The algorithms that train on nothing they sampled."""


def algorithm_types() -> list[str]:
    (union, *_) = typing.get_args(Algorithm)
    return [section.model_fields["type"].default for section in typing.get_args(union)]


@pytest.mark.parametrize("type_", algorithm_types())
@pytest.mark.parametrize("cut", [{"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_a_cut_distribution_is_refused_wherever_ratios_are_taken(type_, cut):  # pitfall 17
    mapping = {"steps": 1, "algorithm": {"type": type_}, "sampling": cut, "teacher": {"path": "t"}}
    if type_ in WITHOUT_SAMPLES:
        assert recipe_from_mapping(mapping).algorithm.type == type_
        return
    with pytest.raises(ConfigError, match="the trainer's log-probs are over the whole vocabulary"):
        recipe_from_mapping(mapping)


def test_defaults_do_nothing_and_vetted_bounds_come_with_the_mode():
    assert not CorrectionConfig().acts
    assert CorrectionConfig(weights="token").bounds == (0, 2)
    assert CorrectionConfig(weights="token", mode="icepop").bounds == (0.5, 5)
    assert CorrectionConfig(weights="sequence", lower=0.1, upper=4).bounds == (0.1, 4)
    assert CorrectionConfig(weights="token").acts


@pytest.mark.parametrize("criterion", ["token", "sequence", "geometric", "outlier", "negative"])
def test_a_criterion_acts_with_its_own_defaults(criterion):
    assert CorrectionConfig(reject={criterion: {}}).acts


@pytest.mark.parametrize("criterion", KL_CRITERIA)
def test_every_estimate_that_is_listed_is_known(criterion):
    assert CorrectionConfig(reject={"kl": {criterion: 0.1}}).acts


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"upper": 3}, "algorithm.correction.upper=3.0 is about weights, and weights=none makes none."),
        ({"lower": 0}, "algorithm.correction.lower=0.0 is about weights"),
        ({"mode": "icepop"}, "Set algorithm.correction.weights=token, or leave mode out."),
        ({"normalize": True}, "algorithm.correction.normalize=true is about weights"),
        ({"weights": "token", "upper": 0.5}, "greater than or equal to 1"),  # 1 is on-policy, and must stay 1
        ({"weights": "token", "lower": 1.5}, "less than or equal to 1"),
        ({"reject": {"token": {"lower": 2}}}, "less than or equal to 1"),
        ({"reject": {"kl": {"token_k4": 1}}}, "reject.kl.token_k4=1.0 is not known. Did you mean 'token_k3'?"),
        ({"reject": {"kl": {"seq_sum_k1": 1}}}, "k1 is the log-ratio itself, which reject.token"),
        ({"reject": {"kl": {"token_k2": 0}}}, "reject.kl.token_k2=0.0 would leave nothing."),
        ({"reject": {"negative": {"delta": 0}}}, "greater than 0"),
        ({"log_ratio_clamp": 0}, "greater than 0"),
    ],
)
def test_what_would_not_be_read_or_cannot_be_is_refused(given, words):
    with pytest.raises(ValidationError) as caught:
        CorrectionConfig(**given)
    assert words in str(caught.value)
