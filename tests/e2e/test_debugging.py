"""``breakpoint()`` in code of one's own opens pdb in the command that makes a node again: in real processes."""

import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

SHORT = str(Path(__file__).parent / "short.yaml")

MINE = """
from dataclasses import replace

from stretto import Batch, Credit, LossRef, Prompt, Train, Trajectory, UpdateReport, node, workflow
from stretto.algorithms.aggregation import aggregation_weights
from stretto.workflows.nodes import advantages, collect, report, rollout, score


def reward(prompt: Prompt, trajectory: Trajectory) -> float:
    value = float(trajectory.token_ids_T.sum() % 7)
    return value


def loss(tokens):
    gain = tokens.logprobs_N * tokens.columns["advantages"]
    return -(gain * tokens.weights_N).sum()


@node
def halve(credit: Credit) -> Credit:
    column = credit.advantages
    return replace(credit, advantages=replace(column, values=column.values / 2))


@node
def fit(batch: Batch, credit: Credit, model: Train) -> UpdateReport:
    columns = (credit.advantages, aggregation_weights(batch, "token_mean"))
    return model.learn(batch, columns, LossRef(use="mine:loss"))


@workflow
def mine(prompt: Prompt, *, n: int = 4):
    group = rollout(prompt, n=n)
    scored = score(group)
    batch = collect(scored)
    credit = advantages(batch)
    half = halve(credit)
    learn = fit(batch, half)
    return report(learn)
"""
RUN = (
    "name=own",
    "workflow=mine:mine",
    "reward.use=mine:reward",
    "warmup=null",
    "steps=3",
    "evaluate={every: null, at_start: false, at_end: false}",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of code of one's own; afterwards every function of it has a breakpoint."""
    folder = tmp_path_factory.mktemp("pdb")
    (folder / "mine.py").write_text(MINE)
    subprocess.run([*COMMAND, "train", SHORT, *RUN], cwd=folder, env=ENV, check=True, capture_output=True)
    stopping = MINE
    for line in ("value = float", "gain = tokens", "column = credit"):
        stopping = stopping.replace(f"    {line}", f"    breakpoint()\n    {line}")
    (folder / "mine.py").write_text(stopping)
    return folder


COMMAND = (sys.executable, "-m", "stretto")
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


def debug(folder: Path, node: str, typed: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "debug", "own", "--step", "2", "--node", node]
    return subprocess.run(command, cwd=folder, env=ENV, input=typed, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("node", "typed", "said"),
    [
        ("scored", "p prompt.uid, 6 * 7\nc\nc\nc\nc\n", "42)"),
        ("half", "p credit.advantages.name\nc\n", "'advantages'"),
        ("learn", "p tokens.columns['advantages'].shape == tokens.logprobs_N.shape\nc\n", "True"),
    ],
)
def test_breakpoint_opens_in_a_reward_a_node_and_a_loss(folder, node, typed, said):
    done = debug(folder, node, typed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mine.py") == (4 if node == "scored" else 1)  # steps before are made again without a stop
    assert f"(Pdb) {said}" in done.stdout or said in done.stdout.partition("(Pdb)")[2].partition("\n")[0]


def test_a_whole_step_stops_nowhere(folder):
    command = [*COMMAND, "debug", "own", "--step", "2"]
    done = subprocess.run(command, cwd=folder, env=ENV, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0 and "(Pdb)" not in done.stdout
    assert "numbers are the recorded ones, to the bit" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("node", ["scored", "learn"])
def test_leaving_the_debugger_is_an_interrupt_and_no_failure(folder, node):
    done = debug(folder, node, "q\n")
    assert done.returncode == 130
    assert done.stderr == "interrupted: the debugger was left before the node had ended. The run is as it was.\n"


@pytest.mark.slow
def test_on_a_terminal_it_reads_what_is_typed(folder):
    """Signals and streams are the terminal's own: an interrupt at the prompt is pdb's."""
    command = [*COMMAND, "debug", "own", "--step", "1", "--node", "half"]
    parent, child = pty.openpty()
    process = subprocess.Popen(command, cwd=folder, env=ENV, stdin=child, stdout=child, stderr=child, close_fds=True)
    os.close(child)
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 60
        while text not in seen:
            assert time.monotonic() < end, seen
            try:
                seen += os.read(parent, 4096)
            except OSError:  # the other end is closed
                break

    until(b"(Pdb) ")
    os.write(parent, b"p column_of_mine if False else 40 + 2\n")
    until(b"42")
    os.write(parent, b"c\n")
    until(b"UNREACHED")
    os.close(parent)
    assert process.wait(timeout=60) == 0
    assert b"half (mine:halve)" in seen
