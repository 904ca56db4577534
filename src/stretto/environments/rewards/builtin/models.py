"""The reward ``reward_model``: what a trained reward model says of an attempt.

Reads a folder through transformers, in the process of the reward. How rows were made in training is written in the
folder by Stretto; of another tool's model, rows are what its chat template or its tokenizer makes.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from stretto.errors import ConfigError, DataError, RewardError
from stretto.types import Group, Prompt, Trajectory

__all__ = ["RewardModel"]

AT_ONCE = 16
"""Attempts in one forward pass."""

TODAY = datetime(2024, 7, 26)
"""What a template that asks for the date is told, always, as where prompts are rendered (``stretto.data``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModel:
    """The number that a reward model gives the whole attempt: any ``...ForSequenceClassification`` with one label.

    ``path``: its folder, such as ``runs/NAME/model`` of a run of reward-model, or a hub id (``revision``: its commit).
    It reads prompt and attempt by its own tokenizer: messages by its chat template, text as it is, or with ``chat`` as
    a message of the user. ``device``: where it computes. Every reward process holds a copy.
    """

    path: str
    revision: str | None = None
    chat: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        folder = Path(self.path).expanduser()
        if folder.is_dir():
            _check_config(self.path, folder / "config.json")
        elif self.path.count("/") != 1 or Path(self.path).parent.exists():  # what is no hub id either
            raise ConfigError(
                f"the reward model {self.path!r} is no folder. Name one that holds a reward model, such as "
                "runs/NAME/model of a run with algorithm.type=reward-model, or a hub id."
            )

    def __call__(self, group: Group) -> list[float]:
        scorer = _load(self.path, self.revision, self.device)
        return scorer.score([scorer.row(group.prompt, t, chat=self.chat) for t in group.trajectories])

    def check(self, prompts: Sequence[Prompt]) -> None:
        """A model that is asked about messages has a chat template."""
        said = next((p for p in prompts if p.messages is not None or self.chat), None)
        if said is not None and not _load_tokenizer(self.path, self.revision).chat_template:
            raise DataError(
                f"the prompt {said.uid!r} is chat messages, and the tokenizer of the reward model {self.path!r} has no "
                "chat template. Give prompts as text, or take another reward model."
            )

    def warm(self) -> None:
        """Load it."""
        _load(self.path, self.revision, self.device)


class _Scorer:
    """A loaded model with its tokenizer."""

    def __init__(self, path: str, model: Any, tokenizer: Any, encoding: Any) -> None:
        self._path, self._model, self._tokenizer, self._encoding = path, model, tokenizer, encoding
        self._made: Mapping[str, Any] | None = getattr(model.config, "stretto_rows", None)
        self._longest: int | None = getattr(model.config, "max_position_embeddings", None)

    def row(self, prompt: Prompt, trajectory: Trajectory, *, chat: bool) -> list[int]:
        """The token ids that are scored. RewardError if they are more than the model was made for."""
        done = trajectory.finish in ("stop", "env")
        if prompt.messages is None and not chat:
            ids = self._of_text(prompt.text, trajectory.text, done)
        else:
            asked = prompt.messages or ()
            turns = [{"role": m.role, "content": m.content} for m in (*asked, *trajectory.messages)]
            turns = turns if asked else [{"role": "user", "content": prompt.text}, *turns]
            ids = self._of_messages(turns, done)
        if self._longest is not None and len(ids) > self._longest:
            raise RewardError(
                f"the attempt has {len(ids)} tokens with its prompt, and the reward model {self._path!r} was made for "
                f"{self._longest}. Set sampling.max_tokens lower."
            )
        return ids

    def score(self, rows: Sequence[list[int]]) -> list[float]:
        """The model's number for every row. Rows share a pass where the model tells padding from them."""
        pad: int | None = self._model.config.pad_token_id
        step = 1 if pad is None else AT_ONCE
        found: list[float] = []
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            width = max(map(len, some))
            ids = [row + [pad or 0] * (width - len(row)) for row in some]
            mask = [[1] * len(row) + [0] * (width - len(row)) for row in some]
            given = self._encoding({"input_ids": ids, "attention_mask": mask}, tensor_type="pt")
            logits = self._model(**given.to(self._model.device)).logits
            found.extend(cast("list[float]", logits[:, 0].tolist()))
        return found

    def _of_text(self, prompt: str, text: str, done: bool) -> list[int]:
        if self._made is not None:
            made, asked = self._made["text"], self._ids(prompt)
            begin = made["begin"] if asked[:1] != made["begin"] else ()  # a prompt may begin with it itself
            return [*begin, *asked, *self._ids(text), *(made["end"] if done else ())]
        ids = cast("list[int]", list(self._tokenizer(prompt + text)["input_ids"]))
        eos = self._tokenizer.eos_token_id
        return [*ids, eos] if done and eos is not None and ids[-1:] != [eos] else ids

    def _of_messages(self, turns: list[dict[str, str]], done: bool) -> list[int]:
        if self._made is not None and turns[-1]["role"] == "assistant":
            asked = self._render(turns[:-1], answer=True)
            end = self._made["messages"]["end"] if done else ()
            return [*self._ids(asked), *self._ids(turns[-1]["content"]), *end]
        return self._ids(self._render(turns, answer=False))

    def _render(self, turns: list[dict[str, str]], *, answer: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=answer, strftime_now=TODAY.strftime
            )
        )

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


