"""A loop of your own: the parts of a run in your hands, one call each.

This one picks what it trains on: of twelve prompts it rolls out a few attempts each, keeps the four on which rewards
differ most, and leaves the rest for later. The update, too, is its own.
"""

import numpy as np

import stretto
from stretto.algorithms.advantages import group_credit
from stretto.algorithms.losses import Tokens


def surrogate(tokens: Tokens):
    """The plain policy gradient."""
    return tokens.weighted_sum(-tokens.column("advantages") * tokens.policy_logprobs())


def starts_like_the_prompt(prompt, trajectory):
    """Letters written that are the prompt's first one."""
    return trajectory.text.count(prompt.text[0]) / 8


def spread(group):
    return np.std([t.reward for t in group.trajectories])


words = ["say", "sing", "hum", "howl", "mumble", "recite", "chant", "tell", "whisper", "shout", "read", "ask"]
settings = {"prompts": words, "reward": starts_like_the_prompt, "sampling": {"max_tokens": 8}, "backend": {"lr": 1e-3}}

with stretto.session("grpo", **settings) as s:
    for step in range(60):
        groups = s.rollout(s.prompts(12), n=8)
        hard = sorted(groups, key=spread)[-4:]
        batch = stretto.Batch(groups=tuple(hard))
        credit = group_credit(batch)
        report = s.update(batch, credit.advantages, loss=surrogate)
        s.publish()
        if step % 10 == 9:
            mean = np.mean([t.reward for g in groups for t in g.trajectories])
            gap = report.metrics["sampler_gap_max"].value
            print(f"step {step + 1}: mean reward {mean:.3f}, sampler against trainer {gap:.0e}")
    s.export("policy")
print("the policy lies in ./policy, an ordinary Hugging Face folder")
