"""Every algorithm on the real tiny model: it trains, it repeats, and any step of it can be resumed to the same bits."""

from pathlib import Path

import pytest

from stretto.api import resume, start
from stretto.config.algorithms import ALGORITHMS
from stretto.config.load import recipe_from_mapping
from stretto.store import RunView

TINY = {
    "prompts": {"type": "builtin", "name": "addition", "max": 9, "held_out": 0.0},
    "reward": {"use": "python:vowels", "workers": 0},
    "sampling": {"n": 4, "max_tokens": 4},
    "engine": {"slots": 16, "threads": 1},
    "backend": {"lr": 1e-3, "threads": 1},
    "schedule": {"groups_per_step": 3},
    "evaluate": {"at_start": False, "at_end": False},
}
ON_REWARDS = sorted(name for name, model in ALGORITHMS.items() if hasattr(model, "estimator"))
STATEFUL = {
    "critic warm-up": {"type": "ppo", "critic_warmup": 2, "minibatches": 2},
    "adaptive KL in the loss": {"type": "grpo", "kl_coef": 0.2, "kl_target": 0.01, "kl_horizon": 50},
    "adaptive KL in the reward": {"type": "rloo", "kl_coef": 0.2, "kl_target": 0.01, "kl_horizon": 50},
    "a reference that is refreshed": {"type": "grpo", "kl_coef": 0.2, "reference_every": 2, "update_epochs": 2},
    "covariance": {"type": "composed", "policy_loss": {"type": "clip_cov", "cov_min": -9.0, "max_fraction": 0.2}},
}


def train(algorithm: dict, **more: object) -> RunView:
    from stretto.runtime.build import Given

    recipe = recipe_from_mapping({"algorithm": algorithm, **TINY, **more})
    return start(recipe, given=Given(reward=lambda prompt, t: sum(c in "aeiou13579" for c in t.text) / 4))


def figures(view: RunView) -> list[dict[str, float]]:
    """The metrics of every step, without times."""
    steps = [e.body.metrics for e in view.events if e.kind == "step"]
    return [{k: v for k, v in metrics.items() if not k.startswith("time/")} for metrics in steps]


def weights(view: RunView) -> bytes:
    return (view.path / "model" / "model.safetensors").read_bytes()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ON_REWARDS)
def test_an_algorithm_trains_and_its_first_update_is_on_policy(name):
    # pitfall 18
    algorithm = {"type": name, **({"critic_warmup": 0} if name == "vapo" else {})}
    view = train(algorithm, steps=2)
    first, last = figures(view)
    assert last["updates/skipped"] == 0
    assert last["grad_norm"] > 0
    if "clip_frac" in first:
        assert first["clip_frac"] == 0
        assert first["approx_kl"] == 0
    assert first["sampler_gap_max"] < 2e-4


@pytest.mark.parametrize("what", STATEFUL)
def test_any_step_can_be_resumed_to_the_same_bits(what):
    # pitfalls 8, 36
    from stretto.runtime.build import Given

    algorithm, save = STATEFUL[what], {"every": 1, "keep_last": 9}
    whole = train(algorithm, steps=5, name="whole", save=save)
    for stop in (1, 3):
        part = train(algorithm, steps=stop, name=f"part-{stop}", save=save)
        given = Given(reward=lambda prompt, t: sum(c in "aeiou13579" for c in t.text) / 4)
        part = resume(part.path, ["steps=5"], given=given)
        assert figures(part) == figures(whole), (what, stop)
        assert weights(part) == weights(whole), (what, stop)


def test_the_state_that_is_resumed_is_there():
    shown = figures(train(STATEFUL["critic warm-up"], steps=3, name="a"))
    assert [m.get("frozen", 0.0) for m in shown] == [1.0, 1.0, 0.0]
    shown = figures(train(STATEFUL["adaptive KL in the loss"], steps=4, name="b"))
    assert len({m["kl_coef"] for m in shown}) == 4
    shown = figures(train(STATEFUL["a reference that is refreshed"], steps=3, name="c"))
    # After two steps the reference is the policy again.
    assert shown[1]["ref_kl"] > shown[2]["ref_kl"]
