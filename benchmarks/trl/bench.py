"""Stretto beside TRL: the same GRPO, the same start, in one go and in turns. ``make bench-trl``, and with
``MODEL=smollm`` or ``MODEL=smollm-bfloat16``.

Each training is a process of its own, in its own environment, with one thread: same weights, prompts, precision
(float32, or bfloat16 over float32 weights), 64 sequences a step (8 prompts x 8), loss, optimizer and learning rate. The
processes take turns (Stretto, TRL, Stretto, ...). What is measured: CPU seconds of a step (median over steps, the first
ones left out), of which generation and training; peak memory; wall time from the start of the process to the end of its
first step; and for the 1 M model what the policies of twelve seeds reach on held-out problems after equal samples, all
judged by one evaluator, and whether both make the same update of the same samples (``same_updates.py``). A share is the
arithmetic that generating or training needs (matrix products, each prompt once a group) over its CPU time, as a part of
the best rate at which this machine multiplies matrices of that precision on one thread.

Prediction (written before the first run): natural stops 0.5 of TRL, forced 32 0.8; SmolLM2 0.6. First step in 0.6 of
TRL's time, memory 0.6. Accuracy level. Updates equal but for rounding (1e-4). In bfloat16
(written before its first run, on a CPU that multiplies it): 0.35, generating 0.3, training 0.4, since attention and all
that is no product weighs more there.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from stretto.api.runs import evaluate
from stretto.data.tokens import load_tokenizer
from stretto.families.decoder import DecoderSpec
from stretto.types import Message

sys.path.insert(0, str(Path(__file__).parents[1]))
from same_updates import differences

from arithmetic import generation_products, product_rate, training_products
from table import print_table, write_result
from warmed import smollm_model, warmed_model

HERE = Path(__file__).parent
PYTHON = {"stretto": sys.executable, "trl": os.environ.get("TRL_PYTHON", ".venv-trl/bin/python")}
SPEED_SEEDS = 3
SEEDS = tuple(range(12))
"""Held-out accuracy differs by a point or two between seeds, so three cannot tell the two sides apart."""
LEARN = {"groups": 8, "n": 8, "max_tokens": 32, "lr": 3e-5, "steps": 300, "forced": False, "skip": 5}
FORCED = {**LEARN, "steps": 30, "forced": True}
SAME = {**LEARN, "steps": 10}
SMOLLM = {**LEARN, "steps": 3, "lr": 1e-6, "skip": 1}
MODELS = ("tiny", "smollm", "smollm-bfloat16")


def measure(who: str, folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Run one job in its own process and read its figures."""
    name = f"{who}-{'forced' if job['forced'] else 'natural'}-{job['seed']}"
    job_file, result_file = folder / f"{name}.job.json", folder / f"{name}.result.json"
    job_file.write_text(json.dumps({**job, "started_at": time.time()}))
    run(name, [PYTHON[who], str(HERE / f"run_{who}.py"), str(job_file), str(result_file)])
    result: dict[str, Any] = json.loads(result_file.read_text())
    print(f"  {name}: {_median([result], job, 'step'):.3f} CPU s a step", flush=True)
    return result


def run(name: str, command: list[str]) -> None:
    """Run a command to its end, with one thread; if it fails, so does the benchmark."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} ended with status {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def _median(results: list[dict[str, Any]], job: dict[str, Any], key: str) -> float:
    return statistics.median(step[key] for r in results for step in r["steps"][job["skip"] :])


def shares(job: dict[str, Any], rate: float, figures: dict[str, float]) -> dict[str, float]:
    """The arithmetic that generating and training need, each prompt computed once a group, over their CPU time: as
    parts of the best rate at which this machine multiplies matrices."""
    spec = DecoderSpec.from_config(json.loads((Path(job["model"]) / "config.json").read_text()))
    tokenizer = load_tokenizer(job["model"])
    asked = [json.loads(line)["prompt"] for line in Path(job["prompts"]).read_text().splitlines()[:64]]
    prompts = (ask if isinstance(ask, str) else [Message(**message) for message in ask] for ask in asked)
    length = statistics.mean(len(tokenizer.encode_prompt(prompt)) for prompt in prompts)
    sizes = (job["groups"], job["n"], length, figures["tokens"] / (job["groups"] * job["n"]))
    needs = {"generate": generation_products(spec, *sizes), "train": training_products(spec, *sizes)}
    return {f"{part}_share": need / figures[f"{part}_cpu_s"] / rate for part, need in needs.items()}


def compare(case: str, job: dict[str, Any], results: dict[str, list[dict[str, Any]]]) -> list[dict[str, object]]:
    """A row of figures for each side, and their ratios."""
    rows: list[dict[str, object]] = []
    rate = product_rate(getattr(torch, job["dtype"]))
    for who in ("trl", "stretto"):
        runs = results[who]
        figures = {f"{key}_cpu_s": _median(runs, job, key) for key in ("step", "generate", "train")}
        figures["tokens"] = _median(runs, job, "tokens")
        rows.append(
            {
                "case": case,
                "who": who,
                **figures,
                **shares(job, rate, figures),
                "peak_mb": max(r["peak_mb"] for r in runs),
                "first_step_s": statistics.median(r["first_step_wall_s"] for r in runs),
                "first_step_cpu_s": statistics.median(r["first_step_cpu_s"] for r in runs),
            }
        )
    ratio = {key: _ratio(rows[1][key], rows[0][key]) for key in rows[0] if key not in ("case", "who")}
    return [*rows, {"case": case, "who": "ratio", **ratio}]


def _ratio(ours: object, theirs: object) -> float:
    assert isinstance(ours, float | int)
    assert isinstance(theirs, float | int)
    return ours / theirs


def accuracy_of(model: str, held_out: str) -> float:
    """Greedy accuracy of a model's folder on the held-out problems."""
    keys = ["prompts.type=jsonl", f"prompts.path={held_out}", "prompts.held_out=0.999", "reward.workers=0"]
    return evaluate(model, [*keys, "sampling.max_tokens=8"])["held_out"].accuracy


