"""Which settings act: every field of every estimator and loss changes what comes out, or is named as inert.

The rules are what refuses a setting without effect at the start of a run (``test_unread.py``). Pitfall 25.
"""

from collections.abc import Iterator
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch

from stretto.algorithms.advantages import gae_credit, group_credit
from stretto.algorithms.covariance import selection_column
from stretto.algorithms.losses import LOSSES, Tokens
from stretto.config.algorithms import Advantages, GaeConfig, LossTerms, PolicyLoss, loss_ref
from stretto.config.algorithms.inert import inert_of_part
from stretto.config.algorithms.losses import ClipCovLoss, KlCovLoss
from stretto.config.base import Section
from stretto.config.fields import choices, takes_bool
from stretto.types import Batch, Column, Group, Key, Prompt, Trajectory

ESTIMATORS = [*get_args(get_args(Advantages)[0]), GaeConfig]
POLICY_LOSSES = list(get_args(get_args(PolicyLoss)[0]))
WORDS = {"lam": 0.5, "lam_value": 0.3, "weights": {"a": 1.0, "b": 0.2}, "length_alpha": 0.3}
"""Values of fields that are null or empty by default; ``length_alpha`` takes the place of ``lam``."""


def settings_of(model: type[Section]) -> Iterator[Section]:
    """A model with every combination of its words and flags."""
    names = [name for name, f in model.model_fields.items() if name != "type" and (choices(f) or takes_bool(f))]
    values = [choices(model.model_fields[name]) or (False, True) for name in names]
    for combination in product(*values):
        yield model(**dict(zip(names, combination, strict=True)))


