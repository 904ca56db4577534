"""The teacher of a run: where its weights are, and whether the policy can learn from it. Loads no weights."""

from collections.abc import Collection

from stretto.backends.torch.hf_config import load_hf_config
from stretto.config.recipe import Recipe
from stretto.data.locations import locate
from stretto.data.tokens import Tokenizer, load_tokenizer
from stretto.errors import ConfigError, DataError
from stretto.families.facts import max_positions_of

__all__ = ["check_teacher", "locate_teacher"]


def locate_teacher(recipe: Recipe, models: Collection[str]) -> tuple[Recipe, str | None]:
    """The recipe with the teacher's commit, and its folder or built-in name; None where no workflow has a teacher.

    ``models``: those of the run's workflows. ConfigError if they need a teacher and none is named.
    """
    if "teacher" not in models:
        return recipe, None
    teacher = recipe.teacher
    if teacher is None:
        raise ConfigError(
            "the workflow has a Model teacher, and teacher.path names none. Set teacher.path to a stronger model with "
            "the same tokenizer."
        )
    found = locate(teacher.path, teacher.revision, key="teacher")
    return recipe.model_copy(update={"teacher": teacher.model_copy(update={"revision": found.revision})}), found.path


def check_teacher(recipe: Recipe, path: str, policy: str, tokenizer: Tokenizer, longest: int) -> None:
    """The teacher in ``path`` reads what the policy in ``policy`` writes, up to ``longest`` tokens. DataError if not.

    ConfigError for an ``algorithm.top_k`` that is more than there are tokens.
    """
    assert recipe.teacher is not None
    name = f"the teacher {recipe.teacher.path}"
    theirs, ours = load_tokenizer(path).backend.get_vocab(True), tokenizer.backend.get_vocab(True)
    other = next(
        (token for token, index in sorted(ours.items(), key=lambda t: t[1]) if theirs.get(token) != index), None
    )
    if other is not None:
        there = "does not have it" if other not in theirs else f"has it as {theirs[other]}"
        raise DataError(
            f"{name} has another vocabulary than the policy: token {other!r} is {ours[other]} here, and the teacher "
            f"{there}. A teacher is asked about the policy's own tokens: take one with the same tokenizer."
        )
    size, there = _vocab_size(policy), _vocab_size(path)
    if there < size:
        raise DataError(
            f"{name} gives probabilities to {there} tokens, and the policy to {size}, so some tokens that the policy "
            "may write have none there. Take a teacher whose config.json has a vocab_size as large or larger."
        )
    top_k = getattr(recipe.algorithm, "top_k", None)
    if isinstance(top_k, int) and top_k > size:
        raise ConfigError(
            f"algorithm.top_k={top_k} is more than the {size} tokens there are. Set it to {size} or less, or "
            "algorithm.teacher_logprobs=full."
        )
    positions = max_positions_of(load_hf_config(path))
    if positions is not None and positions < longest:
        raise DataError(
            f"{name} was made for {positions} tokens, and a row may have {longest}. Set sampling.max_tokens lower, or "
            "take another teacher."
        )


def _vocab_size(path: str) -> int:
    size = load_hf_config(path).get("vocab_size")
    assert isinstance(size, int), f"{path} has vocab_size {size!r}"
    return size
