"""Tokenizers: text and messages to token ids and back.

Owns the built-in character tokenizer, the reading of Hugging Face folders and the writing of both. It does not own
masks: what is trained follows from lengths, never from ids, so that a tokenizer whose pad is its eos works.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, processors

from stretto.data.locations import TINY, folder_of
from stretto.data.templates import has_template, render
from stretto.errors import DataError
from stretto.types import Ints, Json, Message

__all__ = ["Tokenizer", "builtin_tokenizer", "load_tokenizer"]

_SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")
_CHARACTERS = ("\n", *(chr(code) for code in range(0x20, 0x7F)))
_KNOWN = frozenset(_CHARACTERS)

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""What ``Tokenizer.save`` copies of a folder, where it is there: the last one for its stop ids."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokenizer:
    """One tokenizer with its special ids.

    ``eos_id`` ends a completion; ``stop_ids`` are all ids that do, ``eos_id`` first. ``turn_end``: what ends an
    assistant's turn by the chat template, empty without one; its last id is a stop id too. ``vocab_size`` is the
    largest id plus one. ``begins_with_bos``: prompts made of text begin with ``bos_id``. ``folder`` is where it was
    loaded from, None for the built-in one.
    """

    eos_id: int
    pad_id: int
    bos_id: int | None
    stop_ids: tuple[int, ...]
    vocab_size: int
    begins_with_bos: bool
    folder: Path | None
    backend: tokenizers.Tokenizer
    turn_end: tuple[int, ...] = ()

    def encode(self, text: str) -> Ints:
        """Token ids of ``text``, int32 [T], no special tokens added.

        Text with lone surrogates raises DataError; so does, for the built-in tokenizer, a character it does not have:
        as unknown tokens, different texts would become the same.
        """
        if self.folder is None:
            strange = next((c for c in text if c not in _KNOWN), None)
            if strange is not None:
                raise DataError(
                    f"the text {text[:40]!a} has the character {strange!a}, which the tokenizer of {TINY} "
                    "does not know: it knows printable ASCII and newlines. Leave it out, or take another model."
                )
        try:
            return np.array(self.backend.encode(text, add_special_tokens=False).ids, np.int32)
        except TypeError as error:
            # This is how the library refuses a str that UTF-8 cannot write.
            raise DataError(f"the text {text[:40]!a} is not valid Unicode. Repair or remove it.") from error

    def decode(self, token_ids: Ints, *, specials: bool = False) -> str:
        """The text of token ids, special tokens left out unless ``specials``."""
        return self.backend.decode(token_ids.tolist(), skip_special_tokens=not specials)

    def encode_prompt(self, prompt: str | Sequence[Message]) -> Ints:
        """Token ids of a prompt, int32 [T].

        Text gets the bos the tokenizer asks for, unless it begins with one already. Messages are rendered by the
        folder's chat template, which writes its own bos if it wants one, up to where the assistant's answer begins;
        without a template that is a DataError.
        """
        if not isinstance(prompt, str):
            return self.encode(self._render(prompt))
        ids = self.encode(prompt)
        if self.bos_id is None or not self.begins_with_bos or (len(ids) and ids[0] == self.bos_id):
            return ids
        return np.concatenate([np.array([self.bos_id], np.int32), ids])

    @property
    def idle_id(self) -> int | None:
        """A token to pad with that no row ends with: the pad, unless it ends completions too; then another special
        token; None without any.

        Who looks for the end of a padded row by its ids finds it with this one only.
        """
        ends = {*self.stop_ids, *self.turn_end}
        special = (index for index, t in sorted(self.backend.get_added_tokens_decoder().items()) if t.special)
        return next((index for index in (self.pad_id, *special) if index not in ends), None)

    def save(self, folder: Path) -> None:
        """Write files that ``transformers.AutoTokenizer`` loads with the same ids; ``folder`` is made if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.folder is None:
            self.backend.save(str(folder / "tokenizer.json"))
            config = json.dumps(_BUILTIN_CONFIG, indent=2, sort_keys=True)
            (folder / "tokenizer_config.json").write_text(config + "\n", encoding="utf-8")
            return
        for name in _TOKENIZER_FILES:
            source = self.folder / name
            if source.exists() and source.resolve() != (folder / name).resolve():
                shutil.copyfile(source, folder / name)

    def _render(self, messages: Sequence[Message]) -> str:
        if self.folder is None:
            raise DataError(
                f"the tokenizer of {TINY} has no chat template, and a prompt came as messages. "
                "Give prompts as text, or take a model with a chat template."
            )
        return render(self.folder, messages)


_BUILTIN_CONFIG: Mapping[str, object] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "add_bos_token": True,
    "clean_up_tokenization_spaces": False,
}


