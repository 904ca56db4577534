"""Policies to begin with, in folders, with problems as files: the quickstart's after its warm-up, and SmolLM2."""

import json
from pathlib import Path

from stretto.api.runs import start
from stretto.config.load import load_recipe
from stretto.data.locations import folder_of
from stretto.data.order import split
from stretto.data.sources import load_prompts
from stretto.data.tokens import load_tokenizer
from stretto.recipes import FOLDER

__all__ = ["smollm_model", "warmed_model"]

MODEL_SMOLLM = "builtin:smollm2-135m-instruct"


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


def smollm_model(folder: Path) -> tuple[str, str]:
    """SmolLM2 as a folder, and chain sums as chat prompts."""
    import reasoning_gym  # loads slowly, and the 1 M model does without

    rows = []
    for entry in reasoning_gym.create_dataset("chain_sum", seed=0, size=64):
        ask = f"{entry['question']}\nAnswer with the number alone."
        row = {"prompt": [{"role": "user", "content": ask}], "answer": entry["answer"]}
        rows.append(json.dumps(row))
    (folder / "chain_sum.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(folder_of(MODEL_SMOLLM)), str(folder / "chain_sum.jsonl")
