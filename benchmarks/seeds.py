"""The quickstart for seeds 0, 1, 2: held-out accuracy before and after reinforcement learning, and the time it takes.

Usage: seeds.py [key=value ...]   (overrides of the recipe)
"""

import statistics
import sys
import tempfile

from stretto.api.runs import start
from stretto.config.load import load_recipe
from stretto.recipes import FOLDER
from table import print_table, write_result

SEEDS = (0, 1, 2)


def main() -> None:
    """Run them one after the other, print the table, write results/seeds.json."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            overrides = [f"runs_dir={folder}", f"seed={seed}", *sys.argv[1:]]
            loaded = load_recipe("quickstart", overrides, packaged=FOLDER)
            view = start(loaded.recipe, hint=f"seed-{seed}")
            first, *_, last = view.evaluations()
            warmup = max(e.step for e in view.evaluations("warmup"))
            rows.append(
                {
                    "seed": seed,
                    "warm-up steps": warmup,
                    "before": 100 * first.body.accuracy,
                    "after": 100 * last.body.accuracy,
                    "gain": 100 * (last.body.accuracy - first.body.accuracy),
                    "problems": last.body.n,
                    "wall_s": view.wall_s,
                    "cpu_s": view.cpu_s,
                }
            )
            print_table(f"quickstart, {len(rows)} of {len(SEEDS)} seeds (held-out accuracy in %)", rows)
    after = [float(str(row["after"])) for row in rows]
    print(
        f"median after: {statistics.median(after):.1f} %, smallest gain: {min(float(str(r['gain'])) for r in rows):.1f}"
    )
    write_result("seeds", rows)


if __name__ == "__main__":
    main()
