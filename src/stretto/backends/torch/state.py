"""Weights and optimizer state on disk and as a hash: safetensors for tensors, JSON for scalars, equal to the bit.

One file per Model and kind (``policy.safetensors``, ``policy.optimizer.safetensors``), so that a store can link the
files of frozen Models that did not change. No metadata: safetensors writes several keys in a varying order.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stretto.backends.torch.models import Network
from stretto.backends.torch.optimizer import AdamW
from stretto.errors import StoreError
from stretto.types import Json

__all__ = [
    "ModelState",
    "check_base",
    "check_fixed",
    "export_folder",
    "hash_tensors",
    "load_model",
    "load_optimizer",
]


def hash_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """The 128-bit xxh3 (hex) of names, types, shapes and bytes in name order."""
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelState:
    """What a checkpoint holds of one Model: weights (tied ones once, None of a fixed one), moments with their kind and
    each parameter's count of steps (None where it is not trained), and what it knows of weights it does not hold."""

    name: str
    weights: Mapping[str, Tensor] | None
    moments: Mapping[str, Tensor] | None
    kind: str
    steps: Mapping[str, int]
    base: Mapping[str, Json] | None

    def copied(self) -> "ModelState":
        """With memory of its own, on the host: what changes the Model changes it no more."""
        return replace(self, weights=_copied(self.weights), moments=_copied(self.moments))

    def write(self, folder: Path) -> None:
        """Write its files. StoreError with the cause."""
        if self.weights is not None:
            _write(self.weights, folder / f"{self.name}.safetensors")
        if self.base is not None:
            _write_json(self.base, folder / f"{self.name}.base.json")
        if self.moments is not None:
            file = folder / f"{self.name}.optimizer.safetensors"
            _write(self.moments, file)
            _write_json({"optimizer": self.kind, "steps": self.steps}, file.with_suffix(".json"))


def _copied(tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor] | None:
    return None if tensors is None else {name: t.to("cpu", copy=True) for name, t in tensors.items()}


def load_model(network: Network, file: Path) -> None:
    """Set the weights of ``network`` to those of ``file``. StoreError if they are not its own."""
    stored = _read(file)
    own = network.own_parameters()
    if stored.keys() != own.keys() or any(stored[name].shape != p.shape for name, p in own.items()):
        differing = sorted(stored.keys() ^ own.keys()) or [n for n, p in own.items() if stored[n].shape != p.shape]
        raise StoreError(
            f"{str(file)!r} holds the weights of another Model: {differing[0]!r} differs. "
            "Resume with the model of the run's recipe."
        )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(stored[name])


def load_optimizer(optimizer: AdamW, file: Path) -> None:
    """Set AdamW's state to what ``ModelState`` wrote. StoreError if a part is missing, or of another kind."""
    stored = _read(file)
    scalars = _read_json(file.with_suffix(".json"))
    # Before there was another kind, none was written.
    kind = scalars.get("optimizer", "adamw")
    if kind != optimizer.kind:
        raise StoreError(
            f"{str(file)!r} holds the moments of backend.optimizer={kind}, and it is {optimizer.kind} now. Set it to "
            f"{kind} to go on from there, or start a new run."
        )
    try:
        optimizer.restore(stored, cast(Mapping[str, int], scalars["steps"]))
    except KeyError as error:
        raise StoreError(
            f"{str(file)!r} is not the optimizer state of this Model. Take an older checkpoint."
        ) from error


def check_base(base: Mapping[str, Json], file: Path) -> None:
    """StoreError if the adapters of a checkpoint were trained on another base than the one that is here."""
    stored = _read_json(file)
    if stored != dict(base):
        what = "other base weights than those that model.path has now"
        if stored.get("weights") == base["weights"]:
            what = f"model.lora.alpha={stored.get('alpha')}, and it is {base['alpha']} now"
        raise StoreError(
            f"the adapters beside {str(file)!r} were trained on {what}. Bring that back as it was: a checkpoint holds "
            "the adapters alone."
        )


def check_fixed(model: str, base: Mapping[str, Json], file: Path) -> None:
    """StoreError if a Model that no run changes has other weights than when a checkpoint was written.

    One from elsewhere is another on purpose: a fork may have another teacher.
    """
    stored = _read_json(file)
    if stored.get("path") == base["path"] and stored != dict(base):
        raise StoreError(
            f"Model {model!r} has other weights than when {str(file.parent)!r} was written: what {model}.path names "
            "has changed. Bring that back as it was, or start a new run."
        )


def export_folder(network: Network, folder: Path) -> None:
    """Write ``config.json`` and ``model.safetensors`` as transformers reads them. StoreError with the cause.

    A Model with a value head is written as a sequence classifier of one label, whose logit is the value.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        config = {**network.config, "dtype": "float32"}
        config.pop("torch_dtype", None)
        if network.has_values:
            from stretto.families.modules import classifier_of  # loads transformers

            label = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
            config |= {"architectures": [classifier_of(network.config)], **label}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the export folder {str(folder)!r} cannot be written: {error}.") from error
    weights = {name.replace("value_head.", "score."): p.detach() for name, p in network.weights()}
    _write(weights, folder / "model.safetensors", {"format": "pt"})


def _write(tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str] | None = None) -> None:
    try:
        save_file({name: t.cpu().contiguous() for name, t in tensors.items()}, file, metadata)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{str(file)!r} cannot be written: {error}. Free space or choose another folder.") from error


def _write_json(value: Mapping[str, object], file: Path) -> None:
    try:
        file.write_text(json.dumps(value, indent=0) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{str(file)!r} cannot be written: {error}.") from error


def _read_json(file: Path) -> Mapping[str, Json]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{str(file)!r} cannot be read: {error}. Take an older checkpoint.") from error


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise StoreError(f"{str(file)!r} cannot be read: {error}. Take an older checkpoint.") from error
