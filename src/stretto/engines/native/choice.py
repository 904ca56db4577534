"""Whose forward runs a model. Owns the choice, nothing of either."""

from collections.abc import Mapping
from typing import Literal

import torch

from stretto.engines.native.forward import Forward
from stretto.engines.native.model import Decoder
from stretto.errors import ConfigError, DataError
from stretto.families.decoder import DecoderSpec
from stretto.types import Json

__all__ = ["Choice", "open_forward"]

Choice = Literal["auto", "native", "hf"]
"""Whose forward: Stretto's own, Hugging Face's, or the first where it can."""


def open_forward(
    hf_config: Mapping[str, Json],
    choice: Choice,
    *,
    max_len: int,
    dtype: torch.dtype,
    device: torch.device,
    head_dtype: torch.dtype | None = None,
) -> Forward:
    """The forward for sequences up to ``max_len``. DataError says why a model cannot be run (by ``choice``)."""
    if choice != "hf":
        try:
            spec = DecoderSpec.from_config(hf_config)
            return Decoder(spec, max_len, dtype, device, head_dtype)
        except DataError:
            if choice == "native":
                raise
    if head_dtype not in (None, dtype):
        raise ConfigError(
            f"engine.head_dtype={str(head_dtype).removeprefix('torch.')} needs Stretto's own forward, and this model "
            "is computed by transformers' code. Leave it out, or set engine.dtype to the same."
        )
    # transformers' modelling code takes a second to import; the own forward does without.
    from stretto.engines.native.hugging_face import HuggingFaceForward

    return HuggingFaceForward(hf_config, dtype, device)
