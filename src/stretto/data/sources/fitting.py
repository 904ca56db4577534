"""Tokens of prompts, within the budget: refuse, skip or cut what is too long, and count it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stretto.config.prompts import TooLong
from stretto.data.sources.rows import Draft
from stretto.data.tokens import Tokenizer
from stretto.errors import DataError
from stretto.types import Ints, Message, Prompt

__all__ = ["Fitter"]


class Fitter:
    """Makes Prompts of drafts. ``skipped`` and ``truncated`` count what was too long, ``shortest`` what was skipped."""

    def __init__(self, tokenizer: Tokenizer, budget: int | None, too_long: TooLong, chat: bool) -> None:
        """``budget`` in tokens; None: any length. ``chat``: text was made a chat, which errors then say."""
        self._tokenizer, self._budget, self._too_long, self._chat = tokenizer, budget, too_long, chat
        self.skipped = 0
        self.truncated = 0
        self.shortest = 0

    def fit(self, place: str, item: Draft | Prompt) -> Prompt | None:
        """The prompt, or None if it is skipped. One that is given with token ids keeps them."""
        prompt = item if isinstance(item, Prompt) else self._prompt(place, item)
        if len(prompt.token_ids) == 0:
            prompt = replace(prompt, token_ids=self._encode(place, prompt.messages or prompt.text))
        num_tokens = len(prompt.token_ids)
        if num_tokens == 0:
            raise DataError(f"{place}: the prompt has no tokens. Give it some text.")
        if self._budget is None or num_tokens <= self._budget:
            return prompt
        if self._too_long == "skip":
            self.skipped += 1
            self.shortest = min(num_tokens, self.shortest or num_tokens)
            return None
        return self._cut(place, prompt, self._budget)

    def _prompt(self, place: str, draft: Draft) -> Prompt:
        content = draft.content
        messages = None if isinstance(content, str) else content
        text = content if isinstance(content, str) else "\n".join(f"{m.role}: {m.content}" for m in content)
        ids = self._encode(place, content)
        return Prompt(uid=draft.uid, text=text, token_ids=ids, data=draft.data, messages=messages)

    def _encode(self, place: str, content: str | Sequence[Message]) -> Ints:
        try:
            return self._tokenizer.encode_prompt(content)
        except DataError as error:
            why = " (prompts.chat=true makes text a chat; leave it out for plain text.)" if self._chat else ""
            raise DataError(f"{place}: {error}{why}") from error

    def _cut(self, place: str, prompt: Prompt, budget: int) -> Prompt:
        """The end of a text prompt, after the bos it begins with. Its ``text`` becomes what is left."""
        long = f"{place}: the prompt has {len(prompt.token_ids)} tokens and prompts.max_prompt_tokens is {budget}"
        if self._too_long == "fail":
            raise DataError(
                f"{long}. Shorten or remove it, raise prompts.max_prompt_tokens, or set prompts.too_long=skip or "
                "truncate."
            )
        if prompt.messages is not None:
            raise DataError(
                f"{long}. prompts.too_long=truncate keeps the end of text, and would break the template of chat "
                "messages. Set prompts.too_long=skip, or raise prompts.max_prompt_tokens."
            )
        self.truncated += 1
        ids, bos = prompt.token_ids, self._tokenizer.bos_id
        if bos is not None and ids[0] == bos and budget > 1:
            kept = np.concatenate([ids[:1], ids[len(ids) - budget + 1 :]])
        else:
            kept = ids[len(ids) - budget :]
        return replace(prompt, token_ids=kept, text=self._tokenizer.decode(kept))