def changed(part: Section, name: str) -> Iterator[Section]:
    """The part with other values of a field, where there are valid ones."""
    value, field = getattr(part, name), type(part).model_fields[name]
    if choices(field):
        others: list[object] = [c for c in choices(field) if c != value]
    elif takes_bool(field):
        others = [not value]
    elif name in WORDS:
        others = [WORDS[name]]
    elif value is None:
        others = [1.5]
    else:
        others = [value / 40, value / 2, value + 0.5, value + 1.0, value + 100.0]
    for other in others:
        given = {**part.model_dump(), name: other, **({"lam": None} if name == "length_alpha" else {})}
        try:
            yield type(part)(**given)
        except ValueError:
            continue


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Groups of one to twelve attempts, one of them without a difference, one without a right attempt."""
    rng = np.random.default_rng(3)
    rewards = [[0.7], [0.2, 0.2, 0.2], [0.0, 1.0, 0.3, 0.9], [0.0, 0.0], [0.5, 0.5005], list(rng.random(12))]
    groups, prompt = [], Prompt(uid="p", text="p", token_ids=np.zeros(1, np.int32))
    for draw, row in enumerate(rewards):
        attempts = []
        for sample, reward in enumerate(row):
            length = int(rng.integers(3, 9))
            named = {"a": reward, "b": float(rng.normal())}
            attempts.append(
                Trajectory(
                    key=Key(draw, sample),
                    token_ids_T=np.zeros(length, np.int32),
                    mask_T=np.ones(length, np.uint8),
                    logprobs_T=-rng.random(length).astype(np.float32),
                    versions=(),
                    finish="stop",
                    reward=reward,
                    rewards=named,
                )
            )
        groups.append(Group(draw=draw, prompt=prompt, trajectories=tuple(attempts)))
    return Batch(groups=tuple(groups))


def with_greedy(batch: Batch) -> Batch:
    groups = []
    for group in batch.groups:
        first, *rest = group.trajectories
        marked = Trajectory(**{f: getattr(first, f) for f in first.__slots__} | {"info": {"greedy": True}})
        groups.append(Group(draw=group.draw, prompt=group.prompt, trajectories=(marked, *rest)))
    return Batch(groups=tuple(groups))


def credit(batch: Batch, estimator: Section) -> np.ndarray:
    if isinstance(estimator, GaeConfig):
        values = np.random.default_rng(4).normal(size=batch.num_tokens)
        made = gae_credit(batch, Column.per_token("old_values", batch, values), estimator)
        assert made.returns is not None
        return np.concatenate([made.advantages.values, made.returns.values])
    return group_credit(with_greedy(batch) if estimator.type == "remax" else batch, estimator).advantages.values


@pytest.mark.parametrize("model", ESTIMATORS, ids=lambda m: m.__name__)
def test_every_setting_of_an_estimator_acts_or_is_inert(model, batch):
    acting = set()
    for part in settings_of(model):
        before, inert = credit(batch, part), inert_of_part(part)
        for name in set(model.model_fields) - {"type"}:
            others = [credit(batch, other) for other in changed(part, name)]
            acts = any(not np.array_equal(before, after) for after in others)
            assert acts != (name in inert), (part, name)
            acting |= {name} if acts else set()
    assert acting == set(model.model_fields) - {"type"}


def tokens(batch: Batch, part: Section) -> Tokens:
    """Tokens far from their old and sampled log-probs, so that every bound is met from either side."""
    rng = np.random.default_rng(5)
    n = batch.num_written
    drawn = lambda spread: torch.from_numpy(spread * rng.normal(size=n))  # noqa: E731
    logprobs = -drawn(2.0).abs() - 0.01
    columns = {"old_logprobs": logprobs + drawn(1.5), "ref_logprobs": logprobs + drawn(2.0), "advantages": drawn(1.0)}
    columns["old_logprobs"][:3] -= 30.0
    columns["imitate"] = torch.full((n,), 0.1)
    if isinstance(part, ClipCovLoss | KlCovLoss):
        made = {name: Column.per_token(name, batch, columns[name].numpy()) for name in ("advantages", "old_logprobs")}
        current = Column.per_token("logprobs", batch, logprobs.numpy())
        found = selection_column(batch, current, made["advantages"], part, old=made["old_logprobs"])
        columns["selected"] = torch.from_numpy(np.asarray(found.values, np.float64))
    return Tokens(
        weights_N=torch.full((n,), 1.0 / n, dtype=torch.float64),
        sampler_logprobs_N=torch.cat([logprobs[:3] - 25.0, (logprobs + drawn(1.0))[3:]]).clamp(max=-0.01),
        sampled_N=torch.ones(n, dtype=torch.bool),
        rows_N=torch.from_numpy(np.repeat(np.arange(len(batch.keys)), np.diff(batch.offsets))),
        num_rows=len(batch.keys),
        columns=columns,
        logprobs_N=logprobs.requires_grad_(),
        entropy_N=logprobs.detach().exp(),
    )


def loss(batch: Batch, part: Section, terms: LossTerms) -> np.ndarray:
    given = tokens(batch, part)
    ref = loss_ref(part, terms)
    out = LOSSES[ref.use](given, **ref.settings)
    out.total.backward()
    assert given.logprobs_N is not None and given.logprobs_N.grad is not None
    return np.append(given.logprobs_N.grad.numpy(), out.total.item())


@pytest.mark.parametrize("model", POLICY_LOSSES, ids=lambda m: m.__name__)
def test_every_setting_of_a_loss_acts_or_is_inert(model, batch):
    starts = [*settings_of(model), *(model(drift_coef=0.5) for _ in range("drift_coef" in model.model_fields))]
    acting = set()
    for part in starts:
        before, inert = loss(batch, part, LossTerms()), inert_of_part(part)
        for name in set(model.model_fields) - {"type"}:
            acts = any(not np.array_equal(before, loss(batch, o, LossTerms())) for o in changed(part, name))
            assert acts != (name in inert), (part, name)
            acting |= {name} if acts else set()
    assert acting == set(model.model_fields) - {"type"}


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_every_term_of_a_loss_acts_or_is_inert(kl_coef, batch):
    (part,) = settings_of(POLICY_LOSSES[0])
    terms = LossTerms(kl_coef=kl_coef)
    before, inert = loss(batch, part, terms), inert_of_part(terms)
    for name in LossTerms.model_fields:
        acts = any(not np.array_equal(before, loss(batch, part, other)) for other in changed(terms, name))
        assert acts != (name in inert), name
