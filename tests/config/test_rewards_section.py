"""The section ``reward``: one or several, settings, and messages that name the whole key."""

import pytest

from stretto.config.load import recipe_from_mapping
from stretto.config.overrides import apply_overrides
from stretto.errors import ConfigError


def recipe(reward, *overrides):
    return recipe_from_mapping({"steps": 1, "reward": reward}, overrides)


PARTS = {"parts": {"right": {"use": "math"}, "brief": {"use": "length", "weight": 0.1, "with": {"target": 3}}}}


def test_parts_and_settings_come_back_from_the_record():
    made = recipe(PARTS)
    assert made.reward.use is None
    assert made.reward.parts["brief"].settings == {"target": 3}
    assert recipe_from_mapping(made.model_dump(mode="json")).reward == made.reward
    changed, changes = apply_overrides(made, ["reward.parts.brief.weight=3"])
    assert changed.reward.parts["brief"].weight == 3
    assert [(c.key, c.old, c.new) for c in changes] == [("reward.parts.brief.weight", 0.1, 3.0)]


def test_overrides_reach_settings_and_parts():
    assert recipe({}, "reward.with.ignore_case=true").reward.settings == {"ignore_case": True}
    made = recipe(PARTS, "reward.parts.right.use=7", "reward.parts.right.with.k=true").reward.parts["right"]
    assert (made.use, made.settings) == ("7", {"k": True})


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"parts": {"a": {"use": "x", "wieght": 1}}}, r"reward\.parts\.a\.wieght is not .*'reward\.parts\.a\.weight'"),
        ({"parts": {"a": {"use": "x", "weight": "y"}}}, r"reward\.parts\.a\.weight=y cannot be used: .* a number"),
        ({"parts": {"a": 3}}, r"reward\.parts\.a=3 cannot be used: it must be a section"),
        ({"parts": {"a": {}}}, r"reward\.parts\.a\.use is missing"),
        ({"parts": {}}, r"no part with a weight other than 0"),
        ({"parts": {"a": {"use": "x", "weight": 0}}}, r"no part with a weight other than 0"),
        ({"use": "x", "parts": {"a": {"use": "x"}}}, r"both are set\. Keep exactly one"),
        ({"use": None}, r"neither is set"),
        ({"with": {"a": 1}, "parts": {"a": {"use": "x"}}}, r"reward\.with is set beside reward\.parts"),
        ({"with": [1]}, r"reward\.with=\[1\] cannot be used: it must be a mapping of names to values"),
    ],
)
def test_what_is_refused(reward, message):  # pitfall 25
    with pytest.raises(ConfigError, match=message):
        recipe(reward)
