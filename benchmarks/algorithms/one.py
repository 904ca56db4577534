"""One training by Stretto, in a process of its own: ``one.py JOB.json RESULT.json``. See ``bench.py``."""

import json
import sys
from pathlib import Path
from typing import Any

from stretto.api.runs import start
from stretto.config.load import recipe_from_mapping
from stretto.config.merging import merge
from stretto.store import EvalBody, GroupBody, RunView, StepBody

__all__ = ["curve_of", "recipe_of"]


def recipe_of(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The quickstart's problem from a warmed policy; ``overrides`` go over it."""
    exam = {"by": "attempts", "prompts": {"type": "jsonl", "path": job["held_out"]}, "max_tokens": 5}
    sets = {"exam": exam} if job.get("examine", True) else {}  # the policy of a reward model's run stays as it is
    recipe: dict[str, Any] = {
        "runs_dir": str(folder / "runs"),
        "name": job["name"],
        "seed": job["seed"],
        "steps": job["steps"],
        "model": {"path": job["model"]},
        "prompts": {"type": "jsonl", "path": job["train"], "held_out": 0.0},
        "reward": {"use": "exact_match", "workers": 0},
        "sampling": {"n": 8, "max_tokens": 5},
        "engine": {"slots": 128, "threads": 1},
        "backend": {"lr": job["lr"], "threads": 1},
        "schedule": {"groups_per_step": 16},
        "evaluate": {
            "every": job["every"],
            "at_start": True,
            "at_end": True,
            "sets": sets,
        },
    }
    if job.get("pairs"):  # nothing is sampled
        recipe |= {"sampling": {}, "prompts": {"type": "jsonl", "path": job["pairs"], "held_out": 0.2}}
    return merge(recipe, job["overrides"])


def curve_of(view: RunView, per_draw: int, *, from_pairs: bool) -> dict[str, list[Any]]:
    """Held-out accuracy after so many samples, those of dropped groups too; what the critic explains, if there is one;
    and the share of held-out pairs that are ordered rightly, if it learned from pairs."""
    samples = 0
    points: list[list[float]] = []
    pairs: list[list[float]] = []
    explained: list[float] = []
    for event in view.events:
        match event.body:
            case GroupBody():
                samples += per_draw
            case EvalBody(name="exam") as body:
                points.append([samples, body.accuracy])
            case EvalBody(name="held_out") as body if from_pairs:
                pairs.append([samples, body.accuracy])
            case StepBody() as body if "credit/explained_variance" in body.metrics:
                explained.append(body.metrics["credit/explained_variance"])
            case _:
                pass
    return {"points": points, "explained_variance": explained, "pairs": pairs}


def main() -> None:
    """Train, and write the curve."""
    job = json.loads(Path(sys.argv[1]).read_text())
    recipe = recipe_from_mapping(recipe_of(job, Path(sys.argv[2]).parent))
    view = start(recipe)
    Path(sys.argv[2]).write_text(
        json.dumps({**curve_of(view, job["per_draw"], from_pairs=bool(job.get("pairs"))), "cpu_s": view.cpu_s})
    )


if __name__ == "__main__":
    main()
