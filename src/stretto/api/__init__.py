"""Stretto for programs: start, resume and evaluate runs, look at graphs and plans.

Functions are imported when they are first used, so that ``import stretto`` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.api.audit.auditing import audit
    from stretto.api.bisecting import bisect
    from stretto.api.debugging import debug
    from stretto.api.describing import describe_algorithm
    from stretto.api.graphs import graph_of
    from stretto.api.plans import check
    from stretto.api.prompts import prompts_of
    from stretto.api.runs import evaluate, resume, start
    from stretto.api.training import Run, train

__all__ = [
    "Run",
    "audit",
    "bisect",
    "check",
    "debug",
    "describe_algorithm",
    "evaluate",
    "graph_of",
    "prompts_of",
    "resume",
    "start",
    "train",
]

_HOMES = {
    "Run": "training",
    "train": "training",
    "audit": "audit.auditing",
    "start": "runs",
    "resume": "runs",
    "evaluate": "runs",
    "bisect": "bisecting",
    "check": "plans",
    "debug": "debugging",
    "describe_algorithm": "describing",
    "graph_of": "graphs",
    "prompts_of": "prompts",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"stretto.api.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
