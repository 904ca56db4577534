"""Stretto post-trains language models with reinforcement learning, from a laptop CPU to a cluster.

What a program needs, under one name: ``train`` and ``resume`` start runs, ``debug`` makes a step of one again,
``session`` opens the parts of one for a loop of your own, ``node`` and ``workflow`` say what a step does, and the rest
are the types that rewards and nodes are annotated with. Everything is imported when it is first used, so that ``import
stretto`` stays quick and loads no torch.

Example::

    import stretto

    def digits(prompt, trajectory):
        return sum(c.isdigit() for c in trajectory.text) / 8

    run = stretto.train("grpo", prompts=["one ", "two "], reward=digits, steps=20, sampling={"max_tokens": 8})
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.api.debugging import debug
    from stretto.api.session import Session, session
    from stretto.api.training import Run, resume, train
    from stretto.errors import StrettoError
    from stretto.graph import node, workflow
    from stretto.roles import Generate, Judge, Score, Tokenize, Train
    from stretto.types import (
        Batch,
        Column,
        Credit,
        Group,
        Key,
        LossRef,
        Message,
        Metric,
        Prompt,
        StepReport,
        Trajectory,
        UpdateReport,
    )

    __version__: str

__all__ = [
    "Batch",
    "Column",
    "Credit",
    "Generate",
    "Group",
    "Judge",
    "Key",
    "LossRef",
    "Message",
    "Metric",
    "Prompt",
    "Run",
    "Score",
    "Session",
    "StepReport",
    "StrettoError",
    "Tokenize",
    "Train",
    "Trajectory",
    "UpdateReport",
    "__version__",
    "debug",
    "node",
    "resume",
    "session",
    "train",
    "workflow",
]

_HOMES = {
    "Batch": "stretto.types",
    "Column": "stretto.types",
    "Credit": "stretto.types",
    "Generate": "stretto.roles",
    "Group": "stretto.types",
    "Judge": "stretto.roles",
    "Key": "stretto.types",
    "LossRef": "stretto.types",
    "Message": "stretto.types",
    "Metric": "stretto.types",
    "Prompt": "stretto.types",
    "Run": "stretto.api.training",
    "Score": "stretto.roles",
    "Session": "stretto.api.session",
    "StepReport": "stretto.types",
    "StrettoError": "stretto.errors",
    "Tokenize": "stretto.roles",
    "Train": "stretto.roles",
    "Trajectory": "stretto.types",
    "UpdateReport": "stretto.types",
    "debug": "stretto.api.debugging",
    "node": "stretto.graph",
    "resume": "stretto.api.training",
    "session": "stretto.api.session",
    "train": "stretto.api.training",
    "workflow": "stretto.graph",
}
"""The module of every public name."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("stretto")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
