"""Binds the roles that nodes ask for to what serves them: engines, judge, environments, tokenizer, training backend.

A per-group node gets handles that know its draw; a per-step node gets handles that know the step's learning rate.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from stretto.config.by_step import ByStep, value_at
from stretto.data.chat import continue_chat
from stretto.data.seeds import Namespace, environment_seed, sample_seed
from stretto.data.tokens import Tokenizer
from stretto.environments.episodes import Attempt, Episodes
from stretto.graph import NodeSpec
from stretto.roles import (
    Completion,
    Environment,
    Episode,
    Generate,
    Judge,
    Request,
    RolloutEngine,
    Sampling,
    Tokenize,
    TrainBackend,
    TurnBudget,
    Want,
)
from stretto.types import (
    Batch,
    Column,
    Group,
    Ints,
    Json,
    LossRef,
    Message,
    Occasion,
    Prompt,
    UpdateReport,
    merge_metrics,
)

__all__ = ["GroupBinding", "GroupJudge", "StepBinding", "tokenize_for"]

T = TypeVar("T")


class GroupJudge(Protocol):
    """What judges for a run: groups of any draw, each on its occasion."""

    async def judge(self, group: Group, occasion: Occasion) -> Group: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBinding:
    """What the per-group nodes of one phase (or of an evaluation) are served by.

    ``temperature``: where it changes by step; a draw has that of the step it was first admitted for.
    """

    engine: RolloutEngine
    judge: GroupJudge
    tokenizer: Tokenizer
    sampling: Sampling
    deadline_s: float
    seed: int
    namespace: Namespace
    episodes: Episodes | None = None
    budget: TurnBudget | None = None
    steps: int | None = None
    temperature: ByStep | None = None

    def bind(self, spec: NodeSpec, draw: int, step: int = 0) -> dict[str, object]:
        """A handle per role parameter of the node, for a draw that was admitted for ``step``."""
        handles: dict[str, object] = {}
        for name, role in spec.roles.items():
            if role.kind == "generate":
                handles[name] = self.generate(role.model or "policy", draw, step)
            elif role.kind == "tokenize":
                handles[name] = self.tokenize(draw)
            elif role.kind == "environment":
                handles[name] = self.environment(draw)
            else:
                assert role.kind == "judge", role.kind
                handles[name] = self.judged(step)
        return handles

    def generate(self, model: str, draw: int, step: int = 0) -> Generate:
        """Completions for one draw, which was admitted for ``step``."""
        sampling = self.sampling
        if self.temperature is not None:
            sampling = replace(sampling, temperature=value_at(self.temperature, step))
        return _Generate(self, model, draw, sampling)

    def judged(self, step: int) -> Judge:
        """The rewards, on the occasion of a step (of an evaluation: the steps done)."""
        return _Judge(self.judge, Occasion(phase=self.namespace, step=step, steps=self.steps, seed=self.seed))

    def tokenize(self, draw: int) -> Tokenize:
        """The tokenizer for one draw."""
        return tokenize_for(self.tokenizer, draw)

    def environment(self, draw: int) -> Environment:
        """The recipe's environment, or that there is none, for one draw."""
        return _Environment(self, draw)


@dataclass(frozen=True, slots=True)
class _Generate:
    binding: GroupBinding
    model: str
    draw: int
    sampling: Sampling

    @property
    def temperature(self) -> float:
        # Greedy log-probs are those of temperature 1.
        return self.sampling.temperature or 1.0

    def complete(
        self,
        token_ids: Ints,
        *,
        samples: Sequence[int],
        turn: int = 0,
        max_tokens: int | None = None,
        greedy: bool = False,
    ) -> AsyncIterator[Completion]:
        b = self.binding
        sampling = replace(self.sampling, temperature=0.0) if greedy else self.sampling
        if max_tokens is not None and max_tokens < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=max_tokens)
        request = Request(
            id=f"{b.namespace}/{self.draw}/{samples[0] if samples else 0}/{turn}",
            token_ids=token_ids,
            seeds=tuple(sample_seed(b.seed, b.namespace, self.draw, sample, turn) for sample in samples),
            sampling=sampling,
            deadline_s=b.deadline_s,
        )
        return b.engine.generate(request)


