"""Calling rewards on a group, in whichever form each has, and waiting for those that are async.

Owns what is passed to which form and what an exception becomes; where this runs is not its business (``worker.py`` in a
reward process, ``judge.py`` inside the run).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from stretto.environments.faults import Fault, fault_of
from stretto.environments.rewards.context import Context
from stretto.environments.rewards.contract import Answer, Notes, Part, Rewards, Scores
from stretto.environments.rewards.reading import read_one, read_parts, siblings_of
from stretto.errors import RewardError
from stretto.types import Group, Json, Message, Occasion, Prompt, Trajectory

__all__ = ["Calls", "TrainerState", "call_rewards", "read_answer", "settle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What one part returned: a value per sibling, or one for all if it was called on the ``whole`` group.

    ``contexts`` are those it was given, as many as values; empty if it takes none.
    """

    part: Part
    whole: bool
    values: list[object]
    contexts: list[Context]

    def sample(self, index: int) -> int | None:
        """The sibling that value ``index`` is of, if it is of one."""
        return None if self.whole else index


class TrainerState:
    """What a reward in TRL's form finds in ``trainer_state``: ``global_step`` and ``max_steps``."""

    def __init__(self, context: Context) -> None:
        self.global_step = context.step
        self.max_steps = context.steps

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"trainer_state has global_step and max_steps here, and no {name!r}")


# --- calling -------------------------------------------------------------------------------------------------------


def call_rewards(rewards: Rewards, group: Group, occasion: Occasion) -> list[Calls] | Fault:
    """What every part returns for the group; awaitables are not waited for."""
    done: list[Calls] = []
    for part in rewards.parts:
        calls = _call(part, group, occasion)
        if isinstance(calls, Fault):
            for earlier in done:
                _close(earlier.values)
            return _of_part(rewards, part, calls)
        done.append(calls)
    return done


def _call(part: Part, group: Group, occasion: Occasion) -> Calls | Fault:
    """One part on a group. A Fault closes what was begun."""
    signature, values, contexts = part.signature, list[object](), list[Context]()
    whole = signature.form in ("group", "trl")
    sample: int | None = None
    try:
        if signature.plain and "context" not in signature.names:
            function, prompt = part.function, group.prompt
            for trajectory in group.trajectories:
                sample = trajectory.key.sample
                values.append(function(prompt, trajectory))
            return Calls(part=part, whole=False, values=values, contexts=contexts)
        for trajectory in (None,) if whole else group.trajectories:
            sample = None if trajectory is None else trajectory.key.sample
            context = Context(occasion, group)
            contexts.append(context)
            values.append(part.function(**_arguments(part, group, trajectory, context)))
    except BaseException as error:  # noqa: BLE001 - becomes a Fault, for the policy; a Rust panic or an exit too
        _close(values)
        return fault_of(sample, error)
    return Calls(part=part, whole=whole, values=values, contexts=contexts)


def _arguments(part: Part, group: Group, trajectory: Trajectory | None, context: Context) -> dict[str, object]:
    """What is passed by name."""
    names, prompt = part.signature.names, group.prompt
    if part.signature.form == "trl":
        return _trl(part, group, context)
    if trajectory is not None and part.signature.form == "verl":
        given = _verl(prompt, trajectory)
    else:
        given = {"prompt": prompt, "trajectory": trajectory, "context": context}
        given |= {"group": group, "trajectories": group.trajectories}
    return {name: given[name] for name in names}


def _verl(prompt: Prompt, trajectory: Trajectory) -> dict[str, object]:
    data = prompt.data
    model = data.get("reward_model")
    if isinstance(model, Mapping) and "ground_truth" in model:
        truth = model["ground_truth"]
    elif "ground_truth" in data or "answer" in data:
        truth = data["ground_truth"] if "ground_truth" in data else data["answer"]
    else:
        raise RewardError(
            f"the prompt {prompt.uid!r} has no ground truth. Give every prompt reward_model.ground_truth, ground_truth "
            "or answer."
        )
    return {
        "data_source": data.get("data_source"),
        "solution_str": trajectory.text,
        "ground_truth": truth,
        "extra_info": data.get("extra_info"),
    }


