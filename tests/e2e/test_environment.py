"""Runs of several turns on the real tiny model: killed and resumed to the same bits, and evaluated alike."""

import stretto as api
from stretto.store import RunView, compare_runs

GAME = """
import random

class Echo:
    def __init__(self, prompt, turns=2):
        self.random, self.left, self.right = random.Random(random.random()), turns, 0

    def start(self):
        self.want = self.random.choice("ab")
        return self.want

    def reply(self, text):
        self.right += text == self.want
        self.left -= 1
        return self.start() if self.left else None

    def score(self):
        return self.right / 2
"""

KEYS = [
    "environment.use=echo_game:Echo",
    "environment.on_length=reply",
    "environment.max_total_tokens=32",
    "reward.use=environment",
    "sampling.max_tokens=1",
]


def test_killed_and_resumed_to_the_same_bits(stretto, monkeypatch):  # pitfall 8
    (stretto.folder / "echo_game.py").write_text(GAME)
    monkeypatch.setenv("PYTHONPATH", f"{stretto.folder}:{__import__('os').environ.get('PYTHONPATH', '')}")
    whole = stretto.train("whole", KEYS)
    process = stretto.start("train", stretto.short, "name=killed", *KEYS)
    killed = stretto.folder / "runs" / "killed"
    while not list(killed.glob("checkpoints/0*")) and process.poll() is None:
        pass
    process.kill()
    process.communicate(timeout=60)
    if RunView(killed).status != "done":
        stretto.run("resume", "killed")
    assert compare_runs(whole, killed) == []
    for recorded in RunView(killed).groups():
        for t in recorded.group.trajectories:
            assert [m.role for m in t.messages] == ["user", "assistant"] * 2
            assert t.num_written == 2 and t.finish == "env"


def test_a_class_from_python_and_evaluation_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    class Once:
        def __init__(self, prompt):
            pass

        def start(self):
            return "?"

        def reply(self, text):
            return None

        def score(self):
            return 1.0

    run = api.train(
        prompts=["a", "b", "c", "d"],
        held_out=0.5,
        reward="environment",
        environment={"use": Once, "max_total_tokens": 16, "on_length": "reply"},
        steps=1,
        sampling={"n": 2, "max_tokens": 2},
        schedule={"groups_per_step": 1},
    )
    assert run.metrics["batch/turns"] == 1.0
    assert [e.body.accuracy for e in run.evals][-1] == 1.0
