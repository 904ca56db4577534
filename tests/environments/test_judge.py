"""The judge: every kind of failure under every policy, with real processes that are really killed."""

import asyncio
import os
import re
import signal
import sys
import threading
import time

import psutil
import pytest

from stretto.config.rewards import RewardConfig
from stretto.environments.judge import GroupDropped, RewardJudge
from stretto.errors import ConfigError, RewardError
from stretto.types import Group


def run(config: RewardConfig, reward, body, **options):
    """``body(judge)`` on a started judge, which is closed in any case and leaves no process."""

    async def main():
        num_open = psutil.Process().num_fds()
        judge = RewardJudge(config, reward, **options)
        try:
            await judge.start()
            return await body(judge)
        finally:
            pids = judge.pids
            await judge.close()
            assert judge.pids == ()
            assert not any(psutil.pid_exists(pid) for pid in pids)
            assert psutil.Process().num_fds() <= num_open

    return asyncio.run(main())


# --- rewards that fail when a text asks for it; nested in functions, so that they travel by value ------------------


def failing(kind: str):
    """A reward that is 1.0, but fails in the way of ``kind`` on the text "bad"."""

    def reward(prompt, trajectory):
        if trajectory.text != "bad":
            return 1.0
        if kind == "raises":
            raise ValueError("on purpose")
        if kind == "nan":
            return float("nan")
        if kind == "string":
            return "1.0"
        if kind == "sleeps":
            time.sleep(1000)
        if kind == "spins":
            while True:
                pass
        if kind == "holds the interpreter":
            re.match(r"(a+)+$", "a" * 40 + "b")
        if kind == "exits":
            os._exit(3)
        if kind == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    return reward


CAUSES = {
    "raises": "ValueError: on purpose",
    "nan": "it returned nan",
    "string": "it returned '1.0', a str",
    "not applicable": "no reward applies",
    "sleeps": "no answer within 0.7 s",
    "spins": "no answer within 0.7 s",
    "holds the interpreter": "no answer within 0.7 s",
    "exits": "the reward process ended with status 3",
    "is killed": "the reward process died of SIGKILL",
}


@pytest.mark.parametrize("policy", ["fail", "retry", "drop"])
@pytest.mark.parametrize("kind", sorted(CAUSES))
def test_every_failure_under_every_policy(make_group, kind, policy):  # pitfall 1, pitfall 2
    async def body(judge):
        bad = make_group(draw=7, texts=("good", "bad"))
        expected = GroupDropped if policy == "drop" else RewardError
        with pytest.raises(expected, match="failed on prompt 'p7'") as caught:
            await judge.judge(bad)
        # Whatever happened, the next group is judged.
        good = await judge.judge(make_group(draw=8, texts=("good", "good")))
        assert [t.reward for t in good.trajectories] == [1.0, 1.0]
        return str(caught.value), caught.value, judge.report

    hangs = kind in ("sleeps", "spins", "holds the interpreter")
    config = RewardConfig(on_error=policy, retries=1, timeout_s=0.7 if hangs else 30)
    message, error, report = run(config, failing(kind), body)
    assert CAUSES[kind] in message
    assert "'reward'" in message
    assert report.failures == (2 if policy == "retry" else 1)
    assert report.judged == 2
    assert report.dropped == (1 if policy == "drop" else 0)
    assert report.first_failure is not None
    assert CAUSES[kind] in report.first_failure
    if kind == "raises":
        assert "sample 1" in message
        assert re.search(r"test_judge\.py:\d+\)", message)
        assert re.search(r"test_judge\.py\", line \d+, in reward\nValueError: on purpose", str(error.__cause__))
    if policy != "drop":
        assert message.endswith("reward.on_error=drop." if policy == "retry" else "reward.on_error=retry or drop.")


def test_retry_gets_over_a_passing_failure(make_group, tmp_path):
    marker = tmp_path / "seen"

    def reward(prompt, trajectory):
        if not marker.exists():
            marker.touch()
            os._exit(1)
        return 2.0

    async def body(judge):
        judged = await judge.judge(make_group())
        return judged, judge.report

    judged, report = run(RewardConfig(on_error="retry", retries=1), reward, body)
    assert [t.reward for t in judged.trajectories] == [2.0, 2.0]
    assert (report.judged, report.failures) == (1, 1)