def builtin_tokenizer() -> Tokenizer:
    """The tokenizer of ``builtin:tiny-llama-char``: exactly 100 tokens, one a character.

    They are pad 0, bos 1, eos 2, unk 3, newline 4, then ASCII 32 to 126.
    """
    vocab = {token: index for index, token in enumerate((*_SPECIALS, *_CHARACTERS))}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIALS])  # pyright: ignore[reportUnknownMemberType]
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 1)]
    )
    return Tokenizer(
        eos_id=2,
        pad_id=0,
        bos_id=1,
        stop_ids=(2,),
        vocab_size=len(vocab),
        begins_with_bos=True,
        folder=None,
        backend=backend,
    )


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of ``builtin:NAME`` or of a local Hugging Face folder.

    eos is ``eos_token`` of tokenizer_config.json, else the first ``eos_token_id`` of generation_config.json or
    config.json; pad falls back to eos. Truncation and padding that tokenizer.json carries are switched off: nothing
    is cut without a trace. Missing or broken files, and a tokenizer without eos, raise DataError.
    """
    folder = folder_of(str(path))
    return builtin_tokenizer() if folder is None else _load_folder(folder)


def _load_folder(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise DataError(
            f"the model folder {folder} has no tokenizer.json. Save the tokenizer there in the fast format."
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        # The library raises bare Exception for every fault of the file.
        raise DataError(f"{file} is not a tokenizer: {error}. Save it again with its library.") from error
    backend.no_truncation()
    backend.no_padding()
    settings = _read_json(folder / "tokenizer_config.json")
    declared = [_read_json(folder / name) for name in ("generation_config.json", "config.json")]
    named = {role: _named_id(folder, backend, settings, role) for role in ("eos", "pad", "bos")}
    stops = _stop_ids(named["eos"], declared)
    if not stops:
        raise DataError(
            f"the tokenizer in {folder} has no end-of-sequence token: neither eos_token in tokenizer_config.json nor "
            "eos_token_id in generation_config.json or config.json. Set one of them."
        )
    turn_end = _turn_end(folder, backend, stops) if has_template(folder) else ()
    bos_id = _first(named["bos"], declared, "bos_token_id")
    pad_id = _first(named["pad"], declared, "pad_token_id")
    return Tokenizer(
        eos_id=stops[0],
        pad_id=stops[0] if pad_id is None else pad_id,
        bos_id=bos_id,
        stop_ids=tuple(dict.fromkeys((*stops, *turn_end[-1:]))),
        vocab_size=max(backend.get_vocab(with_added_tokens=True).values()) + 1,
        begins_with_bos=bos_id is not None and _begins_with(backend, settings, bos_id),
        folder=folder,
        backend=backend,
        turn_end=turn_end,
    )


def _read_json(file: Path) -> Mapping[str, Json]:
    """A JSON object from a file of the folder; an optional file that is missing is an empty one."""
    if not file.is_file():
        return {}
    try:
        value: object = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}. Repair the file.") from error
    if not isinstance(value, dict):
        raise DataError(f"{file} holds a {type(value).__name__} where an object belongs. Repair the file.")
    return cast("dict[str, Json]", value)


def _named_id(folder: Path, backend: tokenizers.Tokenizer, settings: Mapping[str, Json], role: str) -> int | None:
    """The id of ``<role>_token`` of tokenizer_config.json, which is a string or an object with ``content``."""
    token = settings.get(f"{role}_token")
    if isinstance(token, Mapping):
        token = token.get("content")
    if token is None:
        return None
    index = backend.token_to_id(str(token))
    if index is None:
        raise DataError(
            f"{folder / 'tokenizer_config.json'} names {role}_token={token!r}, which tokenizer.json does not have. "
            "The two files do not belong together; save the tokenizer again."
        )
    return index


def _ids(config: Mapping[str, Json], key: str) -> tuple[int, ...]:
    """Ids under ``key``: a number, a list of numbers or nothing."""
    value = config.get(key)
    values = value if isinstance(value, list) else [value]
    return tuple(index for index in values if isinstance(index, int))


def _stop_ids(eos_id: int | None, declared: Sequence[Mapping[str, Json]]) -> tuple[int, ...]:
    """All ids that end a completion, each once, the tokenizer's own eos first."""
    found = [] if eos_id is None else [eos_id]
    for config in declared:
        found.extend(_ids(config, "eos_token_id"))
    return tuple(dict.fromkeys(found))


def _first(named: int | None, declared: Sequence[Mapping[str, Json]], key: str) -> int | None:
    """The id that tokenizer_config.json names, else the first that another file declares under ``key``."""
    found = [named] if named is not None else [index for config in declared for index in _ids(config, key)]
    return found[0] if found else None


def _begins_with(backend: tokenizers.Tokenizer, settings: Mapping[str, Json], bos_id: int) -> bool:
    """Whether text is to begin with bos: as tokenizer_config.json says, else as the post-processor does."""
    wish = settings.get("add_bos_token")
    if wish is not None:
        return bool(wish)
    ids = backend.encode("a", add_special_tokens=True).ids
    return bool(ids) and ids[0] == bos_id


def _turn_end(folder: Path, backend: tokenizers.Tokenizer, stops: Sequence[int]) -> tuple[int, ...]:
    """The ids from the end of an assistant's words to the first special token, that one included; none without one."""
    turns = (Message(role="user", content="question"), Message(role="assistant", content="answer"))
    try:
        text = render(folder, turns, answer=False)
    except DataError:
        # No template, or one that takes other conversations only: prompts of text work, messages meet the error.
        return ()
    ids = backend.encode(text, add_special_tokens=False).ids
    read = [backend.decode(ids[:n], skip_special_tokens=False) for n in range(len(ids) + 1)]
    said = len(read[-1]) - len(read[-1].rpartition("answer")[2])
    start = next(n for n, text in enumerate(read) if len(text) >= said)
    special = {index for index, token in backend.get_added_tokens_decoder().items() if token.special} | set(stops)
    end = next((n for n in range(start, len(ids)) if ids[n] in special), None)
    return () if end is None else tuple(ids[start : end + 1])