def _trl(part: Part, group: Group, context: Context) -> dict[str, object]:
    """Lists as long as the group: a conversational prompt gives lists of messages, any other gives strings."""
    prompt, size, signature = group.prompt, len(group.trajectories), part.signature
    missing = sorted(signature.required - prompt.data.keys())
    if missing:
        raise RewardError(
            f"the prompt {prompt.uid!r} has no {', '.join(missing)}, which the reward takes as a column. Give every "
            "prompt one, or the parameter a default."
        )
    asked: object = prompt.text
    written: list[object] = [t.text for t in group.trajectories]
    if prompt.messages is not None:
        asked = [_message(message) for message in prompt.messages]
        written = [[{"role": "assistant", "content": text}] for text in written]
    given: dict[str, object] = {name: [value] * size for name, value in prompt.data.items()}
    given |= {
        "prompts": [asked] * size,
        "completions": written,
        "completion_ids": [t.token_ids_T[len(prompt.token_ids) :].tolist() for t in group.trajectories],
        "trainer_state": TrainerState(context),
        "log_metric": context.log,
    }
    return {name: value for name, value in given.items() if signature.rest or name in signature.names}


def _message(message: Message) -> dict[str, Json]:
    return {"role": message.role, "content": message.content}


# --- waiting -------------------------------------------------------------------------------------------------------


async def settle(rewards: Rewards, called: Sequence[Calls], group: Group) -> list[Calls] | Fault:
    """Wait for the awaitables, all at the same time. The first failure, by part and sibling, is the one told."""
    waits = [_wait(value, _sample(calls, index, group)) for calls in called for index, value in enumerate(calls.values)]
    settled = iter(await asyncio.gather(*waits))
    done: list[Calls] = []
    for calls in called:
        values = [next(settled) for _ in calls.values]
        fault = next((value for value in values if isinstance(value, Fault)), None)
        if fault is not None:
            return _of_part(rewards, calls.part, fault)
        done.append(Calls(part=calls.part, whole=calls.whole, values=values, contexts=calls.contexts))
    return done


def _sample(calls: Calls, index: int, group: Group) -> int | None:
    return None if calls.whole else group.trajectories[index].key.sample


async def _wait(value: object, sample: int | None) -> object:
    if not inspect.isawaitable(value):
        return value
    try:
        return await cast("Awaitable[object]", value)
    except GeneratorExit:
        raise
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        return fault_of(sample, error)


def _close(values: Sequence[object]) -> None:
    """Let go of coroutines that nobody will wait for."""
    for value in values:
        if inspect.iscoroutine(value):
            value.close()


# --- reading -------------------------------------------------------------------------------------------------------


def read_answer(rewards: Rewards, called: Sequence[Calls], group: Group) -> Answer | Fault:
    """The scores and notes of every sibling."""
    first = called[0]
    if not rewards.named and not first.whole and not first.contexts:
        return _read_plain(rewards, first.values, group)
    columns: list[list[object]] = []
    logs: list[list[Mapping[str, list[float]] | None]] = []
    for calls in called:
        try:
            values = siblings_of(calls.part, calls.values[0], group) if calls.whole else calls.values
        except BaseException as error:  # noqa: BLE001 - a value of the user's own type may raise anything
            return _of_part(rewards, calls.part, fault_of(None, error))
        columns.append(values)
        # What a call on the whole group logged is kept with the first sibling.
        padding = [None] * (len(values) - len(calls.contexts))
        logs.append([*(context.logged for context in calls.contexts), *padding])
    rows, notes = list[Scores](), list[Notes]()
    for index, trajectory in enumerate(group.trajectories):
        try:
            row, note = read_parts(rewards, [c[index] for c in columns], [log[index] for log in logs])
        except BaseException as error:  # noqa: BLE001 - a value of the user's own type may raise anything
            return fault_of(trajectory.key.sample, error)
        rows.append(row)
        notes.append(note)
    return Answer(rows=rows, notes=notes if any(notes) else ())


def _read_plain(rewards: Rewards, values: Sequence[object], group: Group) -> Answer | Fault:
    rows = list[Scores]()
    for value, trajectory in zip(values, group.trajectories, strict=True):
        try:
            rows.append(read_one(rewards, value))
        except BaseException as error:  # noqa: BLE001 - a value of the user's own type may raise anything
            return fault_of(trajectory.key.sample, error)
    return Answer(rows=rows)


def _of_part(rewards: Rewards, part: Part, fault: Fault) -> Fault:
    """The fault with the name of the part it happened in, where there are several."""
    if not rewards.named:
        return fault
    return Fault(cause=f"its part {part.name!r}: {fault.cause}", sample=fault.sample, traceback=fault.traceback)
