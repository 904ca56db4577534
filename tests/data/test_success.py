"""Prompts by recent success: what is preferred, what it depends on, and that it goes on from its state."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.config.orders import SuccessOrder
from stretto.data.order import DrawOrder
from stretto.data.seeds import choice_seed
from stretto.data.success import SuccessDraws


def draws_of(n: int, **changes: object) -> SuccessDraws:
    return SuccessDraws(DrawOrder(n, 7), SuccessOrder(**changes), lambda draw: choice_seed(3, "train", draw))


@given(st.integers(1, 30))
def test_the_first_pass_is_the_shuffled_one(n):
    draws, shuffled = draws_of(n), DrawOrder(n, 7)
    assert [draws.item(d) for d in range(n)] == [shuffled.item(d) for d in range(n)]


@pytest.mark.parametrize(
    ("target", "floor", "weights"),
    [
        (0.5, 0.1, {0.0: 0.1, 0.25: 0.1 + 0.9 * 0.5, 0.5: 1.0, 1.0: 0.1, None: 1.0}),
        (0.8, 0.2, {0.0: 0.2, 0.4: 0.2 + 0.8 * 0.5, 0.8: 1.0, 1.0: 0.2 + 0.8 * 0.75, None: 1.0}),
    ],
)
def test_prompts_are_drawn_in_proportion_to_their_nearness_to_the_target(target, floor, weights):
    draws = draws_of(5, target=target, floor=floor)
    rate_of = {draws.item(d): rate for d, rate in enumerate(weights)}
    draws.saw(dict(enumerate(weights)))
    counts: Counter[float | None] = Counter()
    for d in range(5, 20_005):
        counts[rate_of[draws.item(d)]] += 1
        draws.saw({d: None})
    for rate, weight in weights.items():
        assert counts[rate] / 20_000 == pytest.approx(weight / sum(weights.values()), abs=0.012), rate


def test_the_average_leans_to_the_newest_group():
    draws = draws_of(1, newest=0.25)
    for d, rate in enumerate((1.0, 0.0, 0.0)):
        draws.item(d)
        draws.saw({d: rate})
    assert draws.state()["rates"] == {"0": 1.0 * 0.75 * 0.75}


@given(st.integers(1, 12), st.integers(1, 40), st.booleans())
def test_no_prompt_is_drawn_again_while_another_is_not_under_way(n, count, first_pass):
    draws = draws_of(n, first_pass=first_pass)
    counts = Counter(draws.item(d) for d in range(count))
    assert max(counts.values()) - min(counts.get(item, 0) for item in range(n)) <= 1


@settings(max_examples=100)
@given(
    n=st.integers(1, 12),
    wave=st.integers(1, 6),
    waves=st.integers(1, 8),
    stop=st.integers(0, 8),
    seed=st.integers(0, 10**6),
    first_pass=st.booleans(),
)
def test_the_choice_depends_on_the_steps_taken_alone_and_goes_on_from_its_state(n, wave, waves, stop, seed, first_pass):
    """Told in any order what came of a step, and stopped before any wave is told: the same prompts."""

    def run(shuffle: random.Random | None) -> tuple[list[list[int]], dict[str, object]]:
        rates = random.Random(seed)
        draws, drawn = draws_of(n, first_pass=first_pass), []
        for step in range(waves):
            numbers = list(range(step * wave, (step + 1) * wave))
            drawn.append([draws.item(d) for d in numbers])
            if shuffle is not None and step == stop:
                again = draws_of(n, first_pass=first_pass)
                again.restore(json.loads(json.dumps(draws.state())))
                draws = again
            told = [(d, rates.choice([0.0, 0.3, 0.5, 1.0, None])) for d in numbers]
            if shuffle is not None:
                shuffle.shuffle(told)
            assert [draws.item(d) for d in numbers] == drawn[-1]
            draws.saw(dict(told))
        return drawn, draws.state()

    assert run(random.Random(seed + 1)) == run(None)


def test_the_state_of_another_order_and_draws_it_made_are_no_hindrance():
    draws = draws_of(4)
    draws.restore({})
    draws.saw({17: 0.5})
    assert draws.state() == {"under_way": {}, "rates": {}}
