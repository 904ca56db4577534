"""Prompt sources: what each gives, and the sentence with which each fault is refused."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stretto.config.prompts import AdditionPrompts, JsonlPrompts, PythonPrompts
from stretto.data.sources import load_prompts, read_prompts
from stretto.data.tokens import builtin_tokenizer
from stretto.errors import ConfigError, DataError
from stretto.types import Prompt

TOKENIZER = builtin_tokenizer()


def jsonl(folder: Path, *lines: object, raw: bytes | None = None, **settings: object) -> list[Prompt]:
    path = folder / "data.jsonl"
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_bytes(text.encode() if raw is None else raw)
    return load_prompts(JsonlPrompts(path=str(path), **settings), TOKENIZER)  # type: ignore[arg-type]


def python(given: object, **settings: int) -> list[Prompt]:
    return load_prompts(PythonPrompts(**settings), TOKENIZER, given)  # type: ignore[arg-type]


def test_addition_has_every_pair_once():
    prompts = load_prompts(AdditionPrompts(max=12), TOKENIZER)
    assert len(prompts) == 13 * 13
    assert len({p.uid for p in prompts}) == 13 * 13
    one = next(p for p in prompts if p.uid == "7+12")
    assert one.text == "7+12="
    assert one.data == {"answer": "19"}
    assert one.token_ids.tolist() == TOKENIZER.encode_prompt("7+12=").tolist()


def test_jsonl_keeps_what_judges_and_numbers_lines(tmp_path: Path):
    rows = [{"prompt": "1+1=", "answer": "2", "level": 1}, "", {"prompt": "2+2=", "answer": {"value": 4}}]
    first, second = jsonl(tmp_path, *rows)
    assert (first.uid, first.text, first.data) == ("1", "1+1=", {"level": 1, "answer": "2"})
    assert (second.uid, second.data) == ("3", {"answer": {"value": 4}})


def test_jsonl_keys_can_be_named(tmp_path: Path):
    rows = [{"q": "a", "target": 1, "id": 17}, {"q": "b", "target": 2, "id": "x"}]
    first, second = jsonl(tmp_path, *rows, prompt="q", answer="target", uid="id")
    assert (first.uid, first.text, first.data) == ("17", "a", {"target": 1, "answer": 1, "id": 17})
    assert second.uid == "x"
    (bare,) = jsonl(tmp_path, {"prompt": "a"}, answer=None)
    assert bare.data == {}


def test_jsonl_with_a_byte_order_mark_and_windows_lines(tmp_path: Path):
    prompts = jsonl(tmp_path, raw=b'\xef\xbb\xbf{"prompt": "a", "answer": "b"}\r\n{"prompt": "c", "answer": "d"}')
    assert [p.text for p in prompts] == ["a", "c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", r"data\.jsonl, line 2: this is not JSON"),
        ('{"prompt": "a", "answer": NaN}', r"line 2: this is not JSON \(NaN is no JSON number\)"),
        ("[" * 100_000, "line 2: this is not JSON"),
        ("[1]", "line 2: a JSON list came where an object belongs"),
        ('{"promt": "a", "answer": "b"}', r"line 2: the key 'prompt' \(prompts\.prompt\).*Did you mean 'promt'"),
        ('{"prompt": "a"}', r"line 2: the key 'answer' \(prompts\.answer\) is missing.*or prompts\.answer=null"),
        ('{"prompt": 3, "answer": "b"}', "line 2: the prompt is 3. A prompt is a string or a list of messages"),
        ('{"prompt": [], "answer": "b"}', r"line 2: the prompt is \[\]"),
        ('{"prompt": [{"role": "user"}], "answer": "b"}', "line 2: a message is .*It has role and content"),
        ('{"prompt": [{"role": 1, "content": "x"}], "answer": "b"}', "Its role and content are strings"),
        ('{"prompt": [{"role": "user", "content": "x"}], "answer": "b"}', "line 2: the tokenizer .*no chat template"),
        ('{"prompt": "aaaaaaaaaaaaaaaaaaaa", "answer": "b"}', "line 2: the prompt has 21 tokens and .* is 16"),
        ('{"prompt": "\\ud800", "answer": "b"}', "line 2: the text .* has the character"),
        ('{"prompt": "1\u65e5=", "answer": "b"}', "line 2: the text .* has the character"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str):  # pitfall 35, pitfall 26
    with pytest.raises(DataError, match=message):
        jsonl(tmp_path, {"prompt": "ok", "answer": "1"}, line, max_prompt_tokens=16)


def test_faults_of_a_file(tmp_path: Path):  # pitfall 35
    with pytest.raises(DataError, match=r"none\.jsonl does not exist \(looked in"):
        load_prompts(JsonlPrompts(path="none.jsonl"), TOKENIZER)
    with pytest.raises(DataError, match="is a folder, not a file"):
        load_prompts(JsonlPrompts(path=str(tmp_path)), TOKENIZER)
    with pytest.raises(DataError, match=r"data\.jsonl \(prompts\.path\) has no prompts"):
        jsonl(tmp_path, "", "  ")
    with pytest.raises(DataError, match=r"line 1: this is not JSON .*UTF-8"):
        jsonl(tmp_path, raw=b"\xff\xfe{}")
    with pytest.raises(DataError, match=r"line 2: the uid 'x' is that of .*line 1 too"):
        jsonl(tmp_path, {"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}, answer=None, uid="id")
    with pytest.raises(DataError, match="the uid is a float"):
        jsonl(tmp_path, {"prompt": "a", "id": 1.5}, answer=None, uid="id")
    with pytest.raises(DataError, match=r"the key 'id' \(prompts\.uid\) is missing"):
        jsonl(tmp_path, {"prompt": "a"}, answer=None, uid="id")


def test_python_items_of_every_kind():
    whole = Prompt(uid="mine", text="abc", token_ids=np.array([5, 6], np.int32), data={"k": 1})
    bare = Prompt(uid="bare", text="abc", token_ids=np.zeros(0, np.int32))
    row = {"prompt": "1+1=", "answer": np.int64(2), "tags": ("a", "b"), "uid": 9}
    prompts = python(["hello", row, whole, bare])
    assert [p.uid for p in prompts] == ["0", "9", "mine", "bare"]
    assert prompts[0].data == {}
    assert prompts[1].data == {"answer": 2, "tags": ["a", "b"]}
    assert type(prompts[1].data["answer"]) is int
    assert prompts[2] is whole
    assert prompts[3].token_ids.tolist() == TOKENIZER.encode_prompt("abc").tolist()


def test_python_functions_and_generators():
    def source() -> Iterator[str]:
        yield from ("a", "b")

    assert [p.text for p in python(source)] == ["a", "b"]
    assert [p.text for p in python(source())] == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("1+1=", "the given prompts is a str.*Put a single prompt into a list"),
        ({"prompt": "a"}, "the given prompts is a dict"),
        (7, "the given prompts is a int"),
        ([], "the given prompts has no prompts"),
        (["a", 7], "item 1 is a int. A prompt is a string, a dict such as"),
        (["a", {"answer": 1}], r"item 1: the key 'prompt' \(prompts\.prompt\) is missing"),
        ([{"prompt": "a", "x": {1, 2}}], "item 0: the value of 'x' is a set, and data is JSON"),
        ([{"prompt": "a", "x": float("nan")}], "item 0: the value of 'x' is nan"),
        ([{"prompt": "a", 3: 1}], "item 0: the key 3 is a int"),
        (["a" * 20], "item 0: the prompt has 21 tokens"),
        ([{"prompt": "a", "uid": "1"}, "b"], "item 1: the uid '1' is that of .*item 0 too"),
        ([{"prompt": "a", "uid": None}], "item 0: the uid is a NoneType"),
    ],
)
def test_python_faults_name_the_item(given: object, message: str):
    with pytest.raises(DataError, match=message):
        python(given, max_prompt_tokens=16)


def test_a_prompt_without_tokens_is_refused():
    with pytest.raises(DataError, match="item 0: the prompt has no tokens"):
        load_prompts(PythonPrompts(), _without_bos(), [""])


def _without_bos():
    from dataclasses import replace

    return replace(TOKENIZER, begins_with_bos=False)


def test_python_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_prompts_for_test.py").write_text("train = ['a', 'b']\n")
    (tmp_path / "my_broken_prompts.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(load_prompts(PythonPrompts(use="my_prompts_for_test:train"), TOKENIZER)) == 2
    for use, message in {
        "my_prompts_for_test:trian": "has no 'trian'. Did you mean 'train'",
        "my_prompts_for_test": "not of the form module:name",
        "no_such_module_here:x": "there is no module 'no_such_module_here'",
        "my_broken_prompts:x": "cannot be imported .ZeroDivisionError",
    }.items():
        with pytest.raises(ConfigError, match=message):
            load_prompts(PythonPrompts(use=use), TOKENIZER)
    with pytest.raises(ConfigError, match="needs an object, and none was passed"):
        load_prompts(PythonPrompts(), TOKENIZER)
    sys.modules.pop("my_prompts_for_test", None)


def test_importing_data_loads_no_torch():
    code = "import stretto.data.sources, sys; print(sorted({'torch', 'transformers', 'ray'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_prompt_that_came_before_is_left_out_if_asked(tmp_path: Path):
    rows = [{"prompt": text, "answer": "1"} for text in ("a", "b", "a", "a", "c")]
    assert [p.text for p in jsonl(tmp_path, *rows)] == ["a", "b", "a", "a", "c"]
    path = str(tmp_path / "data.jsonl")
    intake = read_prompts(JsonlPrompts(path=path, unique=True), TOKENIZER)
    assert [(p.text, p.uid) for p in intake.prompts] == [("a", "1"), ("b", "2"), ("c", "5")]
    assert (intake.read, intake.skipped) == (5, 2)
    assert intake.notes == ("2 rows repeat the text of an earlier prompt and were left out (prompts.unique).",)
