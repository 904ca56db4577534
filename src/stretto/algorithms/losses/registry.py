"""The built-in losses by name, and ``resolve_loss``: from a LossRef to a function of Tokens."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from stretto.algorithms.losses.covariance import clip_cov, kl_cov
from stretto.algorithms.losses.divergence import dppo_kl, dppo_tv, dppo_tv_sq, rollout_is_mask, tv_sym_sq
from stretto.algorithms.losses.metrics import policy_metrics, total_of
from stretto.algorithms.losses.pairs import bradley_terry, dpo
from stretto.algorithms.losses.plain import cpgd, gpg, reinforce, sft
from stretto.algorithms.losses.ratio import clip
from stretto.algorithms.losses.sequence import gmpo, gspo, gspo_token
from stretto.algorithms.losses.soft import cispo, sapo, vespo
from stretto.algorithms.losses.teaching import distill
from stretto.algorithms.losses.tokens import Loss, LossOutput, Tokens
from stretto.algorithms.losses.values import value_clip
from stretto.algorithms.names import check_names
from stretto.errors import ConfigError, nearest
from stretto.imports import find_named, is_named
from stretto.types import LossRef

__all__ = ["LOSSES", "resolve_loss"]

LOSSES: Mapping[str, Callable[..., LossOutput]] = {
    "sft": sft,
    "clip": clip,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "cispo": cispo,
    "sapo": sapo,
    "gmpo": gmpo,
    "gpg": gpg,
    "cpgd": cpgd,
    "clip_cov": clip_cov,
    "kl_cov": kl_cov,
    "dppo_tv": dppo_tv,
    "dppo_kl": dppo_kl,
    "dppo_tv_sq": dppo_tv_sq,
    "tv_sym_sq": tv_sym_sq,
    "rollout_is_mask": rollout_is_mask,
    "vespo": vespo,
    "reinforce": reinforce,
    "value_clip": value_clip,
    "dpo": dpo,
    "bradley_terry": bradley_terry,
    "distill": distill,
}
"""The built-in losses by name; those of a policy have the ``type`` of their settings in ``stretto.config``."""


def resolve_loss(ref: LossRef) -> Callable[[Tokens], LossOutput]:
    """The loss that ``ref`` names, with its settings bound. ConfigError names what does not exist.

    A loss of one's own may return the scalar tensor alone.
    """
    function = ref.function or LOSSES.get(ref.use) or _import_loss(ref.use)
    signature = inspect.signature(function)
    known = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in ref.settings:
        if name not in known:
            raise ConfigError(f"the loss {ref.use!r} has no setting {name!r}.{nearest(name, known)}")
    check_names(f"the loss {ref.use!r}", signature, ref.settings)
    if ref.use in LOSSES and ref.function is None:
        return partial(LOSSES[ref.use], **ref.settings)
    return lambda tokens: _as_output(ref.use, function(tokens, **ref.settings), tokens)


def _as_output(use: str, out: object, tokens: Tokens) -> LossOutput:
    """What a loss of one's own returned; a scalar tensor gets the metrics that every policy has."""
    if isinstance(out, LossOutput):
        return out
    if not isinstance(out, Tensor) or out.dim() != 0:
        came = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise ConfigError(
            f"the loss {use!r} returned {came}. Return tokens.weighted_sum(loss_N), or a LossOutput with metrics."
        )
    metrics = {} if tokens.logprobs_N is None else policy_metrics(tokens)
    return LossOutput(total=out, metrics={"loss": total_of(out), **metrics})


def _import_loss(use: str) -> Loss:
    if not is_named(use):
        raise ConfigError(
            f"there is no loss {use!r}.{nearest(use, LOSSES)} A loss of your own is named 'module:function'."
        )
    found = find_named(use, f"the loss {use!r}")
    if not callable(found):
        raise ConfigError(f"the loss {use!r} is a {type(found).__name__}. Name a function (tokens, **settings).")
    return found
