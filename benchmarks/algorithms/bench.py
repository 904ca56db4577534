"""Every algorithm on the quickstart's problem: held-out accuracy against samples. ``make bench-algorithms``.

All begin with one policy, the quickstart's after its warm-up (a bit under half right), on the same problems, with 16
prompts x 8 attempts a step, AdamW at one learning rate, and an algorithm's vetted settings; three seeds each. A sample
is an attempt that was sampled, so groups that dynamic sampling drops and ReMax's greedy attempts count. TRL's GRPO and
RLOO do the same in an environment of their own (``TRL_PYTHON``), and are judged by the same evaluator.

``JOBS``: trainings at the same time, each with one thread (2). ``ONLY=grpo,dapo``: only these; their rows replace those
of the last result.

Prediction (written before the first run): all within three points of GRPO's but PPO and VAPO, whose critics must learn
first, five below; RLOO, OPO and GPG level with GRPO; distillation far above.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stretto.api.runs import evaluate

sys.path.insert(0, str(Path(__file__).parents[1]))
from picture import draw

from table import RESULTS, print_table, write_result
from warmed import warmed_model

HERE = Path(__file__).parent
PICTURE = HERE.parents[1] / "docs" / "pictures" / "algorithms.png"
TRL_PYTHON = os.environ.get("TRL_PYTHON", ".venv-trl/bin/python")
SEEDS = (0, 1, 2)
STEPS, EVERY, LR = 150, 25, 6e-5
BUDGET = STEPS * 16 * 8

CASES: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr-grpo": {},
    "dapo": {},
    "gspo": {},
    "cispo": {},
    "sapo": {},
    "gmpo": {},
    "rloo": {},
    "reinforce-pp": {},
    "remax": {},
    "opo": {},
    "gpg": {},
    "maxrl": {},
    "cpgd": {},
    "ppo": {},
    # 50 of 150 steps for the critic alone would be a third of the samples; answers here are short.
    "vapo": {"critic_warmup": 15},
    "distill": {},
    "dpo": {},
    "reward-model": {},
}
"""The algorithms, with settings that are not the vetted ones."""

PAIRS = ("dpo", "reward-model")
TEACHER = 0.9
"""What the teacher gets right of the held-out problems: the same model, trained on answers for longer."""


def judge(model: str, held_out: str) -> float:
    """Greedy accuracy on all held-out problems."""
    keys = ["prompts.type=jsonl", f"prompts.path={held_out}", "prompts.held_out=0.999", "reward.workers=0"]
    return evaluate(model, [*keys, "sampling.max_tokens=5"])["held_out"].accuracy


def run(python: str, script: str, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One training in a process of its own."""
    job_file, result_file = folder / f"{job['name']}.job.json", folder / f"{job['name']}.json"
    job_file.write_text(json.dumps(job))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [python, str(HERE / script), str(job_file), str(result_file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{job['name']} ended with status {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(result_file.read_text())
    return result


def train(name: str, seed: int, base: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The curve of one algorithm and seed."""
    job = {**base, "name": f"{name}-{seed}", "seed": seed, "steps": STEPS, "every": EVERY, "lr": LR}
    if name.startswith("trl-"):
        run(TRL_PYTHON, "one_trl.py", {**job, "algorithm": name.removeprefix("trl-")}, folder)
        steps = range(EVERY, STEPS + 1, EVERY)
        points = [[s * 128, judge(str(folder / f"{name}-{seed}" / str(s)), base["held_out"])] for s in steps]
        result: dict[str, Any] = {"points": [[0, base["begin"]], *points], "explained_variance": []}
    else:
        per_draw = 9 if name == "remax" else 8
        overrides: dict[str, Any] = {"algorithm": {"type": name, **CASES[name]}}
        if name == "distill":
            overrides["teacher"] = {"path": base["teacher"]}
        if name in PAIRS:
            # 64 pairs are as many rows as 16 prompts x 8 attempts.
            overrides["schedule"] = {"groups_per_step": 64}
            per_draw, job = 2, {**job, "pairs": base["pairs"], "examine": name == "dpo"}
        result = run(sys.executable, "one.py", {**job, "per_draw": per_draw, "overrides": overrides}, folder)
    shown = result["points"] or result["pairs"]
    print(f"  {name}, seed {seed}: {100 * at_budget(shown):.1f} %", flush=True)
    return result


def at_budget(points: list[list[float]]) -> float:
    """The accuracy at the last evaluation within the budget of samples."""
    return [accuracy for samples, accuracy in points if samples <= BUDGET][-1]


def summary(name: str, curves: list[dict[str, Any]]) -> dict[str, object]:
    """A row of the table: accuracy in % at equal samples, and the lowest that any seed came to on the way."""
    reached = [100 * at_budget(curve["points"] or curve["pairs"]) for curve in curves]
    explained = [statistics.mean(c["explained_variance"][-10:]) for c in curves if c["explained_variance"]]
    return {
        "algorithm": name,
        "mean": statistics.mean(reached),
        "lowest": min(reached),
        "highest": max(reached),
        "worst on the way": min(100 * value for c in curves for _, value in c["points"] or c["pairs"]),
        "pairs right": _share([c["pairs"] for c in curves if c.get("pairs")]),
        "critic explains": statistics.mean(explained) if explained else "",
    }


def _share(pairs: list[list[list[float]]]) -> object:
    return statistics.mean(100 * at_budget(points) for points in pairs) if pairs else ""


def write_pairs(train: str, path: Path) -> str:
    """Every problem with its answer and a wrong one of as many digits."""
    chance = random.Random(0)
    rows: list[str] = []
    for line in Path(train).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        right = row["answer"]
        wrong = right
        while wrong == right:
            place = chance.randrange(len(right))
            wrong = right[:place] + chance.choice("0123456789") + right[place + 1 :]
        rows.append(json.dumps({**row, "chosen": right, "rejected": wrong}))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def main() -> None:
    """Train all, print the table, keep the curves."""
    names = [*CASES, "trl-grpo", "trl-rloo"]
    only = os.environ.get("ONLY")
    chosen = only.split(",") if only else names
    if unknown := sorted(set(chosen) - set(names)):
        sys.exit(f"ONLY={only}: there is no {', '.join(unknown)}. Take of {', '.join(names)}.")
    print(f"{len(chosen)} algorithms x {len(SEEDS)} seeds, {BUDGET:,} samples each", flush=True)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        model, train_file, held_out = warmed_model(folder)
        begin = judge(model, held_out)
        base = {"model": model, "train": train_file, "held_out": held_out, "begin": begin}
        base["pairs"] = write_pairs(train_file, folder / "pairs.jsonl")
        if "distill" in chosen:
            base["teacher"] = warmed_model(folder, until=TEACHER, name="teacher")[0]
            print(f"the teacher gets {100 * judge(base['teacher'], held_out):.1f} % right", flush=True)
        pairs = [(name, seed) for seed in SEEDS for name in chosen]
        with ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
            curves = list(pool.map(lambda pair: train(*pair, base, folder), pairs))
    by_name = {name: [c for (n, _), c in zip(pairs, curves, strict=True) if n == name] for name in chosen}
    before = RESULTS / "algorithms.json"
    if only and before.is_file():
        by_name = {**json.loads(before.read_text())["result"]["curves"], **by_name}
    by_name = {name: by_name[name] for name in names if name in by_name}
    rows = [summary(name, curves) for name, curves in by_name.items()]
    print_table(f"Greedy held-out accuracy in % after {BUDGET:,} samples, from {100 * begin:.1f}", rows)
    changed = {name: settings for name, settings in CASES.items() if settings and name in by_name}
    result = {"begin": begin, "budget": BUDGET, "changed": changed, "rows": rows, "curves": by_name}
    write_result("algorithms", result)
    examined = {name: curves for name, curves in by_name.items() if curves[0]["points"]}
    draw(examined, begin, BUDGET, PICTURE)


if __name__ == "__main__":
    main()
