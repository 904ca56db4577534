"""Settings of the algorithms: one model per ``algorithm.type``, and the parts they are made of."""

from stretto.config.algorithms.named import (
    Aggregation,
    Algorithm,
    GrpoConfig,
    KlKind,
    PpoConfig,
    Proximal,
    SftConfig,
)

__all__ = ["Aggregation", "Algorithm", "GrpoConfig", "KlKind", "PpoConfig", "Proximal", "SftConfig"]
