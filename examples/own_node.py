"""A node of your own: roll out many attempts, learn from the few that differ most.

Sampling is cheap and training is not, so ``extremes`` keeps of every group only its best and its worst (as in
"Not All Rollouts are Useful", arXiv:2504.13818). It takes a Group and gives a Group, so it runs per group, while
others are still being sampled; to the rest of the workflow it is just another edge.
"""

from dataclasses import replace

import stretto
from stretto.workflows.nodes import advantages, collect, report, rollout, score, update_policy


@stretto.node
def extremes(group: stretto.Group, *, keep: int = 4) -> stretto.Group:
    """The ``keep`` attempts with the lowest and the highest rewards, half each."""
    by_reward = sorted(group.trajectories, key=lambda t: (t.reward, t.key))
    chosen = {t.key for t in by_reward[: keep // 2] + by_reward[-(keep // 2) :]}
    return replace(group, trajectories=tuple(t for t in group.trajectories if t.key in chosen))


@stretto.workflow
def picky(prompt: stretto.Prompt, *, n: int = 16, keep: int = 4) -> stretto.StepReport:
    """GRPO on the extremes of every group."""
    group = rollout(prompt, n=n)
    scored = score(group)
    kept = extremes(scored, keep=keep)
    batch = collect(kept)
    credit = advantages(batch)
    learn = update_policy(batch, credit)
    return report(learn)


def vowels(prompt: stretto.Prompt, trajectory: stretto.Trajectory) -> float:
    """The share of the written characters that are vowels."""
    return sum(c in "aeiou" for c in trajectory.text) / max(len(trajectory.text), 1)


run = stretto.train(
    picky,
    prompts=["say ", "sing ", "hum ", "howl "],
    reward=vowels,
    steps=40,
    sampling={"max_tokens": 8},
    schedule={"groups_per_step": 4},
    backend={"lr": 1e-3, "threads": 1},
    name="own-node",
)
print("trained on", int(run.history("batch/trajectories")[0][1]), "of", 4 * 16, "attempts a step")
print("mean reward of those, every fifth step:", " ".join(f"{v:.2f}" for _, v in run.history("reward/mean")[::5]))
