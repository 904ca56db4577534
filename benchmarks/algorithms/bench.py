"""Every algorithm on the quickstart's problem: held-out accuracy against samples. ``make bench-algorithms``.

All begin with one policy, the quickstart's after its warm-up (a bit under half right), on the same problems, with 128
attempts a step, AdamW at one learning rate, and an algorithm's vetted settings; three seeds each. Algorithms that
compare siblings take 16 prompts x 8 attempts; those that do not take one attempt at each of 128 prompts, which teaches
more. A sample is an attempt that was sampled, so groups that dynamic sampling drops and ReMax's greedy attempts count.
TRL's GRPO and RLOO do the same in an environment of their own (``TRL_PYTHON``), judged by the same evaluator.

A critic learns slowly here, so PPO trains once more for twenty times the samples (``ppo-longer``; seed 0).

``JOBS``: trainings at the same time, each with one thread (2). ``ONLY=grpo,dapo``: only these; their rows replace those
of the last result.

Prediction (written before the first run, when all had 16 x 8): all within three points of GRPO's but PPO and VAPO,
whose critics must learn first, five below; RLOO, OPO and GPG level with GRPO; distillation far above.
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
ROWS = 128
"""Attempts of a step."""
BUDGET = STEPS * ROWS

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
    "ppo-longer": {},
    # 50 of 150 steps for the critic alone would be a third of the samples; answers here are short.
    "vapo": {"critic_warmup": 15},
    "distill": {},
    "dpo": {},
    "reward-model": {},
}
"""The algorithms, with settings that are not the vetted ones."""

ALONE = ("reinforce-pp", "ppo", "vapo", "distill")
"""Those that take one attempt at each prompt. ReMax could, but learned less so: its greedy attempts are half then."""
LONGER = "ppo-longer"
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
        raise RuntimeError(
            f"{job['name']} ended with status {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    result: dict[str, Any] = json.loads(result_file.read_text())
    return result


def train(name: str, seed: int, base: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The curve of one algorithm and seed."""
    job = {**base, "name": f"{name}-{seed}", "seed": seed, "steps": STEPS, "every": EVERY, "lr": LR}
    if name.startswith("trl-"):
        run(TRL_PYTHON, "one_trl.py", {**job, "algorithm": name.removeprefix("trl-")}, folder)
        steps = range(EVERY, STEPS + 1, EVERY)
        points = [[s * ROWS, judge(str(folder / f"{name}-{seed}" / str(s)), base["held_out"])] for s in steps]
        result: dict[str, Any] = {"points": [[0, base["begin"]], *points], "explained_variance": []}
    else:
        result = run(sys.executable, "one.py", {**job, **job_of(name, base)}, folder)
    shown = result["points"] or result["pairs"]
    print(f"  {name}, seed {seed}: {100 * at_budget(name, shown):.1f} %", flush=True)
    return result


def job_of(name: str, base: dict[str, Any]) -> dict[str, Any]:
    """What a job has of its own: overrides of the recipe, samples of a draw, steps."""
    kind = name.removesuffix("-longer")
    overrides: dict[str, Any] = {"algorithm": {"type": kind, **CASES[name]}}
    if name in PAIRS:
        overrides["schedule"] = {"groups_per_step": ROWS // 2}
        return {"overrides": overrides, "per_draw": 2, "pairs": base["pairs"], "examine": name == "dpo"}
    per_draw = 9 if name == "remax" else 8
    if kind in ALONE:
        per_draw = 1
        overrides |= {"sampling": {"n": 1}, "schedule": {"groups_per_step": ROWS}}
    if name == "distill":
        overrides["teacher"] = {"path": base["teacher"]}
    if name != LONGER:
        return {"overrides": overrides, "per_draw": per_draw}
    overrides["backend"] = {"lr_decay": "linear"}
    return {"overrides": overrides, "per_draw": per_draw, "steps": 20 * STEPS, "every": 20 * EVERY}


def at_budget(name: str, points: list[list[float]]) -> float:
    """The accuracy at the last evaluation within the budget of samples."""
    return [accuracy for samples, accuracy in points if samples <= BUDGET or name == LONGER][-1]


def summary(name: str, curves: list[dict[str, Any]]) -> dict[str, object]:
    """A row of the table: accuracy in % at equal samples, and the lowest that any seed came to on the way."""
    reached = [100 * at_budget(name, curve["points"] or curve["pairs"]) for curve in curves]
    explained = [statistics.mean(c["explained_variance"][-50:]) for c in curves if c["explained_variance"]]
    return {
        "algorithm": name,
        "mean": statistics.mean(reached),
        "lowest": min(reached),
        "highest": max(reached),
        "worst on the way": min(100 * value for c in curves for _, value in c["points"] or c["pairs"]),
        "pairs right": _share(name, [c["pairs"] for c in curves if c.get("pairs")]),
        "critic explains": statistics.mean(explained) if explained else "",
    }


def _share(name: str, pairs: list[list[list[float]]]) -> object:
    return statistics.mean(100 * at_budget(name, points) for points in pairs) if pairs else ""


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
        pairs = [(name, seed) for seed in SEEDS for name in chosen if name != LONGER or seed == SEEDS[0]]
        with ThreadPoolExecutor(int(os.environ.get("JOBS", "2"))) as pool:
            futures = [(name, pool.submit(train, name, seed, base, folder)) for name, seed in pairs]
    failed = {name: error for name, future in futures if (error := future.exception()) is not None}
    whole = [name for name in chosen if name not in failed]
    by_name = {name: [future.result() for n, future in futures if n == name] for name in whole}
    before = RESULTS / "algorithms.json"
    if (only or failed) and before.is_file():
        by_name = {**json.loads(before.read_text())["result"]["curves"], **by_name}
    by_name = {name: by_name[name] for name in names if name in by_name}
    rows = [summary(name, curves) for name, curves in by_name.items()]
    print_table(f"Greedy held-out accuracy in % after {BUDGET:,} samples, from {100 * begin:.1f}", rows)
    changed = {name: settings for name, settings in CASES.items() if settings and name in by_name}
    alone = [name for name in ALONE if name in by_name]
    result = {"begin": begin, "budget": BUDGET, "changed": changed, "alone": alone, "rows": rows, "curves": by_name}
    write_result("algorithms", result)
    examined = {name: curves for name, curves in by_name.items() if curves[0]["points"] and name != LONGER}
    draw(examined, begin, BUDGET, PICTURE)
    if failed:
        sys.exit("\n".join([f"{len(failed)} algorithms keep their last result:", *map(str, failed.values())]))


if __name__ == "__main__":
    main()
