"""The page about speed: tables from the files that benchmarks leave in ``benchmarks/results``."""

import json
import math
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

HEAD = """# How fast it is

Every figure here comes from a file in `benchmarks/results`, which a command wrote; this page is made from those files.
A table is one run on one machine, two cores with AVX-512 and AMX; machines of one kind differ, so compare within a
table.

## Beside TRL

`make bench-trl` installs TRL 1.16 in an environment of its own, then runs GRPO in both, in turns, in one go: the same
weights, prompts, precision, loss, optimizer and learning rate, 8 prompts x 8 attempts a step, one thread
each. `make bench-trl MODEL=smollm` does the same with SmolLM2-135M, and `MODEL=smollm-bfloat16` in
bfloat16 over float32 weights (for a CPU that multiplies it).

"""

NONE = "No result has been recorded here yet; the command prints the table and writes the file.\n\n"

COLUMNS = {
    "step_cpu_s": "CPU s a step",
    "generate_cpu_s": "of it generating",
    "train_cpu_s": "of it training",
    "generate_share": "share of the products' rate, generating",
    "train_share": "and training",
    "tokens": "tokens a step",
    "peak_mb": "peak memory, MB",
    "first_step_s": "s to first step",
    "first_step_cpu_s": "CPU s to first step",
}

READING = """\
The aim at natural stops was 0.4 of TRL's step, and here it is not reached: on a CPU without AVX-512 the ratio was 0.40,
and [on this kind](performance.md#where-the-time-goes) products are twice as fast, of which TRL's step has the larger
share. It was 0.48 there before small matrices lay column by column, and 0.46 when the machine was busier.

CPU seconds are medians over the steps, the first ones left out. The ratio is Stretto's over TRL's: below 1, Stretto
takes less. "s to first step" is wall time from the start of the process to the end of its first step. Forced 32: every
completion is exactly 32 tokens long. The shares are of the best rate at which one thread multiplies matrices here: the
arithmetic that generating or training needs, with each prompt computed once a group, over the CPU time it took. Tokens
differ a little at natural stops, since each side samples its own.

"""

ENGINES = """## Generation

`make bench-engines`: tokens written per CPU second beside Hugging Face's `generate` and, where
`make .venv-vllm/.installed` has made an environment for it, vLLM's engine for CPUs. One process each with one thread,
in turns; float32, 32 new tokens a sequence, prompts and groups as the table says, each engine with as many places as
the batch has sequences. CPU seconds are of the whole batch, prompts included. Stretto and vLLM tell each token's
log-prob, `generate` does not. "Loose" is Stretto with `engine.batch_invariant` off; "share" is Stretto's arithmetic
over its time, as a part of the best rate at which one thread multiplies matrices.
"""

SHORT = """\
The aim was twice `generate` as a mean over all cases and never slower, and it is not reached. Where nothing is shared
and the model is not tiny, both sides do the same arithmetic: SmolLM2 at a batch of 1 reads all its weights for every
token, whoever computes it (level within a percent), and at a batch of 64 with prompts of 300 the share says that most
of the machine's product rate is in use already. What is left to win there is what the other side wastes. Against vLLM
the aim was 0.9 as a mean, and above 1.5 for groups of 8 on prompts of 300: these come to 1.48, since where few rows
decode, reading weights is most of a step, and both read them once.

"""

ENGINE_COLUMNS = {
    "stretto": "Stretto",
    "hf": "generate",
    "vllm": "vLLM",
    "over_hf": "over generate",
    "over_vllm": "over vLLM",
    "over_loose": "over loose",
    "share": "share",
}

OVERLAP = """## Rollout beside training

`make bench-overlap`: the same steps with one thread each for engine and learner, in turns (`schedule.max_staleness` 0)
and at once (1), and in turns with two threads for the learner, on two cores. "Overlap" is the share of the shorter
side, generating or training, that is hidden behind the longer. Of every step the fastest of three processes counts.
"""

OVERLAP_COLUMNS = {
    "wall_s": "s a step",
    "wait_s": "waiting for rollout",
    "train_s": "training",
    "cpu_s": "CPU s a step",
    "engine_cpu_s": "of the engine's thread",
    "learner_cpu_s": "of the learner's thread",
}

SCHEDULES = """## Schedules

`make bench-schedules`: what a schedule gains where completions differ in length. Engine and learner take time here and
do no arithmetic: a completion a lognormal time on one of 32 slots, a step 0.12 s. "Width" is the deviation of the
logarithm of a completion's time, whose median is 0.08 s; "simulated" is what a simulator says that knows the same times
and no overhead; "idle" is the share of the time in which no completion was under way, and in which no step trained.
Staleness 1 hides the shorter side, but waits at every window for the longest sequence;
[in flight](concepts/staleness.md#more-in-flight) nobody waits for it.
"""

SCHEDULE_COLUMNS = {
    "steps_per_s": "steps a second",
    "simulated": "simulated",
    "ratio": "ratio",
    "engine_idle": "engine idle",
    "simulated_engine_idle": "simulated",
    "learner_idle": "learner idle",
    "simulated_learner_idle": "simulated",
    "mean_staleness": "mean staleness",
}

WHO = {"stretto": "Stretto", "trl": "TRL", "ratio": "**ratio**", "start": "before"}


