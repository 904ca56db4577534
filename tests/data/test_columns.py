"""From columns to prompts: mapping, templates, chat, answers in solutions, verl's layout, slices and lengths."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stretto.config.prompts import AdditionPrompts, GymPrompts, JsonlPrompts, PythonPrompts
from stretto.data.sources import load_prompts, read_prompts
from stretto.data.sources.chat import as_chat, messages_of
from stretto.data.sources.columns import Columns
from stretto.data.sources.rows import Draft, Row
from stretto.data.tokens import builtin_tokenizer
from stretto.errors import DataError
from stretto.types import Message, Prompt

TOKENIZER = builtin_tokenizer()

VERL = {
    "data_source": "my/arithmetic",
    "prompt": [{"role": "user", "content": "2+2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 0},
}


def draft(columns: dict[str, object], **keys: object) -> Draft:
    config = JsonlPrompts(path="x", **keys)  # type: ignore[arg-type]
    return Columns(config=config).draft(Row(place="x, line 1", number="1", columns=columns))


def python(items: object, **keys: object) -> list[Prompt]:
    return load_prompts(PythonPrompts(**keys), TOKENIZER, items)  # type: ignore[arg-type]


def test_dotted_columns_and_chosen_data():
    row = {"q": {"text": "1+1="}, "a": {"b": {"c": 2}}, "level": 3, "id": 9, "image": b"\x00"}
    made = draft(row, prompt="q.text", answer="a.b.c", uid="id", data={"grade": "level", "b": "a.b"})
    assert made == Draft(uid="9", content="1+1=", data={"grade": 3, "b": {"c": 2}, "answer": 2})
    assert draft({"a.b": "x", "answer": 1}, prompt="a.b").content == "x"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"answer": "a.c"},
            r"line 1: the key 'c' \(prompts.answer=a.c\) is missing inside 'a'.* Set prompts.answer, or",
        ),
        ({"answer": "prompt.c"}, "prompts.answer=prompt.c looks inside 'prompt', which has no keys here"),
        ({"template": "{promt}"}, r"the key 'promt' \(prompts.template\) is missing. Did you mean 'prompt'"),
        ({"template": "{a}"}, r"the column 'a' \(prompts.template\) is \{\"b\": 1\}"),
        ({"data": {"x": "lvel"}}, r"the key 'lvel' \(prompts.data.x\) is missing"),
        ({"answer_pattern": "#### (.*)"}, 'line 1: prompts.answer_pattern=#### .* finds no answer in "five"'),
        ({"system": "be brief"}, "the prompt is text, and prompts.system is a chat message"),
    ],
)
def test_columns_that_are_not_there(keys: dict[str, object], message: str):  # pitfall 35
    with pytest.raises(DataError, match=message):
        draft({"prompt": "hello", "answer": "five", "a": {"b": 1}}, **keys)


def test_templates_answers_and_chat():
    row = {"question": "How many?", "n": 3, "answer": "so #### 1\nno: #### 2 "}
    made = draft(row, template="{{Q}} {question} ({n})\nA:", answer_pattern="#### (.*)", chat=True, system="Count.")
    assert made.content == (
        Message(role="system", content="Count."),
        Message(role="user", content="{Q} How many? (3)\nA:"),
    )
    assert made.data == {"question": "How many?", "n": 3, "answer": "2"}


def test_chats_keep_their_own_system_message_and_join_parts_of_text():
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]
    turns = messages_of("row", [{"role": "user", "content": parts, "name": None}])
    assert turns == (Message(role="user", content="1+1?"),)
    own = (Message(role="system", content="mine"), *turns)
    assert as_chat("row", own, chat=True, system="other") == own
    with pytest.raises(DataError, match=r"row: a part of a message is .*images and other media are not"):
        messages_of("row", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}])


def test_verl_rows_are_read_as_they_are():
    made = draft(dict(VERL))
    assert made.content == (Message(role="user", content="2+2?"),)
    assert made.data["answer"] == "4"
    assert (made.data["data_source"], made.data["extra_info"]) == ("my/arithmetic", VERL["extra_info"])
    with pytest.raises(DataError, match="no chat template"):
        python([VERL])


def test_objects_have_columns_too():
    rows = [{"q": "a", "a": np.int64(1), "uid": "x"}, {"q": "b", "a": 2}]
    first, second = python(rows, prompt="q", answer="a")
    assert (first.uid, first.text, first.data, second.uid) == ("x", "a", {"a": 1, "answer": 1}, "1")


@settings(max_examples=60)
@given(
    st.integers(1, 12),
    st.none() | st.integers(-14, 14),
    st.none() | st.integers(-14, 14),
    st.none() | st.integers(1, 4),
)
def test_a_slice_takes_what_python_takes(rows: int, start: int | None, stop: int | None, step: int | None):
    text = ":".join("" if bound is None else str(bound) for bound in (start, stop, step))
    wanted = [str(i) for i in range(rows)][slice(start, stop, step)]
    items = [f"p{i}" for i in range(rows)]
    if wanted:
        assert [p.uid for p in python(items, slice=text)] == wanted
    else:
        with pytest.raises(DataError, match="takes none of the rows of the given prompts"):
            python(items, slice=text)


def test_a_slice_of_every_source_and_an_empty_one(tmp_path: Path):  # pitfall 35
    assert [p.uid for p in load_prompts(AdditionPrompts(max=3, slice="4:6"), TOKENIZER)] == ["1+0", "1+1"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i}", "answer": i}) + "\n" for i in range(3)) + "not JSON\n")
    assert [p.uid for p in load_prompts(JsonlPrompts(path=str(path), slice="1:3"), TOKENIZER)] == ["2", "3"]
    with pytest.raises(DataError, match=r"prompts.slice=9: takes none of the rows of .*, which has 4\. Take another"):
        load_prompts(JsonlPrompts(path=str(path), slice="9:"), TOKENIZER)


def test_several_files_keep_their_uids(tmp_path: Path):
    for name in ("b.jsonl", "a.jsonl"):
        (tmp_path / name).write_text(json.dumps({"prompt": name[0], "answer": 1}) + "\n")
    found = load_prompts(JsonlPrompts(path=str(tmp_path / "*.jsonl")), TOKENIZER)
    assert [(p.uid, p.text) for p in found] == [("a.jsonl:1", "a"), ("b.jsonl:1", "b")]
    listed = load_prompts(JsonlPrompts(path=[str(tmp_path / "b.jsonl"), str(tmp_path / "a.jsonl")]), TOKENIZER)
    assert [p.uid for p in listed] == ["b.jsonl:1", "a.jsonl:1"]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.jsonl").write_text(json.dumps({"prompt": "c", "answer": 1}) + "\n")
    deep = load_prompts(JsonlPrompts(path=str(tmp_path / "**" / "a.jsonl")), TOKENIZER)
    assert sorted(p.uid for p in deep) == ["a.jsonl:1", "sub/a.jsonl:1"]
    with pytest.raises(DataError, match=r"no file matches prompts.path=.*\*\.json "):
        load_prompts(JsonlPrompts(path=str(tmp_path / "*.json")), TOKENIZER)
    with pytest.raises(DataError, match=r"does not exist .* Did you mean 'a.jsonl'"):
        load_prompts(JsonlPrompts(path=str(tmp_path / "a.jsnl")), TOKENIZER)
    with pytest.raises(DataError, match=r"no built-in sample. Did you mean 'gsm-style.jsonl'"):
        load_prompts(JsonlPrompts(path="builtin:gsm-stile.jsonl"), TOKENIZER)


def test_the_sample_of_problems_is_whole():
    config = JsonlPrompts(path="builtin:gsm-style.jsonl", template="{question} ", answer_pattern=r"#### (\d+)$")
    prompts = load_prompts(config, TOKENIZER)
    assert len(prompts) == 10
    assert all(str(p.data["answer"]).isdigit() for p in prompts)


def test_too_long_is_counted():  # pitfall 26
    items = ["1+1=", "1" * 30, "2" * 20]
    with pytest.raises(DataError, match=r"item 1: the prompt has 31 tokens .* set prompts.too_long=skip or truncate"):
        python(items, max_prompt_tokens=10)
    skipped = read_prompts(PythonPrompts(max_prompt_tokens=10, too_long="skip"), TOKENIZER, items)
    assert (skipped.read, skipped.skipped, skipped.truncated, len(skipped.prompts)) == (3, 2, 0, 1)
    cut = read_prompts(PythonPrompts(max_prompt_tokens=10, too_long="truncate"), TOKENIZER, [*items, "3" * 20 + "456="])
    assert (cut.read, cut.skipped, cut.truncated) == (4, 0, 3)
    assert cut.prompts[3].text == "33333456="
    assert cut.prompts[3].token_ids.tolist() == TOKENIZER.encode_prompt("33333456=").tolist()
    with pytest.raises(DataError, match=r"all 2 prompts .* were skipped .* the shortest has 21 tokens"):
        python(items[1:], max_prompt_tokens=10, too_long="skip")


def test_chat_is_never_cut():  # pitfall 26
    ids = np.arange(4, 20, dtype=np.int32)
    chat = Prompt(uid="c", text="t", token_ids=ids, messages=(Message(role="user", content="t"),))
    with pytest.raises(DataError, match=r"would break the template of chat messages. Set prompts.too_long=skip"):
        python([chat], max_prompt_tokens=10, too_long="truncate")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"slice": "5"}, "prompts.slice=5 is no slice"),
        ({"slice": "1:9:-1"}, "prompts.slice=1:9:-1 is no slice"),
        ({"template": "{"}, "is no template"),
        ({"template": "{}"}, "a place for a column holds its name"),
        ({"template": "{a:>3}"}, "a place for a column holds its name"),
        ({"template": "Q:"}, "names no column"),
        ({"template": "{a}", "prompt": "b"}, "both make the prompt"),
        ({"template": "{a}", "system": "s"}, "makes plain text"),
        ({"answer_pattern": "("}, "is no regular expression"),
        ({"answer_pattern": "(a)(b)"}, "has 2 groups"),
        ({"answer_pattern": "(a)", "answer": None}, "which is null"),
        ({"data": {"answer": "x"}}, "both give"),
        ({"chat": True, "too_long": "truncate"}, "would break|cut would break"),
        ({"path": []}, "must be a file, a list of files"),
    ],
)
def test_keys_that_cannot_work(keys: dict[str, object], message: str):  # pitfall 35
    with pytest.raises(ValidationError, match=message):
        JsonlPrompts(**{"path": "x", **keys})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "neither is set"),
        ({"task": "a", "tasks": {"b": {}}}, "both are set"),
        ({"tasks": {}}, "must be a mapping of task names"),
        ({"tasks": {"a": 1}}, "prompts.tasks.a=1 must be a mapping"),
        ({"tasks": {"a": {"wieght": 1}}}, "prompts.tasks.a.wieght is not known. Did you mean 'weight'"),
        ({"tasks": {"a": {"weight": 0}}}, "prompts.tasks.a.weight=0 must be a number above 0"),
        ({"tasks": {"a": {"with": 3}}}, "prompts.tasks.a.with=3 must be a mapping"),
        ({"task": "a", "system": "s"}, "Set prompts.chat=true"),
    ],
)
def test_mixtures_that_cannot_work(keys: dict[str, object], message: str):  # pitfall 35
    with pytest.raises(ValidationError, match=message):
        GymPrompts(**keys)  # type: ignore[arg-type]
