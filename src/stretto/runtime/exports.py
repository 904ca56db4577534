"""What a run hands on: the Model it trained, as a folder that other tools load, tokenizer included."""

import json
import shutil
from pathlib import Path

from stretto.backends.torch.hf_config import load_hf_config
from stretto.config.recipe import Recipe
from stretto.data.tokens import Tokenizer
from stretto.errors import ConfigError
from stretto.graph import Graph, models_of
from stretto.roles import TrainBackend
from stretto.runtime.graphs import VALUE_HEADS

__all__ = ["check_scorer", "export_model", "exported", "keep_newest", "write_model"]


def exported(graph: Graph) -> str:
    """The Model that a run with this main graph hands on: the policy, or the reward model if that alone is trained."""
    trained = {model for model, roles in models_of(graph).items() if "train" in roles}
    return "reward" if "reward" in trained and "policy" not in trained else "policy"


def check_scorer(recipe: Recipe, path: str) -> None:
    """The model in ``path`` can be trained with one output and handed on. DataError or ConfigError if not."""
    from stretto.families.modules import classifier_of  # loads torch and transformers

    classifier_of(load_hf_config(path))
    if recipe.model.lora is not None and recipe.model.lora.export == "adapter":
        raise ConfigError(
            "model.lora.export=adapter writes adapters of a language model, and the run trains a reward model, whose "
            "output is not among them. Set model.lora.export=merged."
        )


def export_model(backend: TrainBackend, model: str, tokenizer: Tokenizer, folder: Path) -> None:
    """``model`` as a folder that other tools load. Never a part of it, wherever a kill strikes; runs on the worker."""
    new, old = folder.with_name(f".new-{folder.name}"), folder.with_name(f".old-{folder.name}")
    _remove(new, old)
    new.mkdir(parents=True)
    write_model(backend, model, tokenizer, new)
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    _remove(old)


def keep_newest(folder: Path, count: int | None) -> None:
    """Remove all exports by step in ``folder`` but the ``count`` newest (None: none)."""
    found = sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    _remove(*(found[: max(0, len(found) - count)] if count is not None else []))


def write_model(backend: TrainBackend, model: str, tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``model`` and its tokenizer into ``folder``."""
    backend.export(model, folder)
    tokenizer.save(folder)
    if model in VALUE_HEADS and (folder / "config.json").is_file():
        _pad_apart(tokenizer, folder)


def _pad_apart(tokenizer: Tokenizer, folder: Path) -> None:
    """Let the folder's padding differ from what ends rows, which a classifier looks for by its id; and write down how
    rows begin and end, for the reward ``reward_model``."""
    idle, eos = tokenizer.idle_id, tokenizer.eos_id
    begin = [tokenizer.bos_id] if tokenizer.begins_with_bos else []
    rows = {"text": {"begin": begin, "end": [eos]}, "messages": {"end": list(tokenizer.turn_end) or [eos]}}
    _update(folder / "config.json", {"pad_token_id": idle, "stretto_rows": rows})
    token = None if idle is None else tokenizer.backend.id_to_token(idle)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            _update(folder / name, {"pad_token": token})


def _update(file: Path, changes: dict[str, object]) -> None:
    known = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**known, **changes}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _remove(*folders: Path) -> None:
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)
