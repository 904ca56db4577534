"""One training by TRL, in TRL's own environment: ``one_trl.py JOB.json RESULT.json``. See ``bench.py``.

It leaves the policy as it is at every evaluation in a folder; ``bench.py`` judges them.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()

JOB = json.loads(Path(sys.argv[1]).read_text())
FOLDER = Path(sys.argv[2]).with_suffix("")


def exact_match(completions, answer, **_):
    """1 for the answer, as Stretto's built-in reward."""
    return [float(text.strip() == gold.strip()) for text, gold in zip(completions, answer, strict=True)]


class Keeper(TrainerCallback):
    """Saves the policy every few steps."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def on_step_end(self, args, state, control, model=None, **_):
        if state.global_step % JOB["every"] == 0:
            folder = FOLDER / str(state.global_step)
            model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)


def main():
    rows = [json.loads(line) for line in Path(JOB["train"]).read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(JOB["model"])
    settings = {
        "output_dir": str(FOLDER / "trainer"),
        "max_steps": JOB["steps"],
        "per_device_train_batch_size": 128,
        "num_generations": 8,
        "max_completion_length": 5,
        "learning_rate": JOB["lr"],
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "temperature": 1.0,
        "top_k": 0,
        "beta": 0.0,
        "seed": JOB["seed"],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "dataloader_pin_memory": False,
        "logging_steps": 10**9,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    kinds = {"grpo": (GRPOConfig, GRPOTrainer, {"loss_type": "dapo"}), "rloo": (RLOOConfig, RLOOTrainer, {})}
    config, trainer, own = kinds[JOB["algorithm"]]
    trainer(
        model=AutoModelForCausalLM.from_pretrained(JOB["model"], dtype=torch.float32),
        args=config(**settings, **own),
        reward_funcs=exact_match,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[Keeper(tokenizer)],
    ).train()
    Path(sys.argv[2]).write_text(json.dumps({"folder": str(FOLDER)}))


if __name__ == "__main__":
    main()
