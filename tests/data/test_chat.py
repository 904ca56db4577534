"""Conversations in one row of tokens, on templates that behave as those of the families people use."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.data.chat import continue_chat, end_of_turn
from stretto.data.tokens import Tokenizer, builtin_tokenizer, load_tokenizer
from stretto.errors import DataError
from stretto.types import Ints, Message

FAMILIES = ("llama3", "llama32", "qwen25", "qwen3", "smollm2", "gemma")
ENDS = {
    "llama3": "<|eot_id|>",
    "llama32": "<|eot_id|>",
    "qwen25": "<|im_end|>",
    "qwen3": "<|im_end|>",
    "smollm2": "<|im_end|>",
    "gemma": "<end_of_turn>",
}


def user(content: str) -> Message:
    return Message(role="user", content=content)


def row_of(tokenizer: Tokenizer, before: list[Message], written: Ints) -> Ints:
    return np.concatenate([tokenizer.encode_prompt(before), written])


def say(tokenizer: Tokenizer, text: str, *, ended: bool = True) -> Ints:
    """What a policy writes, split into single characters, as no encoder would split it."""
    single = np.concatenate([tokenizer.encode(c) for c in text])
    return np.concatenate([single, end_of_turn(tokenizer)]) if ended else single


def read(tokenizer: Tokenizer, ids: Ints) -> str:
    return tokenizer.decode(ids, specials=True)


@pytest.fixture(scope="module")
def tokenizer_of(chat_folders: dict[str, Path]):
    loaded = {family: load_tokenizer(folder) for family, folder in chat_folders.items()}
    return lambda family: loaded[family]


PROMPTS = {
    "llama3": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhello<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "llama32": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
    "Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhello<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "qwen25": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n hello<|im_end|>\n<|im_start|>assistant\n",
    "qwen3": "<|im_start|>user\n hello<|im_end|>\n<|im_start|>assistant\n",
    "smollm2": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\n hello<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<bos><start_of_turn>user\nhello<end_of_turn>\n<start_of_turn>model\n",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_what_the_template_renders_with_one_bos(family, tokenizer_of):
    # the date that Llama 3.2's template asks for does not change from day to day
    tokenizer = tokenizer_of(family)
    ids = tokenizer.encode_prompt([user(" hello")])
    assert read(tokenizer, ids) == PROMPTS[family]
    assert family in ("qwen25", "qwen3", "smollm2") or np.count_nonzero(ids == tokenizer.bos_id) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_ends_as_the_template_ends_it_and_the_engine_stops_there(family, tokenizer_of):
    # pitfall 14: the end is an id of its own, whatever the pad is
    tokenizer = tokenizer_of(family)
    end = end_of_turn(tokenizer)
    assert read(tokenizer, end) == ENDS[family]
    assert end[-1] in tokenizer.stop_ids
    assert tokenizer.stop_ids[0] == tokenizer.eos_id


def test_without_a_template_a_turn_ends_with_eos():
    assert end_of_turn(builtin_tokenizer()).tolist() == [2]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ended", [True, False])
def test_a_row_goes_on_behind_what_was_sampled(family, ended, tokenizer_of):
    # pitfalls 15, 16
    tokenizer = tokenizer_of(family)
    before = [user("hello hello 12")]
    row = row_of(tokenizer, before, say(tokenizer, "hello there ok 12", ended=ended))
    more = continue_chat(tokenizer, row, before, "hello there ok 12", [user("hello?")])
    assert more is not None
    whole = tokenizer.encode_prompt([*before, Message(role="assistant", content="hello there ok 12"), user("hello?")])
    assert len(row) + len(more) > len(whole)  # sampled as characters, which an encoder merges
    assert read(tokenizer, np.concatenate([row, more])) == read(tokenizer, whole)
    assert read(tokenizer, more).startswith(ENDS[family]) is not ended
    assert more.tolist() == whole[-len(more) :].tolist()


def test_a_third_turn_follows_on_the_second(tokenizer_of):
    tokenizer, history = tokenizer_of("qwen25"), [user("1")]
    row = tokenizer.encode_prompt(history)
    for turn in ("hello", "ok hello", "12"):
        row = np.concatenate([row, say(tokenizer, turn)])
        more = continue_chat(tokenizer, row, history, turn, [user("again")])
        assert more is not None
        row = np.concatenate([row, more])
        history += [Message(role="assistant", content=turn), user("again")]
    assert read(tokenizer, row) == read(tokenizer, tokenizer.encode_prompt(history))


def test_a_template_that_drops_earlier_thoughts_ends_the_row(tokenizer_of):
    # pitfall 16
    tokenizer, before = tokenizer_of("qwen3"), [user("12?")]
    written = "<think>\nhello\n</think>\n\nok"
    row = row_of(tokenizer, before, np.concatenate([tokenizer.encode(written), end_of_turn(tokenizer)]))
    assert continue_chat(tokenizer, row, before, written, [user("and?")]) is None
    again = tokenizer.encode_prompt([*before, Message(role="assistant", content=written), user("and?")])
    assert "<think>" not in read(tokenizer, again)
    # The answer of a tool leaves the thought that asked for it.
    more = continue_chat(tokenizer, row, before, written, [Message(role="tool", content="5")])
    assert more is not None
    assert "<tool_response>\n5\n</tool_response>" in read(tokenizer, more)
    # Without a thought nothing is dropped, and the row goes on.
    plain = row_of(tokenizer, before, say(tokenizer, "ok"))
    assert continue_chat(tokenizer, plain, before, "ok", [user("and?")]) is not None


@pytest.mark.parametrize("family", ["llama3", "llama32", "gemma"])
def test_a_template_that_trims_ends_the_row(family, tokenizer_of):
    # pitfall 16
    tokenizer, before = tokenizer_of(family), [user("12?")]
    for written in (" ok", "ok\n"):
        row = row_of(tokenizer, before, say(tokenizer, written))
        assert continue_chat(tokenizer, row, before, written, [user("and?")]) is None


def test_another_end_than_the_templates_ends_the_row(tokenizer_of):
    tokenizer, before = tokenizer_of("qwen25"), [user("12?")]
    other = np.array([tokenizer.stop_ids[1]], np.int32)
    row = row_of(tokenizer, before, np.concatenate([say(tokenizer, "ok", ended=False), other]))
    assert continue_chat(tokenizer, row, before, "ok", [user("and?")]) is None


def test_special_tokens_inside_what_was_written_end_the_row(tokenizer_of):
    tokenizer, before = tokenizer_of("smollm2"), [user("12?")]
    start = tokenizer.encode("<|im_start|>")
    row = row_of(tokenizer, before, np.concatenate([tokenizer.encode("o"), start, say(tokenizer, "k")]))
    assert continue_chat(tokenizer, row, before, "ok", [user("and?")]) is None


def test_half_a_character_stays_as_it_was_sampled(tokenizer_of):
    tokenizer, before = tokenizer_of("smollm2"), [user("12?")]
    half = tokenizer.encode("日")[:2]
    row = row_of(tokenizer, before, half)
    written = tokenizer.decode(half)
    more = continue_chat(tokenizer, row, before, written, [user("and?")])
    assert more is not None
    whole = tokenizer.encode_prompt([*before, Message(role="assistant", content=written), user("and?")])
    assert read(tokenizer, np.concatenate([row, more])) == read(tokenizer, whole)


def test_what_a_template_refuses_is_an_error(tokenizer_of):
    tokenizer, before = tokenizer_of("gemma"), [user("12?")]
    with pytest.raises(DataError, match="System role not supported"):
        tokenizer.encode_prompt([Message(role="system", content="be brief"), user("12?")])
    row = row_of(tokenizer, before, say(tokenizer, "ok"))
    with pytest.raises(DataError, match="roles must alternate"):
        continue_chat(tokenizer, row, before, "ok", [user("and?"), user("so?")])


TEXTS = st.text(alphabet="helo t12\n日<|>/kin", max_size=12)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), family=st.sampled_from(FAMILIES))
def test_rows_keep_what_was_sampled_and_read_as_rendered(data, family, tokenizer_of):
    # pitfalls 15, 16: any ids at all, ended or cut, for up to three turns
    tokenizer: Tokenizer = tokenizer_of(family)
    history = [user(data.draw(TEXTS))]
    row = tokenizer.encode_prompt(history)
    for _ in range(3):
        sampled = data.draw(st.lists(st.integers(1, tokenizer.vocab_size - 8), max_size=8)) or [70]
        end = end_of_turn(tokenizer) if data.draw(st.booleans()) else np.zeros(0, np.int32)
        written = np.concatenate([np.array(sampled, np.int32), end])
        row = np.concatenate([row, written])
        text, then = tokenizer.decode(written), [user(data.draw(TEXTS))]
        more = continue_chat(tokenizer, row, history, text, then)
        history += [Message(role="assistant", content=text), *then]
        whole = tokenizer.encode_prompt(history)
        if more is None:
            assert not read(tokenizer, whole).startswith(read(tokenizer, row))
            row = whole
        else:
            row = np.concatenate([row, more])
            assert read(tokenizer, row) == read(tokenizer, whole)
            assert more.tolist() == whole[len(whole) - len(more) :].tolist()
