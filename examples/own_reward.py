"""A reward of your own: from random weights to text that is all vowels.

Any function ``(prompt, trajectory) -> number`` will do. It runs in a process of its own, so it may be slow or break.
"""

import stretto

VOWELS = "aeiou"


def vowels(prompt: stretto.Prompt, trajectory: stretto.Trajectory) -> float:
    """The share of the written characters that are vowels."""
    return sum(c in VOWELS for c in trajectory.text) / max(len(trajectory.text), 1)


run = stretto.train(
    "grpo",
    prompts=["say ", "sing ", "hum ", "howl "],
    reward=vowels,
    steps=40,
    sampling={"n": 8, "max_tokens": 8},
    schedule={"groups_per_step": 4},
    backend={"lr": 1e-3, "threads": 1},
    name="own-reward",
)

rewards = [value for _, value in run.history("reward/mean")]
print("mean reward, every fifth step:", " ".join(f"{value:.2f}" for value in rewards[::5]))
print("first:", [t.text for t in run.samples()[0].trajectories[:3]])
print("last: ", [t.text for t in run.samples()[-1].trajectories[:3]])
