"""Tokenizers: the built-in one, Hugging Face folders, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from stretto.data.locations import TINY
from stretto.data.tokens import builtin_tokenizer, load_tokenizer
from stretto.errors import DataError
from stretto.types import Message

CHARACTERS = "\n" + "".join(chr(code) for code in range(32, 127))
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<|im_start|>{{ m.role }}: {{ m.content }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)


def write_folder(
    folder: Path, *, pad: str | None, bos: bool = False, template: bool = False, eos: str | None = "<|im_end|>"
) -> Path:
    """A small byte-level tokenizer in a Hugging Face folder, in the manner of Qwen and Llama."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 259)])
    backend.enable_truncation(max_length=4)
    backend.enable_padding(length=32)
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "pad_token": pad}
    if bos:
        settings["bos_token"] = {"__type": "AddedToken", "content": "<s>", "special": True}
    if template:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}))
    return folder


def test_builtin_has_exactly_100_tokens():
    tokenizer = load_tokenizer(TINY)
    assert tokenizer.vocab_size == 100
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert tokenizer.stop_ids == (2,)
    ids = tokenizer.encode(CHARACTERS)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(range(4, 100))
    with pytest.raises(DataError, match=r"'1\\u65e5' has the character '\\u65e5', which .* does not know"):
        tokenizer.encode("1日")
    assert tokenizer.encode("").shape == (0,)


def test_builtin_prompts_begin_with_bos_once():
    tokenizer = builtin_tokenizer()
    assert tokenizer.encode_prompt("1+1=").tolist() == [1, *tokenizer.encode("1+1=").tolist()]
    assert tokenizer.encode_prompt("<bos>1+1=").tolist() == tokenizer.encode_prompt("1+1=").tolist()


@given(st.text(alphabet=CHARACTERS, max_size=40))
def test_builtin_decodes_what_it_encodes(text: str):
    tokenizer = builtin_tokenizer()
    ids = tokenizer.encode(text)
    if not any(special in text for special in ("<pad>", "<bos>", "<eos>", "<unk>")):
        assert len(ids) == len(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(np.concatenate([[1], ids, [2, 0, 0]]).astype(np.int32)) == text


def test_builtin_exported_is_an_ordinary_folder(tmp_path: Path):
    from transformers import AutoTokenizer

    ours = builtin_tokenizer()
    ours.save(tmp_path / "new")
    theirs = AutoTokenizer.from_pretrained(str(tmp_path / "new"))
    again = load_tokenizer(tmp_path / "new")
    assert len(theirs) == 100
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (0, 1, 2)
    for text in ("12+34=46", "a  b ,\n'c' don't .", CHARACTERS):
        assert theirs(text).input_ids == ours.encode_prompt(text).tolist() == again.encode_prompt(text).tolist()
        ids = ours.encode(text)
        assert theirs.decode(ids, skip_special_tokens=True) == ours.decode(ids) == again.decode(ids)
    assert (again.pad_id, again.bos_id, again.eos_id, again.vocab_size) == (0, 1, 2, 100)


def test_folder_whose_pad_is_eos(tmp_path: Path):  # pitfall 14
    tokenizer = load_tokenizer(write_folder(tmp_path / "m", pad="<|im_end|>"))
    assert tokenizer.pad_id == tokenizer.eos_id == 258
    assert tokenizer.stop_ids == (258, 256)
    assert tokenizer.vocab_size == 260
    assert not tokenizer.begins_with_bos


def test_folder_without_pad_uses_eos(tmp_path: Path):
    tokenizer = load_tokenizer(write_folder(tmp_path / "m", pad=None))
    assert tokenizer.pad_id == 258
    assert tokenizer.bos_id is None


def test_folder_is_never_cut_or_padded(tmp_path: Path):  # pitfall 26
    tokenizer = load_tokenizer(write_folder(tmp_path / "m", pad=None))
    assert len(tokenizer.encode("0123456789")) == 10


def test_folder_with_bos_by_post_processor(tmp_path: Path):
    folder = write_folder(tmp_path / "m", pad=None, bos=True)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.begins_with_bos
    assert tokenizer.encode_prompt("hi").tolist() == [259, *tokenizer.encode("hi").tolist()]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "add_bos_token": False}))
    assert load_tokenizer(folder).encode_prompt("hi").tolist() == tokenizer.encode("hi").tolist()


def test_eos_from_generation_config(tmp_path: Path):
    assert load_tokenizer(write_folder(tmp_path / "m", pad=None, eos=None)).stop_ids == (258, 256)


def test_messages_go_through_the_chat_template(tmp_path: Path):
    tokenizer = load_tokenizer(write_folder(tmp_path / "m", pad=None, bos=True, template=True))
    ids = tokenizer.encode_prompt([Message(role="user", content="2+2")])
    assert ids.tolist() == [257, *tokenizer.encode("user: 2+2A:").tolist()]
    with pytest.raises(DataError, match=r"chat template in .* refuses the messages .*no tools here"):
        tokenizer.encode_prompt([Message(role="tool", content="x")])


def test_messages_without_a_chat_template_are_refused(tmp_path: Path):
    message = [Message(role="user", content="2+2")]
    with pytest.raises(DataError, match=r"no chat template .*Give prompts as text"):
        load_tokenizer(write_folder(tmp_path / "m", pad=None)).encode_prompt(message)
    with pytest.raises(DataError, match="no chat template"):
        builtin_tokenizer().encode_prompt(message)


def test_saved_folder_is_the_same_tokenizer(tmp_path: Path):
    tokenizer = load_tokenizer(write_folder(tmp_path / "m", pad=None, template=True))
    tokenizer.save(tmp_path / "copy")
    tokenizer.save(tmp_path / "m")
    copy = load_tokenizer(tmp_path / "copy")
    message = [Message(role="user", content="héllo")]
    assert copy.encode_prompt(message).tolist() == tokenizer.encode_prompt(message).tolist()
    assert copy.stop_ids == tokenizer.stop_ids


def test_faults_of_a_folder_name_folder_and_file(tmp_path: Path):  # pitfall 35
    with pytest.raises(DataError, match=r"folder .*none. does not exist"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(DataError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(DataError, match="Did you mean 'builtin:tiny-llama-char'"):
        load_tokenizer("builtin:tiny-llama")
    folder = write_folder(tmp_path / "m", pad="<nope>")
    with pytest.raises(DataError, match=r"pad_token='<nope>', which tokenizer\.json does not have"):
        load_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer_config\.json is not JSON"):
        load_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("[]")
    with pytest.raises(DataError, match="holds a list where an object belongs"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(folder)
    bare = write_folder(tmp_path / "bare", pad=None, eos=None)
    (bare / "generation_config.json").unlink()
    with pytest.raises(DataError, match="no end-of-sequence token"):
        load_tokenizer(bare)