def speed_page() -> str:
    """The page, with a table for each result that is there."""
    text, found = HEAD, False
    for name in ("trl-tiny", "trl-smollm", "trl-smollm-bfloat16"):
        file = RESULTS / f"{name}.json"
        if file.exists():
            found = True
            record = json.loads(file.read_text(encoding="utf-8"))
            text += _speed(record["result"]["speed"]) + f"On {record['machine']}.\n\n"
            if record["result"].get("accuracy"):
                text += _accuracy(record["result"]["accuracy"]) + _updates(record["result"]["updates"])
    text += READING if found else NONE
    return text + _engines() + _overlap() + _schedules() + _seeds()


def _speed(rows: list[dict[str, Any]]) -> str:
    lines = [f"| | | {' | '.join(COLUMNS.values())} |", "|" + "---|" * (len(COLUMNS) + 2)]
    for row in rows:
        shown = [
            f"**{_number(row.get(key, math.nan))}**" if row["who"] == "ratio" else _number(row.get(key, math.nan))
            for key in COLUMNS
        ]
        case = row["case"] if row is rows[0] or row["case"] != rows[rows.index(row) - 1]["case"] else ""
        lines.append(f"| {case} | {WHO[row['who']]} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n\n"


def _engines() -> str:
    file = RESULTS / "engines.json"
    if not file.exists():
        return f"{ENGINES}\n{NONE}"
    record = json.loads(file.read_text(encoding="utf-8"))
    header = ["model", "batch", "prompt", "group", *ENGINE_COLUMNS.values()]
    lines = [ENGINES, f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in record["result"]["cases"]:
        figures = [_number(row[key]) for key in ENGINE_COLUMNS]
        lines.append(f"| {row['model']} | {row['batch']} | {row['prompt']} | {row['group']} | {' | '.join(figures)} |")
    lines += [
        "",
        "Geometric means of the ratios, and the lowest:",
        "",
        "| over | cases | mean | lowest |",
        "|---|---|---|---|",
    ]
    names = {"hf": "generate", "vllm": "vLLM", "loose": "loose"}
    for row in record["result"]["means"]:
        lines.append(f"| {names[row['over']]} | {row['cases']} | {_number(row['mean'])} | {_number(row['lowest'])} |")
    rate = record["result"]["rate_gflops"]
    return "\n".join(lines) + f"\n\nOn {record['machine']}; products at {rate:.0f} GFLOP/s.\n\n{SHORT}"


def _overlap() -> str:
    file = RESULTS / "overlap.json"
    if not file.exists():
        return f"{OVERLAP}\n{NONE}"
    record = json.loads(file.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = record["result"]
    header = ["", "", *OVERLAP_COLUMNS.values(), "overlap"]
    lines = [OVERLAP, f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row, before in zip(rows, [None, *rows], strict=False):
        case = row["case"] if before is None or row["case"] != before["case"] else ""
        shown = [_number(row[key]) for key in OVERLAP_COLUMNS]
        overlap = f"**{row['overlap']:.0%}**" if row["overlap"] != "" else ""
        lines.append(f"| {case} | {row['how']} | {' | '.join(shown)} | {overlap} |")
    return "\n".join(lines) + f"\n\nOn {record['machine']}.\n\n"


def _schedules() -> str:
    file = RESULTS / "schedules.json"
    if not file.exists():
        return f"{SCHEDULES}\n{NONE}"
    record = json.loads(file.read_text(encoding="utf-8"))
    header = ["width", "staleness", *SCHEDULE_COLUMNS.values()]
    lines = [SCHEDULES, f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in record["result"]:
        shown = [_number(row[key]) for key in SCHEDULE_COLUMNS]
        lines.append(f"| {row['width']} | {row['staleness']} | {' | '.join(shown)} |")
    return "\n".join(lines) + f"\n\nOn {record['machine']}.\n\n"


def _accuracy(rows: list[dict[str, Any]]) -> str:
    lines = [
        "Greedy accuracy on held-out problems after equal samples, twelve seeds:",
        "",
        "| | mean | standard error | lowest | highest |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        figures = [f"{row[key]:.1%}" for key in ("mean", "error", "lowest", "highest")]
        lines.append(f"| {WHO[row['who']]} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n\n"


def _updates(rows: list[dict[str, Any]]) -> str:
    gradient, weights = rows
    return (
        f"Given TRL's own samples, Stretto makes TRL's updates: over {gradient['steps']} steps the gradients differ by "
        f"at most {gradient['largest']:.0e} of their norm, and at the end the weights by {weights['last']:.0e} of how "
        "far they have moved.\n\n"
    )


def _seeds() -> str:
    record = json.loads((RESULTS / "seeds.json").read_text(encoding="utf-8"))
    lines = [
        "## The quickstart",
        "",
        "`make seeds`: greedy accuracy on held-out problems, and the whole time of a run.",
    ]
    lines += ["", "| seed | after warm-up | after GRPO | gain, points | CPU time, s |", "|---|---|---|---|---|"]
    for row in record["result"]:
        figures = f"{row['before']:.1f} % | {row['after']:.1f} % | {row['gain']:+.1f} | {row['cpu_s']:.0f}"
        lines.append(f"| {row['seed']} | {figures} |")
    return "\n".join(lines) + f"\n\nOn {record['machine']}.\n"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