@lru_cache(maxsize=4)
def _load(path: str, revision: str | None, device: str) -> _Scorer:
    # Takes seconds to import, and only who judges by a model needs it. Its classes carry no usable types.
    import transformers

    loader: Any = transformers.AutoModelForSequenceClassification
    try:
        with _no_progress_bar(transformers.utils.logging):
            model, info = loader.from_pretrained(
                _expanded(path), revision=revision, dtype="float32", output_loading_info=True
            )
        model = model.eval().to(device)
    except Exception as error:
        # Whatever is wrong in the folder, the library lets the error of the line that met it through.
        raise ConfigError(f"the reward model {path!r} cannot be loaded ({type(error).__name__}: {error}).") from error
    missing = sorted(map(str, info["missing_keys"]))
    if missing:
        raise ConfigError(
            f"{path!r} holds no whole reward model: its weights have no {missing[0]}. Name the folder of a reward "
            "model, such as runs/NAME/model of a run with algorithm.type=reward-model."
        )
    if model.config.num_labels != 1:
        raise ConfigError(_labels(path, model.config.num_labels))
    return _Scorer(path, model.requires_grad_(False), _load_tokenizer(path, revision), transformers.BatchEncoding)


@lru_cache(maxsize=4)
def _load_tokenizer(path: str, revision: str | None) -> Any:
    import transformers  # as above

    loader: Any = transformers.AutoTokenizer
    try:
        return loader.from_pretrained(_expanded(path), revision=revision)
    except Exception as error:
        raise ConfigError(
            f"the tokenizer of the reward model {path!r} cannot be loaded ({type(error).__name__}: {error})."
        ) from error


@contextmanager
def _no_progress_bar(logging: Any) -> Generator[None]:
    """A library's bar has no place in the display of a run."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _expanded(path: str) -> str:
    folder = Path(path).expanduser()
    return str(folder) if folder.is_dir() else path


def _check_config(path: str, file: Path) -> None:
    """ConfigError if a folder's configuration tells that there is no reward model in it."""
    try:
        config = cast("Mapping[str, Any]", json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the reward model folder {path!r} has no config.json that can be read ({error}). Name the folder of a "
            "reward model, such as runs/NAME/model of a run with algorithm.type=reward-model."
        ) from error
    kinds = [str(kind) for kind in config.get("architectures") or ()]
    if kinds and not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise ConfigError(
            f"{path!r} holds a {kinds[0]}, which gives no number for a row. Train a reward model from it "
            "(algorithm.type=reward-model), and name the folder of that."
        )
    labels = len(config.get("id2label") or ("one", "other"))  # two is the default of transformers
    if kinds and labels != 1:
        raise ConfigError(_labels(path, labels))


def _labels(path: str, count: int) -> str:
    return (
        f"the classifier in {path!r} has {count} labels, and a reward is one number. Take a reward model: one with a "
        "single label."
    )
