"""Weights and optimizer state on disk and as a hash: safetensors for tensors, JSON for scalars, equal to the bit.

One file per Model and kind (``policy.safetensors``, ``policy.optimizer.safetensors``), so that a store can link the
files of frozen Models that did not change. No metadata: safetensors writes several keys in a varying order.

Ranks that hold shards write a file each (``policy.0of4.safetensors``) and an index beside them, ``stored`` says how.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from stretto.backends.torch.models import Network
from stretto.backends.torch.optimizer import AdamW
from stretto.backends.torch.ranks import WHOLE, Cut
from stretto.backends.torch.shards import local_of, whole_of
from stretto.backends.torch.stored import Stored, index_file, index_of, part_file
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
    """The 128-bit xxh3 (hex) of names, types, shapes and bytes in name order. Shards are gathered one by one."""
    digest = xxhash.xxh3_128()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(whole_of(tensor).cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelState:
    """What a checkpoint holds of one Model: weights (tied ones once, None of a fixed one), moments with their kind and
    each parameter's count of steps (None where it is not trained), and what it knows of weights it does not hold.

    ``cut``: which part of them it is. ``shapes`` are those of the whole weights.
    """

    name: str
    weights: Mapping[str, Tensor] | None
    moments: Mapping[str, Tensor] | None
    kind: str
    steps: Mapping[str, int]
    base: Mapping[str, Json] | None
    cut: Cut
    shapes: Mapping[str, Sequence[int]]

    def copied(self) -> "ModelState":
        """With memory of its own, on the host: what changes the Model changes it no more."""
        return replace(self, weights=_copied(self.weights), moments=_copied(self.moments))

    def write(self, folder: Path) -> None:
        """Write its files. StoreError with the cause."""
        if self.weights is not None:
            self._write_tensors(self.weights, folder, self.name, self.shapes)
        if self.base is not None and self.cut.place == 0:
            _write_json(self.base, folder / f"{self.name}.base.json")
        if self.moments is not None:
            stem = f"{self.name}.optimizer"
            shapes = {key: self.shapes[key.partition(".")[2]] for key in self.moments if self.cut.parts > 1}
            self._write_tensors(self.moments, folder, stem, shapes)
            if self.cut.place == 0:
                _write_json({"optimizer": self.kind, "steps": self.steps}, folder / f"{stem}.json")

    def _write_tensors(
        self, tensors: Mapping[str, Tensor], folder: Path, stem: str, shapes: Mapping[str, Sequence[int]]
    ) -> None:
        _write(tensors, part_file(folder, stem, self.cut))
        if self.cut.parts > 1 and self.cut.place == 0:
            _write_json(index_of(shapes, self.cut.parts), index_file(folder, stem))


def _copied(tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor] | None:
    return None if tensors is None else {name: t.to("cpu", copy=True) for name, t in tensors.items()}


def load_model(network: Network, folder: Path, name: str, cut: Cut = WHOLE) -> None:
    """Set the weights of ``network`` to those of ``file``. StoreError if they are not its own."""
    stored = Stored(folder, name)
    own = {key: tuple(p.shape) for key, p in network.own_parameters().items()}
    if stored.shapes != own:
        differing = sorted(stored.shapes.keys() ^ own.keys()) or [n for n in own if stored.shapes[n] != own[n]]
        raise StoreError(
            f"{str(stored.file)!r} holds the weights of another Model: {differing[0]!r} differs. "
            "Resume with the model of the run's recipe."
        )
    with torch.no_grad():
        for key, parameter in network.own_parameters().items():
            local_of(parameter).copy_(stored.part(key, cut))


def load_optimizer(optimizer: AdamW, folder: Path, name: str, cut: Cut = WHOLE) -> None:
    """Set AdamW's state to what ``ModelState`` wrote. StoreError if a part is missing, or of another kind."""
    stored = Stored(folder, f"{name}.optimizer")
    scalars = _read_json(folder / f"{name}.optimizer.json")
    # Before there was another kind, none was written.
    kind = scalars.get("optimizer", "adamw")
    if kind != optimizer.kind:
        raise StoreError(
            f"{str(stored.file)!r} holds the moments of backend.optimizer={kind}, and it is {optimizer.kind} now. "
            f"Set it to {kind} to go on from there, or start a new run."
        )
    try:
        optimizer.restore(
            {key: stored.part(key, cut) for key in stored.shapes}, cast(Mapping[str, int], scalars["steps"])
        )
    except KeyError as error:
        raise StoreError(
            f"{str(stored.file)!r} is not the optimizer state of this Model. Take an older checkpoint."
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


def export_folder(network: Network, folder: Path, *, writes: bool = True) -> None:
    """Write ``config.json`` and ``model.safetensors`` as transformers reads them. StoreError with the cause.

    A Model with a value head is written as a sequence classifier of one label, whose logit is the value. Of several
    ranks one ``writes``, and every one gives its shards.
    """
    weights = dict[str, Tensor]()
    for name, parameter in network.weights():
        whole = whole_of(parameter)
        if writes:
            weights[name.replace("value_head.", "score.")] = whole.cpu()
    if not writes:
        return
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
