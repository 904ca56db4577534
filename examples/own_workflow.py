"""A workflow of your own: a price on repetition, and each sibling compared with the mean of the others.

``charge_repeats`` takes a Group, so it runs per group, while others are still being sampled. ``leave_one_out`` takes
a Batch, so it runs once a step. Where one world ends and the other begins follows from those types.
"""

from dataclasses import replace

import numpy as np

import stretto
from stretto.graph import draw_text
from stretto.workflows.nodes import collect, report, rollout, score, update_policy


@stretto.node
def charge_repeats(group: stretto.Group, *, price: float = 0.1) -> stretto.Group:
    """The group with ``price`` taken from the reward for every character that repeats the one before it."""
    charged = []
    for t in group.trajectories:
        cost = price * sum(a == b for a, b in zip(t.text, t.text[1:], strict=False))
        charged.append(replace(t, rewards={**t.rewards, "repeats": -cost}, reward=(t.reward or 0.0) - cost))
    return replace(group, trajectories=tuple(charged))


@stretto.node
def leave_one_out(batch: stretto.Batch) -> stretto.Credit:
    """REINFORCE leave-one-out (arXiv:2402.14740): a reward less the mean of its siblings', on every written token."""
    advantage = {}
    for group in batch.groups:
        rewards_G = np.array([t.reward for t in group.trajectories])
        others_G = (rewards_G.sum() - rewards_G) / (len(rewards_G) - 1)
        advantage.update({t.key: a for t, a in zip(group.trajectories, rewards_G - others_G, strict=True)})
    values = np.concatenate([advantage[t.key] * t.mask_T for t in batch.trajectories]).astype(np.float32)
    return stretto.Credit(advantages=stretto.Column.per_token("advantages", batch, values))


@stretto.workflow
def varied(prompt: stretto.Prompt, *, n: int = 16, price: float = 0.1) -> stretto.StepReport:
    """Roll out, judge, charge for repetition, learn."""
    group = rollout(prompt, n=n)
    scored = score(group)
    charged = charge_repeats(scored, price=price)
    batch = collect(charged)
    credit = leave_one_out(batch)
    learn = update_policy(batch, credit)
    return report(learn)


def vowels(prompt: stretto.Prompt, trajectory: stretto.Trajectory) -> float:
    """The share of the written characters that are vowels."""
    return sum(c in "aeiou" for c in trajectory.text) / max(len(trajectory.text), 1)


print(draw_text(varied.graph()))
settings = {"sampling": {"max_tokens": 8}, "schedule": {"groups_per_step": 4}, "backend": {"lr": 1e-3, "threads": 1}}
run = stretto.train(varied, prompts=["say ", "sing ", "hum ", "howl "], reward=vowels, steps=32, **settings)
print("mean reward, every fifth step:", " ".join(f"{value:.2f}" for _, value in run.history("reward/mean")[::5]))
print("last:", [t.text for t in run.samples()[-1].trajectories[:4]])