@dataclass(frozen=True, slots=True)
class _Judge:
    rewards: GroupJudge
    occasion: Occasion

    async def judge(self, group: Group) -> Group:
        return await self.rewards.judge(group, self.occasion)


def tokenize_for(tokenizer: Tokenizer, draw: int = 0) -> Tokenize:
    """The role for one draw."""
    return _Tokenize(tokenizer, draw)


@dataclass(frozen=True, slots=True)
class _Tokenize:
    tokenizer: Tokenizer
    draw: int

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_id

    def encode(self, text: str) -> Ints:
        return self.tokenizer.encode(text)

    def decode(self, token_ids: Ints) -> str:
        return self.tokenizer.decode(token_ids)

    def ending(self, prompt: Prompt) -> Ints:
        ids = self.tokenizer.turn_end if prompt.messages is not None else ()
        return np.array(ids or (self.eos_id,), np.int32)

    def encode_chat(self, messages: Sequence[Message]) -> Ints:
        return self.tokenizer.encode_prompt(messages)

    def continue_chat(
        self, token_ids: Ints, before: Sequence[Message], written: str, then: Sequence[Message]
    ) -> Ints | None:
        return continue_chat(self.tokenizer, token_ids, before, written, then)


@dataclass(slots=True)
class _Environment:
    binding: GroupBinding
    draw: int
    begun: bool = False

    @property
    def budget(self) -> TurnBudget | None:
        return self.binding.budget

    async def play(self, prompt: Prompt, sample: int, conversation: Callable[[Episode], Awaitable[T]]) -> T:
        b = self.binding
        assert b.episodes is not None, "a rollout without an environment is one turn"
        if not self.begun:
            self.begun = True
            b.episodes.group_begins()
        seed = partial(environment_seed, b.seed, b.namespace, self.draw, sample)
        return await b.episodes.play(Attempt(prompt=prompt, draw=self.draw, sample=sample, seed=seed), conversation)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBinding:
    """What the per-step nodes of one step are served by. ``lr`` gives a Model's learning rate at this step.

    ``memory``: what nodes keep from step to step, by their ids.
    """

    backend: TrainBackend
    lr: Callable[[str], float]
    step: int
    memory: dict[str, Json]

    def bind(self, spec: NodeSpec) -> dict[str, object]:
        """A handle per role parameter of the node."""
        handles: dict[str, object] = {}
        for name, role in spec.roles.items():
            model = role.model or "policy"
            if role.kind == "train":
                handles[name] = _Train(self.backend, model, self.lr(model), self.step)
            elif role.kind == "memory":
                handles[name] = _Memory(self.memory, spec.id)
            else:
                assert role.kind == "score", role.kind
                handles[name] = _Score(self.backend, model)
        return handles


@dataclass(frozen=True, slots=True)
class _Score:
    backend: TrainBackend
    model: str

    def score(self, batch: Batch, want: frozenset[Want]) -> tuple[Column, ...]:
        return self.backend.score(self.model, batch, want)


@dataclass(frozen=True, slots=True)
class _Train:
    backend: TrainBackend
    model: str
    lr: float
    step: int

    def score(self, batch: Batch, want: frozenset[Want]) -> tuple[Column, ...]:
        return self.backend.score(self.model, batch, want)

    def learn(self, batch: Batch, columns: tuple[Column, ...], loss: LossRef) -> UpdateReport:
        metrics = self.backend.accumulate(self.model, batch, columns, loss)
        report = self.backend.update(self.model, self.lr)
        return UpdateReport(model=self.model, metrics=merge_metrics((metrics, report.metrics)), skipped=report.skipped)


@dataclass(slots=True)
class _Memory:
    kept: dict[str, Json]
    node: str

    @property
    def value(self) -> Json:
        return self.kept.get(self.node)

    @value.setter
    def value(self, value: Json) -> None:
        self.kept[self.node] = value
