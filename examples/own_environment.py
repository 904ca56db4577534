"""An environment of your own: the policy guesses a number in several turns, and learns to listen to the hints.

It is told "<" or ">" after each guess. Any class with ``start()`` and ``reply(text)`` will do; it lives in a process of
its own, so it may be slow or break.
"""

import stretto


class GuessTheNumber:
    """A digit is to be found. Each guess is one character; the episode ends when it is right."""

    def __init__(self, prompt: stretto.Prompt) -> None:
        self.secret = int(prompt.data["answer"])
        self.guesses = 0
        self.right = False

    def start(self) -> None:
        """The prompt has said all there is to say."""

    def reply(self, text: str) -> str | None:
        """A hint, or None when it is over."""
        self.guesses += 1
        if not text.isdigit():
            return "!"
        self.right = int(text) == self.secret
        if self.right:
            return None
        return "<" if self.secret < int(text) else ">"

    def score(self) -> float:
        """1 for a hit at once, less for later ones, 0 for none."""
        return 1.2 - 0.2 * self.guesses if self.right else 0.0


run = stretto.train(
    "grpo",
    prompts=[{"prompt": "guess", "answer": secret} for secret in "1234"],
    environment={"use": GuessTheNumber, "max_turns": 4, "max_total_tokens": 24, "on_length": "reply"},
    reward="environment",
    steps=60,
    sampling={"n": 16, "max_tokens": 1},
    schedule={"groups_per_step": 4},
    backend={"lr": 1e-3, "threads": 1},
    name="own-environment",
)

rewards = [value for _, value in run.history("reward/mean")]
print("mean reward, every tenth step:", " ".join(f"{value:.2f}" for value in rewards[::10]))
for trajectory in run.samples()[-1].trajectories[:3]:
    print([message.content for message in trajectory.messages], trajectory.finish, trajectory.reward)
