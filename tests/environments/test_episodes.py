"""Episodes in real processes that raise, hang and die, under every policy; and that innocents come to no harm."""

import asyncio
import os
import re
import signal
import time

import psutil
import pytest

from stretto.config.environments import EnvironmentConfig
from stretto.environments.episodes import Attempt, Episodes
from stretto.environments.judge import GroupDropped
from stretto.errors import ConfigError, DataError, RewardError
from stretto.testing import make_prompt


def run(make, body, *, deterministic=False, **keys):
    """``body(episodes)`` on started processes, which are closed in any case and leave nothing."""

    async def main():
        num_open = psutil.Process().num_fds()
        config = EnvironmentConfig(use="python:it", **keys)
        episodes = Episodes(config, make, deterministic=deterministic)
        try:
            await episodes.start()
            return await body(episodes)
        finally:
            pids = episodes.pids
            await episodes.close()
            assert episodes.pids == () and not any(psutil.pid_exists(pid) for pid in pids)
            assert psutil.Process().num_fds() <= num_open

    return asyncio.run(main())


async def play(episodes, *texts, sample=0, uid="p"):
    """All that an environment says to ``texts``, and its score."""

    async def conversation(episode):
        heard = [await episode.start()]
        for text in texts:
            heard.append(await episode.reply(text))
        return [*heard, await episode.end()]

    attempt = Attempt(prompt=make_prompt(uid=uid), draw=3, sample=sample, seed=lambda turn: 100 * sample + turn)
    return await episodes.play(attempt, conversation)


def failing(kind, marker=None):
    """An environment that echoes, but fails in the way of ``kind`` on the text "bad" (once, with a marker)."""

    class Echo:
        def __init__(self, prompt, prefix=""):
            self.heard = []
            self.prefix = prefix

        def start(self):
            return "go"

        def reply(self, text):
            self.heard.append(text)
            if text == "bad" and not (marker and os.path.exists(marker)):
                if marker:
                    open(marker, "w").close()
                if kind == "raises":
                    raise ValueError("on purpose")
                if kind == "sleeps":
                    time.sleep(1000)
                if kind == "holds the interpreter":
                    re.match(r"(a+)+$", "a" * 40 + "b")
                if kind == "exits":
                    os._exit(3)
                if kind == "is killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                return 3.5
            return self.prefix + text

        def score(self):
            return len(self.heard)

    return Echo


CAUSES = {
    "raises": "ValueError: on purpose",
    "nonsense": "it returned 3.5",
    "sleeps": "no answer within 0.7 s",
    "holds the interpreter": "no answer within 0.7 s",
    "exits": "the environment process ended with status 3",
    "is killed": "the environment process died of SIGKILL",
}


@pytest.mark.parametrize("policy", ["fail", "retry", "drop"])
@pytest.mark.parametrize("kind", sorted(CAUSES))
def test_every_failure_under_every_policy(kind, policy):  # pitfall 3
    async def body(episodes):
        episodes.group_begins()
        with pytest.raises(GroupDropped if policy == "drop" else RewardError) as caught:
            await play(episodes, "fine", "bad", sample=2)
        # Whatever happened, the next attempt is played.
        assert await play(episodes, "one", "two") == ["go", "one", "two", 2.0]
        return str(caught.value), caught.value, episodes.report

    timeout_s = 0.7 if CAUSES[kind].startswith("no answer") else 30
    message, error, report = run(failing(kind), body, on_error=policy, retries=1, timeout_s=timeout_s)
    assert "the environment 'Echo' failed on prompt 'p' (draw 3, sample 2, turn 2)" in message
    assert CAUSES[kind] in message
    assert report.failures == (2 if policy == "retry" else 1)
    assert report.dropped == (1 if policy == "drop" else 0)
    assert CAUSES[kind] in report.first_failure
    if kind == "raises":
        assert re.search(r"test_episodes\.py:\d+\)", message)
        assert "in reply\nValueError: on purpose" in re.sub(r'\n +[^\n]*"on purpose"[^\n]*', "", str(error.__cause__))
    if policy != "drop":
        assert message.endswith("environment.on_error=drop." if policy == "retry" else "on_error=retry or drop.")


def test_retry_begins_again_from_the_start(tmp_path):  # pitfall 3
    marker = str(tmp_path / "seen")

    async def body(episodes):
        return await play(episodes, "a", "bad", "c"), episodes.report.failures

    heard, failures = run(failing("exits", marker), body, on_error="retry")
    assert heard == ["go", "a", "bad", "c", 3.0]  # a fresh one: it heard three texts, not five
    assert failures == 1


