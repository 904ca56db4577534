"""What TRL samples and how it updates, step by step, in TRL's own environment: ``record_trl.py JOB.json FOLDER``.

FOLDER gets ``samples.json`` (token ids and rewards of every step), and ``gradient-K`` and ``weights-K`` of step K, the
gradient after TRL's clipping. See ``same_updates.py``.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from run_trl import exact_match, grpo_config
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from trl import GRPOTrainer

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()


class Recorder(TrainerCallback):
    """Writes gradients and weights."""

    def __init__(self, folder):
        self.folder = folder

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        save_file(gradients, self.folder / f"gradient-{state.global_step}.safetensors")

    def on_step_end(self, args, state, control, model=None, **_):
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        save_file(weights, self.folder / f"weights-{state.global_step - 1}.safetensors")


def main():
    job, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    rows = [json.loads(line) for line in Path(job["prompts"]).read_text().splitlines()]
    steps = []

    def judged(completions, **fields):
        steps.append({"rewards": exact_match(completions, **fields)})
        return steps[-1]["rewards"]

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        args=grpo_config(job, folder / "trl-output"),
        reward_funcs=judged,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(job["model"]),
        callbacks=[Recorder(folder)],
    )
    rollout = trainer._generate_and_score_completions

    def recorded(*args, **kwargs):
        out = rollout(*args, **kwargs)
        for part in ("prompt", "completion"):
            ids, masks = out[f"{part}_ids"].tolist(), out[f"{part}_mask"].tolist()
            pairs = zip(ids, masks, strict=True)
            steps[-1][part] = [[t for t, kept in zip(*pair, strict=True) if kept] for pair in pairs]
        return out

    trainer._generate_and_score_completions = recorded
    trainer.train()
    (folder / "samples.json").write_text(json.dumps(steps))


if __name__ == "__main__":
    main()
