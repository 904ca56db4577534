"""Reward processes from the outside: how scripts start them, and that they never outlive their parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from stretto.environments.faults import Fault
from stretto.environments.rewards import Answer
from stretto.environments.worker import decode_answer, encode_answer

SCRIPT = """
import asyncio, re, sys, time
import numpy as np
from stretto.config.rewards import RewardConfig
from stretto.environments.judge import RewardJudge
from stretto.types import Group, Key, Prompt, Trajectory

LIMIT = 40

def helper(text):
    return len(text)

def mine(prompt, trajectory):
    if trajectory.text == "sleeps":
        time.sleep(1000)
    if trajectory.text == "regex":
        re.match(r"(a+)+$", "a" * LIMIT + "b")
    return helper(trajectory.text)

def group(text):
    trajectory = Trajectory(key=Key(0, 0), token_ids_T=np.zeros(1, np.int32), mask_T=np.ones(1, np.uint8),
                            logprobs_T=np.zeros(1, np.float32), versions=(), finish="stop", text=text)
    prompt = Prompt(uid="u", text="", token_ids=np.zeros(1, np.int32))
    return Group(draw=0, prompt=prompt, trajectories=(trajectory,))

async def main(texts):
    judge = RewardJudge(RewardConfig(workers=3, timeout_s=600), mine)
    await judge.start()
    print(*judge.pids, flush=True)
    judged = await asyncio.gather(*(judge.judge(group(text)) for text in texts))
    print([t.reward for g in judged for t in g.trajectories], flush=True)
    await judge.close()

asyncio.run(main(TEXTS))
"""


def script(*texts: str) -> str:
    return SCRIPT.replace("TEXTS", repr(texts))


def start(arguments: list[str], folder: Path, text: str | None = None) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
    )
    if text is not None:
        process.stdin.write(text)
    process.stdin.close()
    return process


def pids_of(process: subprocess.Popen) -> list[int]:
    return [int(pid) for pid in process.stdout.readline().split()]


def gone_soon(pids: list[int]) -> bool:
    """Whether all these processes are dead within ten seconds. A zombie that nobody reaps is dead."""

    def alive(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    for _ in range(1000):
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("how", ["a script without a guard", "standard input", "-c"])
def test_users_functions_from_anywhere(tmp_path: Path, how: str):
    text = script("a", "bb", "ccc", "dddd")
    (tmp_path / "train.py").write_text(text)
    # A file of the user's that is called like a module of ours or of the standard library does no harm.
    (tmp_path / "rewards.py").write_text("raise RuntimeError\n")
    if how == "a script without a guard":
        process = start(["train.py"], tmp_path)
    elif how == "standard input":
        process = start(["-"], tmp_path, text)
    else:
        process = start(["-c", text], tmp_path)
    pids = pids_of(process)
    assert process.stdout.readline() == "[1.0, 2.0, 3.0, 4.0]\n"
    assert process.wait(30) == 0
    assert len(pids) == 3
    assert gone_soon(pids)


def test_a_reward_from_the_users_module_beside_the_script(tmp_path: Path):
    text = script("a", "bb").replace("def helper", "from my_module import reward as mine_too\ndef helper")
    text = text.replace("timeout_s=600), mine)", "timeout_s=600), mine_too)")
    (tmp_path / "my_module.py").write_text("def reward(prompt, trajectory):\n    return 7\n")
    (tmp_path / "train.py").write_text(text)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    process = start([str(tmp_path / "train.py")], elsewhere)
    pids_of(process)
    assert process.stdout.readline() == "[7.0, 7.0]\n"
    assert process.wait(30) == 0


def test_a_killed_parent_leaves_no_process(tmp_path: Path):  # pitfall 31
    # One idle, one asleep, one in a regular expression that never gives the interpreter back.
    process = start(["-"], tmp_path, script("sleeps", "regex"))
    pids = pids_of(process)
    assert len(pids) == 3
    time.sleep(0.5)
    assert all(psutil.pid_exists(pid) for pid in pids)
    process.kill()
    process.wait(30)
    assert gone_soon(pids)


def test_an_interrupt_is_the_parents_to_decide(tmp_path: Path):
    process = start(["-"], tmp_path, script("sleeps"))
    pids = pids_of(process)
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.3)
    assert all(psutil.pid_exists(pid) and os.getpgid(pid) == pid for pid in pids)
    process.kill()
    process.wait(30)
    assert gone_soon(pids)


def test_a_reward_process_needs_neither_torch_nor_the_configuration():
    heavy = "{'torch', 'transformers', 'ray', 'pydantic'}"
    code = f"import stretto.environments.worker, sys; print(sorted({heavy} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    code = code.replace("worker", "judge").replace("'pydantic'", "'ray'")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_answers_keep_their_bits():
    rows = [{"a": 0.1 + 0.2, "b": None, "é\ud800": -0.0}, {"a": 5e-324}]
    assert decode_answer(encode_answer(Answer(rows=rows))) == Answer(rows=rows, notes=[])
    noted = Answer(rows=rows, notes=[{"logged": {"x": [0.1, 5e-324]}}, {"extra": {"pred": "é\ud800"}}])
    assert decode_answer(encode_answer(noted)) == noted
    fault = Fault(cause="x", sample=3, traceback="line\nline")
    assert decode_answer(encode_answer(fault)) == fault
