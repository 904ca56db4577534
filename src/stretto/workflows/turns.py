"""Attempts of several turns: the policy and its environment by turns, in one row of tokens. Token in, token out.

Owns how a row grows, when it ends, and when another begins. It does not own where an environment lives or what follows
from its failures; those are behind the role.

A row is the prompt, then completions as they were sampled (mask 1) and replies (mask 0). Prompts that are text go on
with replies that are text, just behind what was written; prompts that are messages go on by the chat template. Where
the template would rewrite what already stands there, the row is left as it is and another part begins, from the whole
conversation, so that every mask and log-prob belongs to the tokens that were sampled.
"""

from dataclasses import dataclass, field

import numpy as np

from stretto.errors import DataError
from stretto.roles import Completion, Environment, Episode, Generate, Tokenize, TurnBudget
from stretto.together import together
from stretto.types import Finish, Floats, Ints, Json, Key, Masks, Message, Prompt, Span, Trajectory

__all__ = ["play_attempts"]


async def play_attempts(
    prompt: Prompt, generate: Generate, tokens: Tokenize, environment: Environment, n: int
) -> tuple[Trajectory, ...]:
    """``n`` attempts against the environment, all at the same time, in key order."""
    assert environment.budget is not None
    told = _Told(prompt=prompt, generate=generate, tokens=tokens, budget=environment.budget)
    played = await together([environment.play(prompt, i, _Conversation(told, i).play) for i in range(n)])
    return tuple(part for parts in played for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What all attempts of a group share."""

    prompt: Prompt
    generate: Generate
    tokens: Tokenize
    budget: TurnBudget


@dataclass(slots=True)
class _Row:
    """A row that grows by what is read and what is written."""

    token_ids_T: Ints
    masks: list[Masks] = field(default_factory=list[Masks])
    logprobs: list[Floats] = field(default_factory=list[Floats])
    versions: list[Span] = field(default_factory=list[Span])

    def __post_init__(self) -> None:
        self._grow(0, np.zeros(len(self.token_ids_T), np.float32))

    def read(self, token_ids_T: Ints) -> None:
        """What the policy did not write."""
        self.token_ids_T = np.concatenate([self.token_ids_T, token_ids_T])
        self._grow(0, np.zeros(len(token_ids_T), np.float32))

    def write(self, completion: Completion) -> None:
        """What it wrote, as it was sampled."""
        self.token_ids_T = np.concatenate([self.token_ids_T, completion.token_ids_T])
        self._grow(1, completion.logprobs_T)
        for span in completion.versions:
            if self.versions and self.versions[-1].version == span.version:
                span = Span(span.version, self.versions.pop().length + span.length)
            self.versions.append(span)

    def _grow(self, mask: int, logprobs_T: Floats) -> None:
        self.masks.append(np.full(len(logprobs_T), mask, np.uint8))
        self.logprobs.append(logprobs_T.astype(np.float32, copy=False))


class _Conversation:
    """One attempt. ``play`` may be called again, with another environment: it begins from the start."""

    def __init__(self, told: _Told, sample: int) -> None:
        self._told, self._sample = told, sample
        self._parts: list[Trajectory] = []
        self._turns: list[Message] = []
        self._text = ""
        self._stop: str | None = None

    async def play(self, episode: Episode) -> tuple[Trajectory, ...]:
        """The attempt, from its first word to its end: mostly one trajectory, more where parts began."""
        self._parts, self._turns, self._text, self._stop = [], [], "", None
        budget = self._told.budget
        row = self._begin(await episode.start())
        for turn in range(budget.max_turns):
            room = budget.max_total_tokens - len(row.token_ids_T)
            if room < 1:
                return await self._end(episode, row, "length")
            completion = await self._complete(row, turn, room)
            row.write(completion)
            written = self._told.tokens.decode(completion.token_ids_T)
            self._text, self._stop = completion.cut(written), completion.stop
            self._turns.append(Message(role="assistant", content=written))
            cut = completion.finish == "length" and (budget.on_length == "end" or len(completion.token_ids_T) >= room)
            if cut or completion.finish == "aborted":
                return await self._end(episode, row, completion.finish)
            said = await episode.reply(self._text)
            if said is None:
                return await self._end(episode, row, "env")
            if turn + 1 == budget.max_turns:
                break
            grown = self._go_on(row, said)
            if grown is None:
                break
            row = grown
        return await self._end(episode, row, "length")

    async def _complete(self, row: _Row, turn: int, room: int) -> Completion:
        stream = self._told.generate.complete(row.token_ids_T, samples=(self._sample,), turn=turn, max_tokens=room)
        completions = [completion async for completion in stream]
        assert len(completions) == 1, (self._sample, len(completions))
        return completions[0]

    def _begin(self, said: str | tuple[Message, ...] | None) -> _Row:
        """The first row: the prompt, with what the environment says first."""
        prompt, tokens = self._told.prompt, self._told.tokens
        if said is None:
            return _Row(prompt.token_ids)
        if prompt.messages is None:
            row = _Row(prompt.token_ids)
            row.read(tokens.encode(self._heard_text(said)))
            return row
        return _Row(tokens.encode_chat((*prompt.messages, *self._heard_messages(said))))

    def _go_on(self, row: _Row, said: str | tuple[Message, ...]) -> _Row | None:
        """The row with a reply behind it, or the row of a new part; None if that leaves nothing to write."""
        prompt, tokens, limit = self._told.prompt, self._told.tokens, self._told.budget.max_total_tokens
        if prompt.messages is None:
            ids = tokens.encode(_text_of(said))
            if len(row.token_ids_T) + len(ids) >= limit:
                return None
            self._heard_text(said)
            row.read(ids)
            return row
        before, then = (*prompt.messages, *self._turns[:-1]), _messages_of(said)
        ids = tokens.continue_chat(row.token_ids_T, before, self._turns[-1].content, then)
        if ids is not None:
            if len(row.token_ids_T) + len(ids) >= limit:
                return None
            self._heard_messages(said)
            row.read(ids)
            return row
        whole = tokens.encode_chat((*before, self._turns[-1], *then))
        if len(whole) >= limit:
            return None
        self._parts.append(self._trajectory(row, "env", {"truncated": False}))
        self._heard_messages(said)
        return _Row(whole)

    async def _end(self, episode: Episode, row: _Row, finish: Finish) -> tuple[Trajectory, ...]:
        """All parts, the last with the conversation and the environment's score."""
        info: dict[str, Json] = {
            "turns": [{"role": turn.role, "content": turn.content} for turn in self._turns],
            "truncated": finish == "length",
        }
        if self._stop is not None:
            info["stop"] = self._stop
        score = await episode.end()
        if score is not None:
            info["environment"] = score
        return (*self._parts, self._trajectory(row, finish, info))

    def _trajectory(self, row: _Row, finish: Finish, info: dict[str, Json]) -> Trajectory:
        generate = self._told.generate
        return Trajectory(
            key=Key(generate.draw, self._sample, part=len(self._parts), model=generate.model),
            token_ids_T=row.token_ids_T.astype(np.int32, copy=False),
            mask_T=np.concatenate(row.masks),
            logprobs_T=np.concatenate(row.logprobs),
            versions=tuple(row.versions),
            finish=finish,
            text=self._text,
            temperature=generate.temperature,
            info=info,
        )

    def _heard_text(self, said: str | tuple[Message, ...]) -> str:
        text = _text_of(said)
        self._turns.append(Message(role="user", content=text))
        return text

    def _heard_messages(self, said: str | tuple[Message, ...]) -> tuple[Message, ...]:
        messages = _messages_of(said)
        self._turns.extend(messages)
        return messages


def _text_of(said: str | tuple[Message, ...]) -> str:
    if isinstance(said, str):
        return said
    raise DataError(
        f"it returned messages ({said[0].role}: {said[0].content[:40]!r}), and the prompt is text, which goes on as "
        "text. Return a string, or give prompts as messages."
    )


def _messages_of(said: str | tuple[Message, ...]) -> tuple[Message, ...]:
    """A string said to a policy that chats is a message of the user."""
    return (Message(role="user", content=said),) if isinstance(said, str) else said
