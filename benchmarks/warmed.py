"""A policy to begin with: the quickstart's after its warm-up, with its training and held-out problems as files."""

import json
from pathlib import Path

from stretto.api.runs import start
from stretto.config.load import load_recipe
from stretto.data.order import split
from stretto.data.sources import load_prompts
from stretto.data.tokens import load_tokenizer
from stretto.recipes import FOLDER

__all__ = ["warmed_model"]


def warmed_model(folder: Path, *, until: float = 0.45, name: str = "start") -> tuple[str, str, str]:
    """The policy once its held-out accuracy is ``until``, and files of the problems to train on and of the others."""
    keys = ["steps=1", "schedule.groups_per_step=1", "backend.lr=1e-12", "evaluate.at_start=false"]
    keys += ["evaluate.at_end=false", "save.keep_best=null", f"runs_dir={folder / 'runs'}", f"name={name}"]
    keys += [f"warmup.until.held_out/accuracy={until}"]
    recipe = load_recipe("quickstart", keys, packaged=FOLDER).recipe
    view = start(recipe)
    prompts = load_prompts(recipe.prompts, load_tokenizer(recipe.model.path))
    train, held_out = split(prompts, recipe.prompts.held_out, recipe.seed)
    for part, chosen in (("train", train), ("held_out", held_out)):
        rows = [json.dumps({"prompt": p.text, "answer": p.data["answer"]}) for p in chosen]
        (folder / f"{part}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(view.path / "model"), str(folder / "train.jsonl"), str(folder / "held_out.jsonl")
