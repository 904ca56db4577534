"""Lays one recipe mapping over another. Mappings merge key by key, everything else is replaced.

A section that is a choice keeps only what its new ``type`` knows when a layer above changes the type.
"""

from collections.abc import Mapping
from typing import Any

from stretto.config.base import Section
from stretto.config.fields import SectionType, as_mapping, is_by_step, section_by_name, sections_of, variant_of
from stretto.config.recipe import Recipe

__all__ = ["drop_unknown", "merge"]


def merge(base: Mapping[str, Any], over: Mapping[str, Any], model: SectionType | None = Recipe) -> dict[str, Any]:
    """``over`` laid over ``base``; ``model`` is the section both describe (None: free keys)."""
    merged = dict(base)
    for key, value in over.items():
        below, above = as_mapping(merged.get(key)), as_mapping(value)
        if below is None or above is None or (model is not None and is_by_step(key, model)):
            merged[key] = value
            continue
        section: SectionType | None = None
        field = model.model_fields.get(key) if model is not None else None
        if field is not None and sections_of(field):
            new = above.get("type", below.get("type"))
            below = drop_unknown(below, new, sections_of(field), field.default)
            section = next((s for s in sections_of(field) if variant_of(s) == (new or "")), sections_of(field)[0])
        by_name = section_by_name(field) if field is not None else None
        if by_name is not None:
            own = {name: (as_mapping(below.get(name)), as_mapping(item)) for name, item in above.items()}
            both = {name: merge(b, a, by_name) for name, (b, a) in own.items() if b is not None and a is not None}
            merged[key] = {**below, **above, **both}
        else:
            merged[key] = merge(below, above, section)
    return merged


def drop_unknown(
    below: Mapping[str, Any], new: object, sections: tuple[SectionType, ...], default: object
) -> dict[str, Any]:
    """``below`` without the keys that its own type knows and the type ``new`` does not.

    Keys that neither knows stay, so that they are reported. So does everything if ``new`` is no known type.
    """
    known = {variant_of(s): s.model_fields.keys() for s in sections}
    fallback = variant_of(type(default) if isinstance(default, Section) else sections[0])
    old = below.get("type", fallback)
    if not isinstance(new, str) or new == old or new not in known or old not in known:
        return dict(below)
    return {key: value for key, value in below.items() if key in known[new] or key not in known[old]}
