"""Weights of a folder into Stretto's own decoder, tensor by tensor, as float32; whether weights and config fit."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from stretto.backends.torch.parts import Parts
from stretto.backends.torch.ranks import WHOLE, Cut
from stretto.backends.torch.shards import is_cut, local_of
from stretto.errors import DataError

__all__ = ["check_fit", "load_weights"]

_COMPUTED = ("rotary_emb.inv_freq",)
"""Ends of names that old checkpoints hold and every release computes again."""


def load_weights(parts: Parts, path: str, folder: Path, cut: Cut = WHOLE) -> None:
    """Fill ``parts`` from ``folder``. DataError names a tensor that is missing, unexpected or of another shape.

    Of a Model that is ``cut`` no more is read than this rank's rows.
    A trunk that was saved alone, its names without the trunk's prefix, is read too if the head is tied.
    """
    whole = nn.ModuleDict({parts.trunk_name: parts.trunk, parts.head_name: parts.head})
    wanted = dict(whole.named_parameters(remove_duplicate=False))
    head, prefix = f"{parts.head_name}.weight", f"{parts.trunk_name}."
    embedding = f"{prefix}embed_tokens.weight" if parts.tied else None
    done, odd = set[str](), {"unexpected": list[str](), "mismatched": list[str]()}
    try:
        with torch.no_grad():
            for name, stored in _stored(folder):
                own = name if name in wanted or name.startswith(prefix) else prefix + name
                if own not in wanted:
                    odd["unexpected"].append(name)
                elif list(wanted[own].shape) != stored.get_shape():
                    odd["mismatched"].append(name)
                elif wanted[own].is_meta:
                    pass  # the head of a Model that has another in its place
                elif parts.tied and own in (head, embedding) and {head, embedding} & done:
                    _check_equal(wanted[own], _rows(stored, wanted[own], cut), path)
                else:
                    local_of(wanted[own]).copy_(_rows(stored, wanted[own], cut))
                done.add(own)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise DataError(f"the model in {path!r} cannot be loaded: {error}") from error
    if embedding and {head, embedding} & done:
        done |= {head, embedding}
    check_fit(path, {"missing": wanted.keys() - done, **odd})


def check_fit(path: str, odd: Mapping[str, Collection[str]]) -> None:
    """DataError if any weight is ``missing``, ``unexpected`` or ``mismatched`` (the keys of ``odd``)."""
    for what, names in odd.items():
        if names:
            raise DataError(
                f"the weights in {path!r} do not fit its config.json: {what} {_some(sorted(names))}. "
                "Use a folder whose config and weights belong together."
            )


def _rows(stored: Any, into: Tensor, cut: Cut) -> Tensor:
    """What ``into`` holds of a tensor."""
    start, stop = (cut if is_cut(into) else WHOLE).rows(into.shape[0])
    return stored[start:stop]


def _stored(folder: Path) -> Iterator[tuple[str, Any]]:
    """The tensors of ``model.safetensors``, or of the files that its index names, in a fixed order."""
    for file in _files(folder):
        with safe_open(file, framework="pt") as stored:
            for name in sorted(stored.keys()):
                if not name.endswith(_COMPUTED):
                    yield name, stored.get_slice(name)


def _files(folder: Path) -> list[Path]:
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except FileNotFoundError:
        raise OSError("it has neither model.safetensors nor model.safetensors.index.json") from None
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise OSError(f"its model.safetensors.index.json is no index of weights ({type(error).__name__})") from error
    if stray := sorted(str(name) for name in names if Path(str(name)).name != name):
        raise OSError(f"its model.safetensors.index.json names {stray[0]!r}, which is not a file of the folder")
    return [folder / name for name in sorted(names)]


def _check_equal(held: Tensor, tensor: Tensor, path: str) -> None:
    if not torch.equal(local_of(held), tensor.to(device=held.device, dtype=held.dtype)):
        raise DataError(
            f"the config.json in {path!r} ties the head to the embedding, and its weights hold two that differ. "
            "Set tie_word_embeddings to false there."
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
