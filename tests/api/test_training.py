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


def many_letters(completions, **kwargs):
    return [float(len(text)) for text in completions]


def test_several_functions_are_parts_by_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = stretto.train("grpo", prompts=["1+1=", "2+2="], reward=[first_digit, many_letters], **FAKE)
    t = run.samples()[0].trajectories[0]
    assert set(t.rewards) == {"first_digit", "many_letters"}
    assert t.reward == t.rewards["first_digit"] + t.rewards["many_letters"]


def test_functions_in_a_section_have_weights_and_are_asked_for_on_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def odd(prompt, trajectory):
        return float(trajectory.token_ids_T[-1] % 2)

    parts = {"parts": {"odd": {"use": odd, "weight": 2.0}, "exact": {"use": "exact_match", "weight": 0.5}}}
    prompts = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "2+2=", "answer": "4"}]
    run = stretto.train("grpo", prompts=prompts, reward=parts, **FAKE)
    for t in (t for group in run.samples() for t in group.trajectories):
        assert t.reward == 2 * t.rewards["odd"] + 0.5 * t.rewards["exact"]
    with pytest.raises(stretto.StrettoError, match=r"reward=\.\.\."):
        stretto.resume(run.name, prompts=prompts, overrides=["steps=2"])
    assert stretto.resume(run.name, prompts=prompts, reward=parts, overrides=["steps=2"]).view.steps == 2


def test_two_functions_of_one_name_are_refused():
    with pytest.raises(stretto.StrettoError, match="two rewards called 'first_digit'"):
        stretto.train("grpo", prompts=["1+1="], reward=[first_digit, first_digit], **FAKE)
