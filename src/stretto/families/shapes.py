"""What a plan needs to know of a model, from its ``config.json``, whichever family it is of."""

from collections.abc import Mapping

from stretto.families.decoder import own_decoder
from stretto.families.facts import spelled_alike
from stretto.plan import ModelFacts
from stretto.types import Json

__all__ = ["facts_of"]


def facts_of(config: Mapping[str, Json], *, value_head: bool = False) -> ModelFacts:
    """Shape and parameters of a model; with ``value_head`` of a critic made from it. DataError for one that cannot be
    used."""
    if own_decoder(config) is not None:
        return ModelFacts.from_config(config, value_head=value_head)
    # Only other families need transformers to be looked at, which takes seconds to import.
    from stretto.families.modules import inspect_family, resolve_config

    counted, alike = inspect_family(config).num_parameters, spelled_alike(resolve_config(config).to_dict())
    return ModelFacts.from_config(alike, value_head=value_head, counted=counted)
