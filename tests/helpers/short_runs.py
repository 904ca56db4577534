"""Runs that open everything in a fraction of a second, and what watches how it is opened and closed."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stretto.config.load import recipe_from_mapping
from stretto.config.recipe import Recipe
from stretto.runtime.disposer import Disposer
from stretto.types import Prompt, Trajectory

FAKES = {"engine": {"type": "fake"}, "backend": {"type": "fake", "lr": 0.1}}
REAL = {"engine": {"type": "native", "slots": 8}, "backend": {"type": "torch", "lr": 1e-3, "threads": 1}}
SCHEDULES: dict[str, dict[str, object]] = {
    "on-policy": {"max_staleness": 0},
    "one step ahead": {"max_staleness": 1},
    "in flight": {"max_staleness": 2, "in_flight": "keep", "deterministic": False},
}
ENVIRONMENT = {"use": f"{__name__}:Echo", "on_length": "reply", "max_total_tokens": 32, "max_turns": 2}


def by_tokens(prompt: Prompt, trajectory: Trajectory) -> float:
    """A reward that differs within a group."""
    return float(trajectory.token_ids_T.sum() % 7)


class Echo:
    """An environment that replies once."""

    def __init__(self, prompt: Prompt) -> None:
        self.heard = ""

    def start(self) -> str:
        return "1"

    def reply(self, text: str) -> str | None:
        first, self.heard = not self.heard, text or " "
        return "2" if first else None

    def score(self) -> float:
        return float(len(self.heard) % 3)


def recipe_of(folder: Path, name: str, devices: dict[str, Any] = FAKES, **changes: object) -> Recipe:
    """Warm-up, main phase, a second evaluation set with a reward of its own; ``workers`` 0 unless it is changed."""
    tree: dict[str, Any] = {
        "runs_dir": str(folder),
        "name": name,
        "steps": 4,
        "prompts": {"type": "builtin", "name": "addition", "max": 4},
        "warmup": {"max_steps": 2, "groups_per_step": 3, "lr": 1e-3, "evaluate": {"every": 1, "limit": 2}},
        "schedule": {"groups_per_step": 3},
        "sampling": {"n": 2, "max_tokens": 4},
        "reward": {"use": f"{__name__}:by_tokens", "workers": 0},
        "evaluate": {
            "every": 2,
            "limit": 4,
            "sets": {
                "second": {
                    "prompts": {"type": "builtin", "name": "addition", "max": 3},
                    "reward": {"use": f"{__name__}:by_tokens", "workers": 0},
                }
            },
        },
        "save": {"every": 1},
        **devices,
    }
    for key, value in changes.items():
        tree[key] = {**tree[key], **value} if isinstance(value, dict) and isinstance(tree.get(key), dict) else value
    return recipe_from_mapping(tree)


def in_processes(environment: bool) -> dict[str, Any]:
    """Changes by which rewards, or rewards and an environment, live in processes."""
    judged = {"use": f"{__name__}:by_tokens", "workers": 2}
    if environment:
        return {
            "environment": ENVIRONMENT,
            "reward": {"use": "environment", "workers": 1},
            "warmup": None,
            "evaluate": {"sets": {}},
        }
    second = {"prompts": {"type": "builtin", "name": "addition", "max": 3}, "reward": {**judged, "workers": 1}}
    return {"reward": judged, "evaluate": {"sets": {"second": second}}}


class Watched:
    """Every registration with a disposer, in order, and every close; one of them may be made to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.closed: list[int] = []
        self._owners: list[Disposer] = []
        self.before: int | None = None
        self.after: int | None = None
        self.at_close: Sequence[int] = ()
        self.failure: Exception = RuntimeError("on purpose")
        own = Disposer.own

        def watched(disposer: Disposer, name: str, resource: Any, close: Callable[[], Any], **more: Any) -> Any:
            index = len(self.opened)
            if index == self.before:
                raise self.failure
            self.opened.append(name)
            self._owners.append(disposer)
            own(disposer, name, resource, self._closing(index, close), **more)
            if index == self.after:
                raise self.failure
            return resource

        monkeypatch.setattr(Disposer, "own", watched)

    def _closing(self, index: int, close: Callable[[], Any]) -> Callable[[], Any]:
        def failing() -> None:
            self.closed.append(index)
            if index in self.at_close:
                raise OSError(f"close {index}")

        async def in_loop() -> None:
            await close()
            failing()

        def in_thread() -> None:
            close()
            failing()

        return in_loop if inspect.iscoroutinefunction(close) else in_thread

    def check(self) -> None:
        """All that was opened was closed, once, what one disposer owned in reverse order."""
        assert sorted(self.closed) == list(range(len(self.opened))), (self.opened, self.closed)
        for owner in self._owners:
            closed = [index for index in self.closed if self._owners[index] is owner]
            assert closed == sorted(closed, reverse=True), (self.opened, self.closed)


def first_cause(failure: BaseException) -> BaseException:
    """The end of the chain of causes."""
    while failure.__cause__ is not None:
        failure = failure.__cause__
    return failure
