"""An algorithm of your own: advantages and a loss, each a plain function, put into a workflow.

The advantage is the rank of an attempt among its siblings, so that only the order of rewards matters. The loss is
REINFORCE with a bonus for entropy. A loss is a weighted sum over written tokens: the weights carry the denominators.
"""

import numpy as np

import stretto
from stretto.algorithms.aggregation import aggregation_weights
from stretto.algorithms.losses import Tokens
from stretto.workflows.nodes import collect, report, rollout, score


def reinforce(tokens: Tokens, *, entropy: float = 0.0):
    """``-A log p`` less an entropy bonus, summed over the tokens of a micro-batch."""
    loss_N = -tokens.column("advantages") * tokens.policy_logprobs() - entropy * tokens.entropy_N
    return tokens.weighted_sum(loss_N)


@stretto.node
def by_rank(batch: stretto.Batch) -> stretto.Credit:
    """-1 for the worst sibling to 1 for the best, in equal steps; equals share the mean of their ranks."""
    advantage = {}
    for group in batch.groups:
        rewards_G = np.array([t.reward for t in group.trajectories])
        below_G = (rewards_G[None] < rewards_G[:, None]).sum(1) - (rewards_G[None] > rewards_G[:, None]).sum(1)
        advantage |= {t.key: a for t, a in zip(group.trajectories, below_G / (len(rewards_G) - 1), strict=True)}
    values = np.concatenate([advantage[t.key] * t.mask_T for t in batch.trajectories]).astype(np.float32)
    return stretto.Credit(advantages=stretto.Column.per_token("advantages", batch, values))


@stretto.node
def learn_by(
    batch: stretto.Batch, credit: stretto.Credit, model: stretto.Train, *, entropy: float = 0.0
) -> stretto.UpdateReport:
    """One update of the policy by ``reinforce``."""
    columns = (credit.advantages, aggregation_weights(batch, "seq_mean_token_mean"))
    loss = stretto.LossRef(use="reinforce", function=reinforce, settings={"entropy": entropy})
    return model.learn(batch, columns, loss)


@stretto.workflow
def ranked(prompt: stretto.Prompt, *, n: int = 8, entropy: float = 0.002) -> stretto.StepReport:
    """Roll out, judge, rank, learn."""
    batch = collect(score(rollout(prompt, n=n)))
    return report(learn_by(batch, by_rank(batch), entropy=entropy))


def vowels(prompt, trajectory):
    return sum(c in "aeiou" for c in trajectory.text) / max(len(trajectory.text), 1)


small = {"sampling": {"max_tokens": 8}, "schedule": {"groups_per_step": 4}, "backend": {"lr": 1e-3, "threads": 1}}
run = stretto.train(ranked, prompts=["say ", "sing ", "hum ", "howl "], reward=vowels, steps=40, **small)
print("mean reward, every fifth step:", " ".join(f"{v:.2f}" for _, v in run.history("reward/mean")[::5]))