def tiny(folder: Path) -> dict[str, Any]:
    """Speed at natural stops and at forced length, what is learned, and how far updates differ, on the 1 M model."""
    model, prompts, held_out = warmed_model(folder)
    base = {"model": model, "prompts": prompts, "dtype": "float32"}
    natural: dict[str, list[dict[str, Any]]] = {"trl": [], "stretto": []}
    forced: dict[str, list[dict[str, Any]]] = {"trl": [], "stretto": []}
    reached: dict[str, list[float]] = {"trl": [], "stretto": []}
    for seed in SEEDS:
        for who in ("stretto", "trl"):
            saved = str(folder / f"{who}-model-{seed}")
            natural[who].append(measure(who, folder, {**base, **LEARN, "seed": seed, "save": saved}))
            reached[who].append(accuracy_of(saved, held_out))
            if seed < SPEED_SEEDS:
                forced[who].append(measure(who, folder, {**base, **FORCED, "seed": seed, "save": None}))
    speed = compare("1 M, natural stops", {**base, **LEARN}, natural)
    speed += compare("1 M, forced 32", {**base, **FORCED}, forced)
    learned = [learned_row("start", [accuracy_of(model, held_out)])]
    learned += [learned_row(who, accuracies) for who, accuracies in reached.items()]
    return {"speed": speed, "accuracy": learned, "updates": updates(folder, {**base, **SAME, "seed": 0})}


def learned_row(who: str, accuracies: list[float]) -> dict[str, object]:
    """Held-out accuracies over the seeds; ``error``: the standard error of their mean."""
    error = statistics.stdev(accuracies) / len(accuracies) ** 0.5 if len(accuracies) > 1 else 0.0
    row = {"mean": statistics.mean(accuracies), "error": error, "lowest": min(accuracies), "highest": max(accuracies)}
    return {"who": who, **row}


def updates(folder: Path, job: dict[str, Any]) -> list[dict[str, Any]]:
    """The largest and the last difference between our updates and TRL's of the same samples."""
    (folder / "record").mkdir()
    (folder / "record.json").write_text(json.dumps(job))
    run("record", [PYTHON["trl"], str(HERE / "record_trl.py"), str(folder / "record.json"), str(folder / "record")])
    rows = differences(job["model"], folder / "record", n=job["n"], lr=job["lr"])
    return [
        {"of": key, "steps": len(rows), "largest": max(row[key] for row in rows), "last": rows[-1][key]}
        for key in ("gradient", "weights")
    ]


def smollm(folder: Path, dtype: str) -> list[dict[str, object]]:
    """Two measured steps of SmolLM2."""
    model, prompts = smollm_model(folder)
    job = {"model": model, "prompts": prompts, **SMOLLM, "dtype": dtype, "seed": 0, "save": None}
    results = {who: [measure(who, folder, job)] for who in ("stretto", "trl")}
    return compare(f"SmolLM2-135M, natural stops, {dtype}", job, results)


def main() -> None:
    """Run, print the tables, write the results."""
    which = os.environ.get("MODEL", "tiny")
    if which not in MODELS:
        sys.exit(f"MODEL={which} is not known. It is one of {', '.join(MODELS)}; the first if none is given.")
    dtype = which.partition("-")[2] or "float32"
    print(f"Stretto beside TRL 1.16, GRPO, 8 prompts x 8, {dtype}, one thread", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        result = tiny(Path(folder)) if which == "tiny" else {"speed": smollm(Path(folder), dtype)}
    print_table("CPU seconds of a step (median), and the rest; ratio is Stretto / TRL", result["speed"])
    if "accuracy" in result:
        samples = LEARN["steps"] * LEARN["groups"] * LEARN["n"]
        print_table(f"Greedy held-out accuracy after {samples:,} samples, {len(SEEDS)} seeds", result["accuracy"])
        print_table("The same samples: relative difference of updates", result["updates"])
    write_result(f"trl-{which}", result)


if __name__ == "__main__":
    main()
