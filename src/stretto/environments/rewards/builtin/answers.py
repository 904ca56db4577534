"""What the built-in rewards that compare with an answer share: where the answer is, and which text is judged."""

import re
from collections.abc import Sequence
from importlib.util import find_spec

from stretto.errors import ConfigError, DataError, RewardError
from stretto.types import Json, Prompt

__all__ = ["answer_of", "check_answers", "judged_text", "refuse_without"]


def answer_of(prompt: Prompt, key: str) -> Json:
    """``prompt.data[key]``; RewardError if there is none."""
    answer = prompt.data.get(key)
    if answer is None:
        raise RewardError(_no_answer(prompt, key))
    return answer


def check_answers(prompts: Sequence[Prompt], key: str) -> None:
    """DataError naming the first prompt without an answer."""
    for prompt in prompts:
        if prompt.data.get(key) is None:
            raise DataError(_no_answer(prompt, key))


def judged_text(text: str, inside: str | None) -> str | None:
    """The text to judge: all of it, or what stands in the last ``<inside>...</inside>``; None if there is no such."""
    if inside is None:
        return text
    found = re.findall(rf"<{re.escape(inside)}>(.*?)</{re.escape(inside)}>", text, flags=re.DOTALL)
    return found[-1] if found else None


def refuse_without(package: str, extra: str, reward: str) -> None:
    """ConfigError if an optional package is not installed."""
    if find_spec(package) is None:
        raise ConfigError(
            f"the reward {reward!r} needs the package {package}, which is not installed: "
            f"pip install 'stretto[{extra}]'."
        )


def _no_answer(prompt: Prompt, key: str) -> str:
    # Written for the key that everybody has; another was asked for by name.
    what = "answer to match" if key == "answer" else f"{key!r} to compare with"
    remedy = "an answer" if key == "answer" else "one (reward.with.answer names the key)"
    return f"the prompt {prompt.uid!r} has no {what}. Give every prompt {remedy}, or use another reward."
