"""``stretto.train``: every argument is heeded."""

import pytest

import stretto

FAKE = {
    "engine": {"type": "fake"},
    "backend": {"type": "fake"},
    "schedule": {"groups_per_step": 2},
    "sampling": {"n": 2, "max_tokens": 3},
    "steps": 1,
}


def first_digit(prompt: stretto.Prompt, trajectory: stretto.Trajectory) -> float:
    return float(trajectory.token_ids_T[-1] % 2)


@pytest.mark.parametrize(
    "prompts",
    [
        None,
        {"type": "builtin", "name": "addition", "max": 9},
        [f"{a}+1=" for a in range(100)],
        lambda: (f"{a}+1=" for a in range(100)),
    ],
    ids=["none", "section", "list", "function"],
)
def test_held_out_is_heeded_whatever_the_prompts(tmp_path, monkeypatch, prompts):
    # pitfall 25
    monkeypatch.chdir(tmp_path)
    run = stretto.train("grpo", prompts=prompts, reward=first_digit, held_out=0.05, **FAKE)
    assert [e.body.n for e in run.evals] == ([5, 5] if prompts is not None else [500, 500])


def test_given_prompts_are_all_trained_on_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = stretto.train("grpo", prompts=["1+1=", "2+2="], reward=first_digit, **FAKE)
    assert run.evals == []
    assert {group.prompt.text for group in run.samples()} == {"1+1=", "2+2="}
