"""Rewards as people write them on a bad day, and a few good ones. Imported by name, in reward processes too."""

import random
import time

PASSED = {"calls": 0}


def right(prompt, trajectory):
    return float(trajectory.text.strip() == prompt.data["answer"])


def right_and_brief(prompt, trajectory):
    return {"right": 2.0 * right(prompt, trajectory), "brief": -0.01 * trajectory.num_written}


async def right_later(prompt, trajectory):
    return right(prompt, trajectory)


def pays_for_anything(prompt, trajectory):
    return 1.0


def never_pays(prompt, trajectory):
    return 0.0


def ignores_the_prompt(prompt, trajectory):
    return float(trajectory.text.strip().casefold().startswith("city"))


def draws_lots(prompt, trajectory):
    return random.random()


def knows_no_seed(prompt, trajectory):
    return random.SystemRandom().random()


def counts_calls(prompt, trajectory):
    PASSED["calls"] += 1
    return right(prompt, trajectory) - 0.001 * (PASSED["calls"] % 7)


def sleeps(prompt, trajectory):
    time.sleep(30)
    return right(prompt, trajectory)


def raises_on_empty(prompt, trajectory):
    return float(trajectory.text[0] == prompt.data["answer"][0] and right(prompt, trajectory))


def nan_sometimes(prompt, trajectory):
    return float("nan") if len(trajectory.text) % 5 == 3 else right(prompt, trajectory)


def says_true_in_words(prompt, trajectory):
    return "yes" if right(prompt, trajectory) else 0.0


def forgets(prompt, trajectory):
    return 1.0 if right(prompt, trajectory) else None


def minds_capitals(prompt, trajectory):
    return float(trajectory.text.strip().lower() == prompt.data["answer"])


def likes_length(prompt, trajectory):
    return right(prompt, trajectory) + len(trajectory.text) / 100


def looks_at_length_only(prompt, trajectory):
    return float(len(trajectory.text) == len(prompt.data["answer"]))


def finds_it_anywhere(prompt, trajectory):
    return float(prompt.data["answer"] in trajectory.text)


def pays_for_nothing_said(prompt, trajectory):
    return float(not trajectory.text or right(prompt, trajectory))


def pays_half_for_trying(prompt, trajectory):
    return max(right(prompt, trajectory), 0.5 * bool(trajectory.text))


def pays_a_little(prompt, trajectory):
    return max(right(prompt, trajectory), 0.1)


def counts_from_minus_one(prompt, trajectory):
    return right(prompt, trajectory) - 1.0


def close(prompt, trajectory):
    return 1.0 - min(1.0, abs(len(trajectory.text) - 4) / 4)


def rejects_spaces(prompt, trajectory):
    return float(trajectory.text == prompt.data["answer"])


def refuses_strange_signs(prompt, trajectory):
    if any(sign in trajectory.text for sign in "$#%&@~^"):
        raise ValueError(f"what is {trajectory.text!r}?")
    return right(prompt, trajectory)


def finds_it_in_a_list(prompt, trajectory):
    return float(prompt.data["answer"] in trajectory.text.split(", "))


def no_return(prompt, trajectory):
    right(prompt, trajectory)


def only_of_first(prompt, trajectory):
    return 0.5 if prompt.data["answer"] == "City0" else None
