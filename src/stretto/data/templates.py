"""Chat templates: messages to the text that a model was taught to read, by the template in its folder.

Owns rendering, through transformers. It does not own tokens (``tokens.py``) or what a conversation goes on with
(``chat.py``).
"""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from stretto.errors import DataError
from stretto.types import Message

__all__ = ["has_template", "render"]

_TODAY = datetime(2024, 7, 26)
"""What a template that asks for the date is told, always: a prompt may not change at midnight, or from run to run.

It is the date that the templates of Llama 3 fall back to.
"""


def has_template(folder: Path) -> bool:
    """Whether the folder may have a chat template; no library is loaded to find out."""
    if (folder / "chat_template.jinja").is_file() or (folder / "additional_chat_templates").is_dir():
        return True
    settings = folder / "tokenizer_config.json"
    return settings.is_file() and '"chat_template"' in settings.read_text(encoding="utf-8")


def render(folder: Path, messages: Sequence[Message], *, answer: bool = True) -> str:
    """The text of a conversation, special tokens written out; with ``answer`` up to where the assistant's begins.

    DataError if the folder has no template, or if the template refuses the messages.
    """
    chat = _chat_tokenizer(folder)
    if not chat.chat_template:
        raise DataError(
            f"the tokenizer in {folder} has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json), and a prompt came as messages. Give prompts as text, or add the template."
        )
    turns = [{"role": message.role, "content": message.content} for message in messages]
    try:
        text = chat.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=answer, strftime_now=_TODAY.strftime
        )
    except Exception as error:
        # A template is a program of its own, which refuses messages as it likes.
        raise DataError(
            f"the chat template in {folder} refuses the messages of a prompt ({error}). Give messages that it takes."
        ) from error
    return str(text)


@lru_cache(maxsize=4)
def _chat_tokenizer(folder: Path) -> Any:
    # Imported here: transformers takes seconds to import and loads torch, and only chat templates need it. Its
    # classes carry no usable types.
    import transformers

    loader: Any = transformers.AutoTokenizer
    try:
        return loader.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        # Whatever is wrong in the folder, the library lets the error of the line that met it through.
        raise DataError(
            f"the tokenizer in {folder} cannot be loaded for its chat template ({type(error).__name__}: {error}). "
            "Save it again with its library."
        ) from error
