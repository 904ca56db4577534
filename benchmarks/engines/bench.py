"""Stretto's engine beside Hugging Face's ``generate`` and vLLM: tokens written per CPU second. ``make bench-engines``.

Every engine is a process of its own with one thread, and they take turns, case by case: the same weights, precision
(float32), prompts and number of new tokens (32 each, no stops), each batch as many sequences as the engine has slots.
Prompts are random, those of a group are the same. CPU seconds are of the whole process and of the whole batch: prompts
computed, tokens drawn, results handed over. Stretto and vLLM tell each token's log-prob; ``generate`` does not.

``loose`` is Stretto's engine with ``batch_invariant`` off: ``over_loose`` below 1 is what invariance costs.

``share`` is Stretto's: the arithmetic of the matrix products that the batch needs (each prompt of a group once) over
its CPU time, as a part of the best rate at which this machine multiplies matrices on one thread.

    MODELS=tiny,small,smollm   which models (default all);  VLLM_PYTHON=...  vLLM's environment, left out if not there

Prediction (written before the first run): 2.5 times ``generate`` as geometric mean, 1.3 at batch 64 without groups;
vLLM's pace 0.9 of ours at 1 M, ours 0.75 of vLLM's at 135 M without groups, 2 with groups on long prompts.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stretto.backends.torch.backend import ModelSpec, TorchBackend
from stretto.backends.torch.hf_config import load_hf_config
from stretto.config.backends import TorchBackendConfig
from stretto.data.locations import folder_of
from stretto.families.decoder import DecoderSpec

sys.path.insert(0, str(Path(__file__).parents[1]))
from arithmetic import generation_products, product_rate
from table import print_table, write_result

HERE = Path(__file__).parent
NEW = 32
PYTHON = {
    "stretto": sys.executable,
    "loose": sys.executable,
    "hf": sys.executable,
    "vllm": os.environ.get("VLLM_PYTHON", ".venv-vllm/bin/python"),
}
OTHERS = ("hf", "vllm", "loose")
SCRIPT = {"stretto": "run_native.py", "loose": "run_native.py", "hf": "run_hf.py", "vllm": "run_vllm.py"}
CASES = [(batch, prompt, n) for batch in (1, 8, 64) for prompt in (45, 300) for n in (1, 8) if n <= batch]
SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "dtype": "float32",
}
REPEATS = {"tiny": 5, "small": 5, "smollm": 3}
"""Measured batches of a case; of 64 sequences of SmolLM2, which take minutes, one."""
NAMES = {"tiny": "1 M", "small": "5 M", "smollm": "135 M"}


@dataclass(slots=True)
class Engine:
    """A child process that answers one line with one."""

    who: str
    process: subprocess.Popen[str]

    @classmethod
    def start(cls, who: str, folder: str, slots: int) -> "Engine":
        """A child with this many slots; the benchmark ends if it does not come up."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [PYTHON[who], str(HERE / SCRIPT[who]), folder, str(slots), "384", "float32", who]
        log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the child holds it
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            log.seek(0)
            sys.exit(f"{who} did not start:\n{log.read()[-4000:]}")
        return cls(who, process)

    def run(self, prompts: list[list[int]], n: int) -> dict[str, float]:
        """Generate one batch."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"prompts": prompts, "n": n, "new": NEW}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{self.who} died, with status {self.process.wait()}.")
        result: dict[str, float] = json.loads(answer)
        assert result["tokens"] == len(prompts) * n * NEW, (self.who, result)
        return result

    def close(self) -> None:
        """End the child."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def folder_with(name: str, place: Path) -> str:
    """The model's folder: SmolLM2's own, or random weights written once."""
    if name == "smollm":
        return str(folder_of("builtin:smollm2-135m-instruct"))
    config = load_hf_config("builtin:tiny-llama-char") if name == "tiny" else SMALL
    (place / name).mkdir()
    (place / name / "config.json").write_text(json.dumps(config))
    if name == "tiny":
        path = "builtin:tiny-llama-char"
    else:
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(place / name))
        model.save_pretrained(place / name)
        return str(place / name)
    backend = TorchBackend({"policy": ModelSpec(path=path)}, TorchBackendConfig(threads=1), seed=0)
    backend.export("policy", place / name)
    backend.close()
    return str(place / name)


