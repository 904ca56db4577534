"""Where models are: built in, in folders, in the hub's cache; and what is said when they are not there."""

import subprocess
import sys
from pathlib import Path

import pytest

from stretto.data.locations import BUILTINS, SMOLLM2, TINY, Location, is_hub_id, locate
from stretto.errors import DataError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_hub_cache(root: Path, name: str, files: dict[str, str]) -> Path:
    """A hub cache in which ``name`` has been downloaded: its main branch at COMMIT."""
    repo = root / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    for file, text in files.items():
        (snapshot / file).write_text(text)
    return snapshot


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache of its own and no network, as the library sees them."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_built_in_models_and_folders_are_where_they_say(tmp_path: Path):
    assert locate(TINY) == Location(path=TINY)
    assert locate(str(tmp_path)) == Location(path=str(tmp_path))
    assert not any(is_hub_id(path) for path in (*BUILTINS, str(tmp_path), "./a/b", "a", "a/b/c", "~/a"))


def test_a_folder_that_reads_as_a_hub_id_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("org/model")
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert locate("org/model") == Location(path="org/model")


def test_a_hub_id_is_read_from_the_cache_at_a_commit(offline: Path):
    snapshot = write_hub_cache(offline, "org/model", {"config.json": "{}"})
    for revision in (None, "main", COMMIT):
        assert locate("org/model", revision) == Location(path=str(snapshot), revision=COMMIT)


def test_a_hub_id_that_cannot_be_reached_is_one_sentence(offline: Path):  # pitfall 35
    with pytest.raises(DataError, match=r"'org/none' is no folder here; .* not in the hub's cache, and .* be reached"):
        locate("org/none")
    write_hub_cache(offline, "org/model", {})
    with pytest.raises(DataError, match=r"not in the hub's cache at revision 'v2', and .* cannot be reached"):
        locate("org/model", "v2")


def test_a_revision_is_of_a_hub_id(tmp_path: Path):
    with pytest.raises(DataError, match=r"revision='v2' is of a hub id .* model\.path='builtin:tiny.*' is built in"):
        locate(TINY, "v2")
    with pytest.raises(DataError, match=r"is a folder\. Leave model\.revision out"):
        locate(str(tmp_path), "v2")


def test_names_that_are_nothing_are_refused_with_what_there_is():  # pitfall 35
    with pytest.raises(DataError, match="Did you mean 'builtin:smollm2-135m-instruct'"):
        locate("builtin:smollm2-135m")
    with pytest.raises(DataError, match=rf"folder 'nothing' does not exist\. Set .* hub id .* {TINY} or {SMOLLM2}"):
        locate("nothing")


def test_locating_loads_no_torch():
    code = (
        "import sys\nfrom stretto.data.locations import locate\nlocate('builtin:tiny-llama-char')\n"
        "print([m for m in ('torch', 'transformers', 'gguf', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
