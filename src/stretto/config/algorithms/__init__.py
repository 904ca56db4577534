"""Settings of the algorithms: one model per ``algorithm.type``, and the parts they are made of."""

from stretto.config.algorithms.aggregation import Aggregation, EmptyRows, check_aggregation
from stretto.config.algorithms.losses import LossKlKind, LossTerms, PolicyLoss, loss_ref
from stretto.config.algorithms.named import Algorithm, GrpoConfig, KlKind, PpoConfig, Proximal, SftConfig

__all__ = [
    "Aggregation",
    "Algorithm",
    "EmptyRows",
    "GrpoConfig",
    "KlKind",
    "LossKlKind",
    "LossTerms",
    "PolicyLoss",
    "PpoConfig",
    "Proximal",
    "SftConfig",
    "check_aggregation",
    "loss_ref",
]
