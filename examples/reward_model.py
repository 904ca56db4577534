"""From preferences to a policy: a reward model learns which of two answers is better, then GRPO learns from it.

Nobody says what is good here, only which of two answers is (the one with more vowels, but the models are not told).
"""

import random

import stretto

PROMPTS = ["say ", "sing ", "hum ", "howl "]
LETTERS = [chr(code) for code in range(32, 127)]


def vowels(text: str) -> int:
    return sum(c in "aeiou" for c in text)


def pair(rng: random.Random) -> dict[str, str]:
    """A prompt with two answers, the better one as ``chosen``."""
    answers = ["".join(rng.choices([*LETTERS, *"aeiou" * 4], k=8)) for _ in range(2)]
    rejected, chosen = sorted(answers, key=vowels)
    return {"prompt": rng.choice(PROMPTS), "chosen": chosen, "rejected": rejected}


rng = random.Random(0)
judge = stretto.train(
    "reward-model",
    prompts=[pair(rng) for _ in range(1200)],
    held_out=0.1,
    epochs=1,
    schedule={"groups_per_step": 24},
    backend={"lr": 5e-4, "threads": 1},
    name="judge",
)
print(
    f"held-out pairs the right way round: {judge.evals[0].body.accuracy:.2f}, then {judge.evals[-1].body.accuracy:.2f}"
)

run = stretto.train(
    "grpo",
    prompts=PROMPTS,
    reward={"use": "reward_model", "with": {"path": str(judge.path / "model")}},
    steps=25,
    sampling={"n": 8, "max_tokens": 8},
    schedule={"groups_per_step": 4},
    backend={"lr": 1e-3, "threads": 1},
    name="judged",
)
samples = [vowels(t.text) for group in run.samples() for t in group.trajectories]
first, last = samples[:128], samples[-128:]
print(f"vowels in eight characters: {sum(first) / len(first):.1f}, then {sum(last) / len(last):.1f}")
