"""One measured training by TRL, in TRL's own environment: ``run_trl.py JOB.json RESULT.json``. See ``bench.py``."""

import json
import resource
import sys
import time
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from trl import GRPOConfig, GRPOTrainer

torch.set_num_threads(1)
transformers.utils.logging.set_verbosity_error()

JOB = json.loads(Path(sys.argv[1]).read_text())


def exact_match(completions, answer, **_):
    """1 for the answer, as Stretto's built-in reward."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [float(text.strip() == gold.strip()) for text, gold in zip(texts, answer, strict=True)]


class Clock(TrainerCallback):
    """CPU seconds of every step and of its parts."""

    def __init__(self):
        self.steps, self.parts, self.begin = [], {}, 0.0
        self.first_step_wall_s = self.first_step_cpu_s = None

    def on_step_begin(self, args, state, control, **_):
        self.begin, self.parts = time.process_time(), {}

    def on_step_end(self, args, state, control, **_):
        total = time.process_time() - self.begin
        if self.first_step_wall_s is None:
            self.first_step_wall_s = time.time() - JOB["started_at"]
            self.first_step_cpu_s = time.process_time()
        train = total - self.parts.get("rollout", 0.0)
        tokens = self.parts.get("tokens", 0)
        self.steps.append({"step": total, "generate": self.parts["generate"], "train": train, "tokens": tokens})

    def time(self, owner, name, part):
        """Add the CPU seconds of every call of ``owner.name`` to ``part``."""
        function = getattr(owner, name)

        def timed(*args, **kwargs):
            begin = time.process_time()
            out = function(*args, **kwargs)
            self.parts[part] = self.parts.get(part, 0.0) + time.process_time() - begin
            if part == "generate":
                self.parts["tokens"] = sum(len(ids) for ids in out[1])
            return out

        setattr(owner, name, timed)


def grpo_config(job, folder):
    """The settings that both sides have."""
    size = job["groups"] * job["n"]
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=job["steps"],
        per_device_train_batch_size=size,
        num_generations=job["n"],
        max_completion_length=job["max_tokens"],
        learning_rate=job["lr"],
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=0.2,
        scale_rewards="group",
        loss_type="dapo",
        generation_kwargs={"min_new_tokens": job["max_tokens"]} if job["forced"] else None,
        seed=job["seed"],
        use_cpu=True,
        bf16=job["dtype"] == "bfloat16",
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_steps=10**9,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def main():
    rows = [json.loads(line) for line in Path(JOB["prompts"]).read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(JOB["model"])
    model = AutoModelForCausalLM.from_pretrained(JOB["model"], dtype=torch.float32)
    clock = Clock()
    trainer = GRPOTrainer(
        model=model,
        args=grpo_config(JOB, Path(sys.argv[2]).parent / "trl-output"),
        reward_funcs=exact_match,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    clock.time(trainer, "_generate", "generate")
    clock.time(trainer, "_generate_and_score_completions", "rollout")
    trainer.train()
    if JOB["save"]:
        trainer.model.save_pretrained(JOB["save"])
        tokenizer.save_pretrained(JOB["save"])
    result = {
        "steps": clock.steps,
        "first_step_wall_s": clock.first_step_wall_s,
        "first_step_cpu_s": clock.first_step_cpu_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
