"""How good an attempt is. Change ``score`` for your own task; test_reward.py says what it must keep to."""


def score(prompt, trajectory):
    """The share of characters that are right and in their place: 1.0 for the answer, 0.0 for nothing of it.

    ``prompt.data`` is the row of data.jsonl without its prompt, which is ``prompt.text``; the answer is always
    ``prompt.data["answer"]``. ``trajectory.text`` is what the model wrote. Return a number, the more the better. A
    reward that tells better from worse is learned from sooner than one of 0 and 1 only.
    """
    answer = str(prompt.data["answer"])
    written = trajectory.text.strip()
    right = sum(a == b for a, b in zip(answer, written, strict=False))
    return right / max(len(answer), len(written))
