"""What the reward must keep to, on every row that recipe.yaml reads. Run it with: pytest"""

from contextlib import chdir
from pathlib import Path
from types import SimpleNamespace

import pytest
from reward import score

from stretto.api import prompts_of

with chdir(Path(__file__).parent):  # where recipe.yaml looks for its files
    PROMPTS = prompts_of("recipe.yaml")  # as training reads them


def judged(prompt, text):
    """The score of ``text`` as an attempt at ``prompt``. A reward that reads more of an attempt needs more here."""
    return score(prompt, SimpleNamespace(text=text))


def answer(prompt):
    """What a model would have to write, as text."""
    return str(prompt.data["answer"])


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: f"row {prompt.uid}")
def test_the_answer_scores_1(prompt):
    assert judged(prompt, answer(prompt)) == 1.0


# What must score nothing. Add what a model might write to be paid for no work: "I don't know", the prompt again.
@pytest.mark.parametrize("junk", ["", " ", "?", "#" * 50])
def test_junk_scores_0(junk):
    assert [judged(prompt, junk) for prompt in PROMPTS] == [0.0] * len(PROMPTS)


def test_a_better_attempt_scores_more():
    prompt = max(PROMPTS, key=lambda prompt: len(answer(prompt)))
    whole = answer(prompt)
    if len(whole) < 2:
        pytest.skip("no answer is long enough for half of one to be an attempt")
    assert judged(prompt, "") < judged(prompt, whole[: len(whole) // 2]) < judged(prompt, whole)