def test_too_many_dropped_end_the_run(make_group):  # pitfall 2
    async def body(judge):
        texts = ["bad" if draw in (0, 4, 10) else "good" for draw in range(12)]
        tasks = [judge.judge(make_group(draw=draw, texts=(text,))) for draw, text in enumerate(texts)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = run(RewardConfig(on_error="drop", max_dropped=0.2), failing("raises"), body)
    assert [type(outcomes[draw]) for draw in (0, 4, 10)] == [GroupDropped, GroupDropped, RewardError]
    assert "ValueError: on purpose" in outcomes[4].why
    message = str(outcomes[10])
    assert message.startswith("3 of 11 groups were dropped, more than reward.max_dropped=0.2. The first failure: ")
    assert "prompt 'p0'" in message
    assert sum(isinstance(outcome, Group) for outcome in outcomes) == 9


def test_a_late_process_is_never_dropped_for_under_determinism(make_group):  # pitfall 22
    async def body(judge):
        with pytest.raises(RewardError, match=r"no answer within 0\.3 s.*schedule\.deterministic=true"):
            await judge.judge(make_group(texts=("bad",)))

    run(RewardConfig(on_error="drop", timeout_s=0.3), failing("sleeps"), body, deterministic=True)

    async def raises(judge):
        with pytest.raises(GroupDropped):
            await judge.judge(make_group(texts=("bad",)))

    run(RewardConfig(on_error="drop"), failing("raises"), raises, deterministic=True)


def test_scores_by_name_and_async_rewards(make_group):
    def scored(prompt, trajectory):
        return {"form": 0.5, "answer": None if trajectory.text == "a" else 1}

    async def waits(prompt, trajectory):
        import asyncio

        await asyncio.sleep(0)
        return ord(trajectory.text)

    async def body(judge):
        return await judge.judge(make_group())

    for workers in (0, 1):
        judged = run(RewardConfig(workers=workers), scored, body)
        assert [t.rewards for t in judged.trajectories] == [
            {"form": 0.5, "answer": None},
            {"form": 0.5, "answer": 1.0},
        ]
        assert [t.reward for t in judged.trajectories] == [0.5, 1.5]
        judged = run(RewardConfig(workers=workers), waits, body)
        assert [t.rewards for t in judged.trajectories] == [{"waits": 97.0}, {"waits": 98.0}]


def test_a_passed_function_keeps_the_name_it_was_passed_under(make_group):
    async def body(judge):
        return await judge.judge(make_group(answer="a"))

    judged = run(RewardConfig(use="python:mine"), lambda prompt, trajectory: 1.0, body)
    assert judged.trajectories[0].rewards == {"mine": 1.0}


@pytest.mark.parametrize("kind", ["raises", "nan", "not applicable"])
def test_failures_in_this_process(make_group, kind):
    async def body(judge):
        assert judge.pids == ()
        with pytest.raises(RewardError, match="failed on prompt 'p0'") as caught:
            await judge.judge(make_group(texts=("bad",)))
        assert CAUSES[kind] in str(caught.value)

    run(RewardConfig(workers=0), failing(kind), body)


def test_prints_do_not_reach_the_protocol(make_group, capfd):
    def chatty(prompt, trajectory):
        print("to stdout")
        sys.stderr.write("to stderr\n")
        os.write(1, b"to descriptor 1\n")
        os.system("echo from a child; cat")
        try:
            input()
        except EOFError:
            print("nothing to read")
        return 1.0

    async def body(judge):
        return await judge.judge(make_group(texts=("a",)))

    assert run(RewardConfig(), chatty, body).trajectories[0].reward == 1.0
    out, err = capfd.readouterr()
    assert out == ""
    for line in ("to stdout", "to stderr", "to descriptor 1", "from a child", "nothing to read"):
        assert line in err


def test_a_big_group_with_big_answers(make_group):
    def big(prompt, trajectory):
        assert trajectory.token_ids_T[-1] == 199_999
        return {f"{'name' * 50}{i}": float(i) / 3 for i in range(200)}

    async def body(judge):
        return await judge.judge(make_group(texts=("x",) * 64, num_tokens=200_000))

    judged = run(RewardConfig(), big, body)
    assert len(judged.trajectories) == 64
    assert list(judged.trajectories[63].rewards.values()) == [i / 3 for i in range(200)]


def test_results_never_depend_on_who_finished_first(make_group):
    def jittery(prompt, trajectory):
        import random

        time.sleep(0.002 * (prompt.data["delay"]))
        return {"own": float(trajectory.text), "chance": random.random(), "order": float(hash("text") % 1000)}

    groups = [make_group(draw=d, texts=(str(d), str(d + 0.5)), delay=d % 3) for d in range(24)]

    async def body(judge):
        judged = await asyncio.gather(*(judge.judge(group) for group in groups))
        return [[(t.key, dict(t.rewards), t.reward) for t in group.trajectories] for group in judged]

    one = run(RewardConfig(workers=1), jittery, body)
    three = run(RewardConfig(workers=3), jittery, body)
    assert one == three
    assert [row[0][1]["own"] for row in one] == list(range(24))


def test_processes_judge_at_the_same_time_and_survive_a_hanging_neighbour(make_group, tmp_path):
    def meets(prompt, trajectory):
        if trajectory.text == "bad":
            time.sleep(1000)
        (tmp_path / trajectory.text).touch()
        while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
            time.sleep(0.005)
        return 1.0

    async def body(judge):
        hanging = asyncio.create_task(judge.judge(make_group(texts=("bad",))))
        await asyncio.gather(judge.judge(make_group(texts=("a",))), judge.judge(make_group(texts=("b",))))
        with pytest.raises(GroupDropped, match="no answer within 3 s"):
            await hanging

    run(RewardConfig(workers=3, timeout_s=3, on_error="drop"), meets, body)


def test_a_cancelled_group_frees_its_process(make_group):
    async def body(judge):
        (pid,) = judge.pids
        task = asyncio.create_task(judge.judge(make_group(texts=("bad",))))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not psutil.pid_exists(pid)
        await judge.judge(make_group(texts=("good",)))
        return judge.report

    assert run(RewardConfig(), failing("sleeps"), body).failures == 0


def test_closing_ends_what_is_being_judged_and_what_waits(make_group):
    async def body(judge):
        tasks = [asyncio.create_task(judge.judge(make_group(draw=d, texts=("bad",)))) for d in range(3)]
        await asyncio.sleep(0.1)
        await judge.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all("after the rewards were closed" in str(r) and isinstance(r, RewardError) for r in results)
        with pytest.raises(RewardError, match="after the rewards were closed"):
            await judge.judge(make_group())
        await judge.close()

    run(RewardConfig(timeout_s=100), failing("sleeps"), body)


def test_children_of_a_killed_reward_die_with_it(make_group, tmp_path):
    def forks(prompt, trajectory):
        import subprocess

        child = subprocess.Popen(["sleep", "1000"])
        (tmp_path / "pid").write_text(str(child.pid))
        time.sleep(1000)

    async def body(judge):
        with pytest.raises(GroupDropped):
            await judge.judge(make_group(texts=("a",)))

    run(RewardConfig(timeout_s=0.5, on_error="drop"), forks, body)
    child = int((tmp_path / "pid").read_text())
    assert _gone_soon([child])


def test_a_loop_in_another_thread(make_group):
    outcome = []

    async def body(judge):
        with pytest.raises(GroupDropped):
            await judge.judge(make_group(texts=("bad",)))
        judged = await judge.judge(make_group(texts=("good",)))
        outcome.append(judged.trajectories[0].reward)

    config = RewardConfig(on_error="drop", timeout_s=0.3)
    thread = threading.Thread(target=lambda: run(config, failing("spins"), body))
    thread.start()
    thread.join(30)
    assert outcome == [1.0]


def test_alarms_work_in_a_reward(make_group):  # pitfall 2
    def alarmed(prompt, trajectory):
        def ring(number, frame):
            raise TimeoutError("rang")

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            time.sleep(10)
        except TimeoutError:
            return 0.5
        return 1.0

    async def body(judge):
        return await judge.judge(make_group(texts=("a",)))

    assert run(RewardConfig(timeout_s=5), alarmed, body).trajectories[0].reward == 0.5


def test_a_reward_that_cannot_travel_is_refused():
    lock = threading.Lock()

    def locked(prompt, trajectory):
        with lock:
            return 1.0

    with pytest.raises(ConfigError, match=r"'locked' cannot be sent to a reward process \(TypeError.*workers=0"):
        RewardJudge(RewardConfig(), locked)


def test_a_reward_that_cannot_be_loaded_there_fails_at_the_start(tmp_path, monkeypatch):
    (tmp_path / "only_here_for_test.py").write_text("def reward(prompt, trajectory):\n    return 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    judge = RewardJudge(RewardConfig(use="only_here_for_test:reward", workers=2))
    (tmp_path / "only_here_for_test.py").unlink()

    async def main():
        with pytest.raises(ConfigError, match=r"'reward' cannot be loaded in a reward process \(ModuleNotFoundError"):
            await judge.start()
        assert judge.pids == ()

    asyncio.run(main())


def test_wrong_names_are_refused_at_once():  # pitfall 25
    with pytest.raises(ConfigError, match="Did you mean 'exact_match'"):
        RewardJudge(RewardConfig(use="exactmatch"))


def _gone_soon(pids) -> bool:
    """Whether all these processes are dead within ten seconds. A zombie that nobody reaps is dead."""

    def alive(pid):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    for _ in range(1000):
        if not any(alive(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False
