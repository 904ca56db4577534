"""Preference pairs in data files: texts, answers as messages, whole conversations, and what is refused."""

import json

import pytest

from stretto.config.prompts import JsonlPrompts, PythonPrompts
from stretto.data.sources import load_prompts
from stretto.data.sources.columns import Columns, wanted_columns
from stretto.data.sources.rows import Draft, Row
from stretto.data.tokens import builtin_tokenizer
from stretto.errors import DataError
from stretto.types import Message

QUESTION, YES, NO = (
    {"role": role, "content": c} for role, c in (("user", "q"), ("assistant", "yes"), ("assistant", "no"))
)
TEXTS = {"chosen": "yes", "rejected": "no"}


def draft(columns: dict[str, object], **keys: object) -> Draft:
    config = JsonlPrompts(path="x", **keys)  # type: ignore[arg-type]
    return Columns(config=config).draft(Row(place="x, line 1", number="1", columns=columns))


def test_two_texts_need_no_answer():
    assert draft({"prompt": "q", "chosen": "yes", "rejected": "no"}) == Draft(uid="1", content="q", data=TEXTS)
    with_answer = draft({"prompt": "q", "chosen": "yes", "rejected": "no", "answer": 3})
    assert with_answer.data == {**TEXTS, "answer": 3}


def test_columns_of_other_names():
    made = draft({"prompt": "q", "two": {"good": "yes"}, "bad": "no"}, chosen="two.good", rejected="bad", data={})
    assert made.data == TEXTS
    assert wanted_columns(JsonlPrompts(path="x", chosen="a", rejected="b", data={"c": "d"})) == [
        "prompt", "answer", "data_source", "reward_model.ground_truth", "a", "b", "d",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "keys", "content"),
    [
        ({"prompt": "q", "chosen": [YES], "rejected": [NO]}, {}, "q"),
        ({"prompt": "q", "chosen": [QUESTION, YES], "rejected": [QUESTION, NO]}, {}, "q"),
        ({"prompt": [QUESTION], "chosen": [QUESTION, YES], "rejected": [NO]}, {}, (Message(**QUESTION),)),
        ({"chosen": [QUESTION, YES], "rejected": [QUESTION, NO]}, {}, (Message(**QUESTION),)),
        (
            {"prompt": "q", "chosen": [QUESTION, YES], "rejected": [QUESTION, NO]},
            {"chat": True, "system": "be brief"},
            (Message(role="system", content="be brief"), Message(**QUESTION)),
        ),
    ],
)
def test_answers_may_be_messages_or_whole_conversations(columns, keys, content):
    made = draft(columns, **keys)
    assert made.content == content
    assert {name: made.data[name] for name in TEXTS} == TEXTS


def test_what_is_no_pair_is_left_as_it_is():
    assert draft({"prompt": "q", "answer": "1", "chosen": [QUESTION]}).data == {"answer": "1", "chosen": [QUESTION]}
    assert draft({"prompt": "q", "chosen": 1, "rejected": 2}).data == {"chosen": 1, "rejected": 2}


@pytest.mark.parametrize(
    ("columns", "keys", "message"),
    [
        ({"prompt": "q", "chosen": "yes"}, {}, r"the key 'answer' \(prompts.answer\) is missing"),
        ({"prompt": "q", "bad": "no"}, {"rejected": "bad"}, r"the key 'chosen' \(prompts.chosen\) is missing"),
        (
            {"prompt": "p", "chosen": [QUESTION, YES], "rejected": [NO]},
            {},
            r"x, line 1, prompts.chosen: the messages before the answer .* are not those of the prompt",
        ),
        (
            {"chosen": [QUESTION, YES], "rejected": [{**QUESTION, "content": "p"}, NO]},
            {},
            "there is no prompt beside the two conversations, and they are not one prompt with two answers",
        ),
        ({"prompt": "q", "chosen": [QUESTION], "rejected": [NO]}, {}, "does not end with a message of the assistant"),
        ({"prompt": "q", "chosen": [{"role": "assistant"}], "rejected": [NO]}, {}, "It has role and content"),
    ],
)
def test_what_cannot_be_a_pair_is_named(columns, keys, message):
    with pytest.raises(DataError, match=message):
        draft(columns, **keys)


def test_files_and_objects_give_the_same(tmp_path):
    rows = [{"prompt": f"{i}", "chosen": "yes", "rejected": "no"} for i in range(3)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read = load_prompts(JsonlPrompts(path=str(tmp_path / "pairs.jsonl")), builtin_tokenizer())
    given = load_prompts(PythonPrompts(), builtin_tokenizer(), rows)
    assert [(p.text, dict(p.data)) for p in read] == [(p.text, dict(p.data)) for p in given]
    assert read[0].data == TEXTS
