"""What the reward must keep to, on every row of data.jsonl. Run it with: pytest"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from reward import score

# Rows as they are in the file. Another file: change its name here and in recipe.yaml.
ROWS = [json.loads(line) for line in Path(__file__).with_name("data.jsonl").read_text(encoding="utf-8").splitlines()]


def judged(row, text):
    """The score of ``text`` as an attempt at ``row``. A reward that reads more than these two needs more here."""
    return score(SimpleNamespace(data=row), SimpleNamespace(text=text))


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_answer_scores_1(row):
    assert judged(row, row["answer"]) == 1.0


# What must score nothing. Add what a model might write to be paid for no work: "I don't know", the prompt again.
@pytest.mark.parametrize("junk", ["", " ", "?", "#" * 50])
def test_junk_scores_0(junk):
    assert [judged(row, junk) for row in ROWS] == [0.0] * len(ROWS)


def test_a_better_attempt_scores_more():
    row = max(ROWS, key=lambda row: len(row["answer"]))
    half = row["answer"][: len(row["answer"]) // 2]
    assert judged(row, "") < judged(row, half) < judged(row, row["answer"])