@pytest.mark.parametrize("kind", ["sleeps", "is killed"])
def test_others_in_the_process_begin_again_and_are_not_to_blame(kind):  # pitfalls 3, 4
    async def body(episodes):
        async def slow(sample):
            async def conversation(episode):
                heard = [await episode.start()]
                for text in "abcdefgh":
                    await asyncio.sleep(0.1)
                    heard.append(await episode.reply(text))
                return heard

            attempt = Attempt(prompt=make_prompt(), draw=0, sample=sample, seed=lambda turn: turn)
            return await episodes.play(attempt, conversation)

        results = await asyncio.gather(*(slow(i) for i in range(4)), play(episodes, "bad"), return_exceptions=True)
        return results, episodes.report

    (*good, bad), report = run(failing(kind), body, on_error="drop", timeout_s=0.6)
    assert good == [["go", *"abcdefgh"]] * 4
    assert isinstance(bad, GroupDropped)
    assert report.failures == 1


def test_calls_that_wait_their_turn_are_not_late():  # pitfall 4
    class Slow:
        def __init__(self, prompt):
            pass

        def start(self):
            time.sleep(0.1)

        def reply(self, text):
            return None

    async def body(episodes):
        return await asyncio.gather(*(play(episodes, "x", sample=i) for i in range(12)))

    assert run(Slow, body, timeout_s=0.9) == [[None, None, None]] * 12


def test_async_environments_wait_at_the_same_time():
    class Waits:
        met = 0

        def __init__(self, prompt):
            pass

        async def start(self):
            Waits.met += 1
            while Waits.met < 5:  # only if all five are being asked
                await asyncio.sleep(0.01)
            return "met"

        def reply(self, text):
            return None

    async def body(episodes):
        return await asyncio.gather(*(play(episodes, sample=i) for i in range(5)))

    assert run(Waits, body) == [["met", None]] * 5


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_where_an_episode_lives_does_not_matter(workers):  # pitfalls 21, 22
    class Dice:
        def __init__(self, prompt):
            import random

            self.random = random.Random(random.random())

        def start(self):
            return str(self.random.random())

        def reply(self, text):
            import random

            return f"{text} {self.random.random()} {random.random()}"

    async def body(episodes):
        return await asyncio.gather(*(play(episodes, "a", "b", sample=i) for i in range(6)))

    heard = run(Dice, body, workers=workers)
    assert heard == run(Dice, body, workers=2)
    assert len({h[0] for h in heard}) == 6


def test_what_cannot_be_encoded_is_the_environments_fault():  # pitfall 3
    async def body(episodes):
        async def conversation(episode):
            raise DataError("the text 'é' has a character that no one knows.")

        attempt = Attempt(prompt=make_prompt(), draw=0, sample=0, seed=lambda turn: 0)
        with pytest.raises(RewardError, match=r"the environment 'Echo' failed on .* that no one knows"):
            await episodes.play(attempt, conversation)

    run(failing("raises"), body)


def test_more_dropped_than_the_ceiling_fails():  # pitfall 3
    async def body(episodes):
        for _ in range(9):
            episodes.group_begins()
        with pytest.raises(GroupDropped):
            await play(episodes, "bad")
        for _ in range(2):
            episodes.group_begins()
        with pytest.raises(
            RewardError, match=r"2 of 11 groups were dropped, more than environment\.max_dropped=0\.1\. The "
        ):
            await play(episodes, "bad")

    run(failing("raises"), body, on_error="drop", workers=0)


def test_under_deterministic_a_late_group_is_not_dropped():
    async def body(episodes):
        with pytest.raises(RewardError, match=r"Under schedule\.deterministic=true a group is not dropped for this"):
            await play(episodes, "bad")

    run(failing("exits"), body, on_error="drop", deterministic=True)


def test_what_cannot_be_sent_or_loaded_is_refused():
    import threading

    lock = threading.Lock()

    class Holds:
        held = lock

        def start(self): ...

        def reply(self, text): ...

    with pytest.raises(ConfigError, match="the environment 'Holds' cannot be sent to an environment process"):
        Episodes(EnvironmentConfig(use="python:it"), Holds)
    with pytest.raises(ConfigError, match="has no method reply"):
        Episodes(EnvironmentConfig(use="python:it"), type("Half", (), {"start": print}))


def test_closing_ends_what_is_played():
    async def body(episodes):
        playing = asyncio.ensure_future(play(episodes, "bad"))
        await asyncio.sleep(0.3)
        await episodes.close()
        with pytest.raises(RewardError, match="after the environments were closed"):
            await playing

    run(failing("sleeps"), body)


def test_a_cancelled_attempt_is_forgotten_and_harms_no_other():
    async def body(episodes):
        async def conversation(episode):
            await episode.start()
            await asyncio.sleep(1000)

        attempt = Attempt(prompt=make_prompt(), draw=0, sample=0, seed=lambda turn: 0)
        playing = asyncio.ensure_future(episodes.play(attempt, conversation))
        await asyncio.sleep(0.1)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        assert [process.num_episodes for process in episodes._processes] == [0]
        return await play(episodes, "a")

    assert run(failing("raises"), body) == ["go", "a", 1.0]