def compare(name: str, place: Path, rate: float) -> list[dict[str, object]]:
    """All cases of one model: a row each."""
    folder = folder_with(name, place)
    spec = DecoderSpec.from_config(json.loads((Path(folder) / "config.json").read_text()))
    there = [who for who in PYTHON if Path(PYTHON[who]).is_file()]
    rows: list[dict[str, object]] = []
    for batch in (1, 8, 64):
        engines = [Engine.start(who, folder, batch) for who in there]
        for _, prompt, n in (case for case in CASES if case[0] == batch):
            rng = np.random.default_rng([batch, prompt, n])
            seconds: dict[str, list[float]] = {who: [] for who in there}
            long = name == "smollm" and batch == 64
            for attempt in range(2 if long else REPEATS[name] + 1):
                prompts = rng.integers(3, spec.vocab_size, (batch // n, prompt)).tolist()
                for engine in engines:
                    if attempt or not long:  # the first is a trial
                        result = engine.run(prompts, n)
                        if attempt:
                            seconds[engine.who].append(result["cpu_s"])
            tokens = batch * NEW
            row: dict[str, object] = {"model": NAMES[name], "batch": batch, "prompt": prompt, "group": n}
            pace = {who: tokens / statistics.median(seconds[who]) for who in there}
            row |= {who: pace.get(who, math.nan) for who in PYTHON}
            row |= {f"over_{who}": pace["stretto"] / pace[who] if who in pace else math.nan for who in OTHERS}
            row["share"] = (
                generation_products(spec, batch // n, n, prompt, NEW) / statistics.median(seconds["stretto"]) / rate
            )
            rows.append(row)
            print(
                "  " + ", ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()),
                flush=True,
            )
        for engine in engines:
            engine.close()
    return rows


def means(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Geometric means and the lowest of the ratios, of all cases and of groups on long prompts."""

    def row(what: str, chosen: list[Any], other: str) -> dict[str, object]:
        ratios = [r[f"over_{other}"] for r in chosen if not math.isnan(r[f"over_{other}"])]
        mean = statistics.geometric_mean(ratios) if ratios else math.nan
        return {
            "over": other,
            "cases": what,
            "mean": mean,
            "lowest": min(ratios, default=math.nan),
            "count": len(ratios),
        }

    groups = [r for r in rows if r["group"] == 8 and r["prompt"] == 300]
    alone = [r for r in rows if r["group"] == 1]
    picks = (("all", rows), ("groups of 8, prompts of 300", groups), ("groups of 1", alone))
    return [row(what, chosen, other) for other in OTHERS for what, chosen in picks]


def main() -> None:
    """Run, print the tables, write the results."""
    chosen = os.environ.get("MODELS", ",".join(NAMES)).split(",")
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        sys.exit(f"MODELS={','.join(unknown)} is not known. Name some of {','.join(NAMES)}.")
    rate = product_rate()
    print(
        f"tokens written per CPU second, float32, one thread; products run at {rate / 1e9:.0f} GFLOP/s here", flush=True
    )
    with tempfile.TemporaryDirectory() as place:
        rows = [row for name in chosen for row in compare(name, Path(place), rate)]
    print_table("Tokens per CPU second; over: Stretto's over the other's", rows)
    print_table("Ratios, geometric mean", means(rows))
    if set(chosen) == set(NAMES):
        write_result("engines", {"rate_gflops": rate / 1e9, "cases": rows, "means": means(rows)})


if __name__ == "__main__":
    main()
