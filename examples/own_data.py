"""Data of your own: a JSONL file, learned first from its answers, then by reward, and opened with transformers."""

import json
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import stretto

OPPOSITES = {"hot": "cold", "up": "down", "big": "small", "day": "night", "wet": "dry", "old": "new", "in": "out"}
file = Path("opposites.jsonl")
file.write_text("".join(json.dumps({"prompt": f"{a} - ", "answer": b}) + "\n" for a, b in OPPOSITES.items()))

# Seven lines are too few to hold any out; with more, leave held_out at its 0.2 and set evaluate={"every": 50}.
prompts = {"type": "jsonl", "path": str(file), "held_out": 0}
backend = {"lr": 3e-3, "threads": 1}

taught = stretto.train("sft", prompts=prompts, steps=25, schedule={"groups_per_step": 7}, backend=backend)
print("loss:", " ".join(f"{value:.2f}" for _, value in taught.history("loss")[::5]))

rewarded = stretto.train(
    "grpo",
    model=str(taught.path / "model"),
    prompts=prompts,
    reward="exact_match",
    steps=30,
    sampling={"n": 16, "max_tokens": 8},
    schedule={"groups_per_step": 7},
    backend={"lr": 2e-4, "threads": 1},
)
print("reward:", " ".join(f"{value:.2f}" for _, value in rewarded.history("reward/mean")[::3]))

model = AutoModelForCausalLM.from_pretrained(rewarded.path / "model")
tokenizer = AutoTokenizer.from_pretrained(rewarded.path / "model")
answer = model.generate(**tokenizer("hot - ", return_tensors="pt"), max_new_tokens=8, do_sample=False)[0]
print(tokenizer.decode(answer, skip_special_tokens=True))
