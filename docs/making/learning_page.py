"""The page of learning curves, from the file that ``make bench-algorithms`` leaves in ``benchmarks/results``."""

import json
from pathlib import Path
from typing import Any

__all__ = ["learning_page"]

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "algorithms.json"

HEAD = """# Algorithms side by side

What each algorithm learns from the same start, on the same problems, with equal samples. `make bench-algorithms` writes
the figures; this page is made from them.

"""

STALENESS = RESULT.with_name("staleness.json")

STALE_HEAD = """
## Staleness

`make bench-staleness`: GRPO from the same start, {samples:,} samples, {seeds} seeds, 16 prompts x 8 attempts a step.
Staleness 1 drains, 2 and 4 sample [in flight](concepts/staleness.md#more-in-flight) (`keep`). The quickstart's
learning rate is 1e-4.

![Held-out accuracy against samples, by learning rate and way of correction](pictures/staleness-learning.png)

| | |
|---|---|
| plain | `algorithm.proximal: detach`: as if attempts were fresh |
| clip | `algorithm.proximal: sampler`, the default where attempts lag: the ratio to the sampler's log-probs, clipped |
| weights | `algorithm.correction.weights: token`: ratios as weights, at most 2 |

Held-out accuracy at the end:

"""
STALE_READING = """\
It was foretold that at the quickstart's rate all would end within two points of on-policy. That was wrong. Without a
ratio the policy falls apart, the faster the more attempts lag. Weights bound what a single token can do, and nothing
holds the policy near what wrote the attempts, so they lose too. The clipped ratio does both, and even ends above
on-policy training, where the ratio is always 1 and no clip acts: at this rate on-policy updates are a little too large
for the problem. At a third of the rate only plain updates at staleness 2 and more lose. At four times the rate (4e-4,
tried once, three seeds) every way and every staleness fell to 0, on-policy training too.
[What to do about it](concepts/staleness.md#what-staleness-costs-in-learning).
"""

NONE = "No result has been recorded here yet; the command prints the table and writes the file.\n"


def learning_page() -> str:
    """The page."""
    if not RESULT.exists():
        return HEAD + NONE
    record = json.loads(RESULT.read_text(encoding="utf-8"))
    result = record["result"]
    text = HEAD + (
        f"The policy is the quickstart's after its warm-up: {100 * result['begin']:.1f} % of the held-out problems are "
        f"right. Each training takes {result['budget']:,} samples, 128 a step (what dynamic sampling drops and ReMax's "
        "greedy attempts count), AdamW at one learning rate, the algorithm's vetted "
        f"settings{_changed(result['changed'])}, seeds 0, 1 and 2. {_shape(result['alone'])} All are judged by one "
        "evaluator: greedy answers to 2,000 problems that none was trained on. TRL's GRPO and RLOO are the reference, "
        "on the same data.\n\n"
        "![Held-out accuracy against samples, a panel for each algorithm](pictures/algorithms.png)\n\n"
        "Each panel: mean over seeds and the range; dashed is TRL's GRPO.\n\n"
    )
    apart = ("reward-model", "ppo-longer")
    examined = [row for row in result["rows"] if row["algorithm"] not in apart]
    text += _table(examined) + f"\nOn {record['machine']}, one thread each.\n\n" + READING
    text += _longer(next((row for row in result["rows"] if row["algorithm"] == "ppo-longer"), None), result["budget"])
    pairs = [row for row in result["rows"] if row.get("pairs right", "") != ""]
    return text + (PAIRS + _pairs(pairs) if pairs else "") + _staleness()


def _staleness() -> str:
    """What staleness costs, with and without correction."""
    if not STALENESS.exists():
        return ""
    record = json.loads(STALENESS.read_text(encoding="utf-8"))
    result = record["result"]
    lines = [
        "| learning rate | staleness | | mean | lowest | highest | lowest on the way |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        figures = [f"{row[key]:.1f} %" for key in ("mean", "lowest", "highest", "worst on the way")]
        lines.append(f"| {row['lr']} | {row['staleness']} | {row['way']} | {' | '.join(figures)} |")
    text = STALE_HEAD.format(samples=result["samples"], seeds=len(result["seeds"]))
    return text + "\n".join(lines) + f"\n\nOn {record['machine']}.\n\n" + STALE_READING


def _shape(alone: list[str]) -> str:
    """How many attempts a prompt gets; ``alone``: the algorithms that take one."""
    if not alone:
        return "Every prompt gets 8 attempts."
    names = ", ".join(f"`{name}`" for name in alone)
    return f"Every prompt gets 8 attempts, but one with {names}, which compare no siblings: more prompts teach more."


def _changed(changed: dict[str, dict[str, Any]]) -> str:
    """The settings that are not the vetted ones."""
    told = [f"`{key}={value}` of {name}" for name, settings in changed.items() for key, value in settings.items()]
    return f" (but {', '.join(told)})" if told else ""


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["| | mean | lowest | highest | lowest on the way | critic explains |", "|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: -row["mean"]):
        name = row["algorithm"]
        shown = f"TRL {name.removeprefix('trl-')}" if name.startswith("trl-") else f"`{name}`"
        explains = f"{row['critic explains']:.2f}" if row["critic explains"] != "" else ""
        figures = [f"{row[key]:.1f} %" for key in ("mean", "lowest", "highest", "worst on the way")]
        lines.append(f"| {shown} | {' | '.join(figures)} | {explains} |")
    return "\n".join(lines) + "\n"


def _longer(row: dict[str, Any] | None, budget: int) -> str:
    """What PPO's critic knows in the end."""
    if row is None:
        return ""
    return (
        f"\nA critic learns from rewards alone, so slowly. After twenty times the samples ({20 * budget:,}, seed 0) "
        f"PPO's explains {row['critic explains']:.2f}, and {row['mean']:.1f} % of the held-out problems are right.\n"
    )


def _pairs(rows: list[dict[str, Any]]) -> str:
    lines = ["| | held-out pairs ordered rightly |", "|---|---|"]
    lines += [f"| `{row['algorithm']}` | {row['pairs right']:.1f} % |" for row in rows]
    return "\n".join(lines) + "\n"


PAIRS = """
## From pairs

`dpo` and `reward-model` learned from 9,600 pairs made of the same problems: the answer, and one with a wrong digit. A
fifth of the pairs was kept from them; mean over three seeds, where chance is 50 %.

"""

READING = """\
One seed's accuracy is sure to about a point (2,000 problems), and seeds differ by two or three; so neighbours in this
table are level. "Lowest on the way" is the worst evaluation of any seed, the start included: a collapse would show
there. ReMax compares with a greedy attempt, which is right far more often than sampled ones here (49 % against 28 %): a
poor guess of what they get, whose squared error is 0.35 against 0.19 of their siblings' mean. "Critic explains" is the
share of the returns' variance that its values explain at the end.
"""
