"""Recipes for audits: a dozen questions, no model unless asked for."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.api.audit.auditing import AuditOptions, audit
from stretto.api.audit.findings import AuditReport
from stretto.config.load import recipe_from_mapping
from stretto.config.recipe import Recipe
from stretto.runtime.build import Given

QUESTIONS = [
    {"prompt": f"is it {name} or other {i}? ", "answer": name}
    for i, name in enumerate(("City", "cityburg", "cityham") * 4)
    for name in [f"{name}{i}"]
]


def make_recipe(overrides: tuple[str, ...] = (), **sections: object) -> Recipe:
    """A recipe over given prompts on fakes."""
    tree: dict[str, object] = {
        "steps": 3,
        "prompts": {"type": "python", "held_out": 0.0},
        "sampling": {"n": 4, "max_tokens": 32},
        "schedule": {"groups_per_step": 4},
        "engine": {"type": "fake"},
        "backend": {"type": "fake"},
        **sections,
    }
    return recipe_from_mapping(tree, overrides)


@pytest.fixture
def recipe_of() -> Callable[..., Recipe]:
    """``recipe_of(overrides, **sections)``."""
    return make_recipe


@pytest.fixture
def questions() -> list[dict[str, str]]:
    """The prompts."""
    return [dict(question) for question in QUESTIONS]


@pytest.fixture
def audited(monkeypatch: pytest.MonkeyPatch) -> Callable[..., AuditReport]:
    """``audited(reward, *overrides, prompts=...)``: the audit of a reward of ``broken_rewards``."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.delitem(sys.modules, "broken_rewards", raising=False)

    def run(reward: str, *overrides: str, prompts: object = None, **options: object) -> AuditReport:
        use = reward if reward == "exact_match" else f"broken_rewards:{reward}"
        recipe = make_recipe((f"reward.use={use}", *overrides))
        settings = AuditOptions(**{"model": False, **options})  # type: ignore[arg-type]
        given = Given(prompts=QUESTIONS if prompts is None else prompts)
        return audit(recipe, hint="questions", given=given, options=settings)

    return run
