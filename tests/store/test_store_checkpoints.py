import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.errors import StoreError
from stretto.store import Header, Skipped, read_json, write_json
from stretto.store.checkpoints import clean, list_checkpoints, newest, prune, save, set_aside
from stretto.store.manifest import MANIFEST, load_manifest, verify


def header(steps: int, phase: str = "main", accuracy: float | None = None, evaluated_at: int | None = None) -> Header:
    metrics = {} if accuracy is None else {"held_out/accuracy": accuracy}
    at = steps if evaluated_at is None and metrics else evaluated_at
    return Header(phase=phase, steps_done=steps, version=steps, metrics=metrics, evaluated_at=at)


def content(steps: int):
    def write(folder: Path) -> None:
        (folder / "policy").mkdir()
        (folder / "policy" / "model.safetensors").write_bytes(bytes([steps]) * 300)
        (folder / "empty").write_bytes(b"")
        write_json(folder / "state.json", {"steps": steps})

    return write


def put(folder: Path, steps: int, **fields: object):
    return save(folder, header(steps, **fields), content(steps), lambda: steps * 10)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_found(tmp_path):
    saved = put(tmp_path, 3, accuracy=0.5)
    found = newest(tmp_path)
    assert found.taken == saved
    assert found.skipped == ()
    assert saved.path == tmp_path / "step-3"
    assert saved.header == header(3, accuracy=0.5)
    assert saved.manifest.seq == 30
    assert set(saved.manifest.files) == {"policy/model.safetensors", "empty", "state.json"}
    assert saved.manifest.total_bytes == 300 + len('{"steps":3}\n')
    assert read_json(saved.path / "state.json") == {"steps": 3}
    assert names(tmp_path) == ["step-3"]


def test_nothing_saved_nothing_found(tmp_path):
    assert newest(tmp_path / "absent").taken is None
    assert newest(tmp_path).taken is None


def test_order_is_phase_then_number(tmp_path):
    for phase, steps in [("main", 9), ("main", 10), ("warmup", 400), ("warmup", 99)]:
        put(tmp_path, steps % 256, phase=phase)
    assert [p.name for p in list_checkpoints(tmp_path)] == ["warmup-step-99", "warmup-step-144", "step-9", "step-10"]
    (tmp_path / "step-x").mkdir()
    (tmp_path / "other-step-1").mkdir()
    assert newest(tmp_path).taken.path.name == "step-10"


@pytest.fixture(scope="module")
def two_saves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return put(folder, 1, accuracy=0.25), put(folder, 2, accuracy=0.5)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_changed_byte_anywhere_is_found_and_the_older_one_taken(two_saves, data):
    # pitfall 10
    old, new = two_saves
    file = data.draw(st.sampled_from(["policy/model.safetensors", "state.json", MANIFEST]))
    path = new.path / file
    original = path.read_bytes()
    at = data.draw(st.integers(0, len(original) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "grow", "gone"]))
    if how == "flip":
        flipped = original[at] ^ data.draw(st.integers(1, 255))
        path.write_bytes(original[:at] + bytes([flipped]) + original[at + 1 :])
    elif how == "cut":
        path.write_bytes(original[:at])
    elif how == "grow":
        path.write_bytes(original + b"\n")
    else:
        path.unlink()
    found = newest(new.path.parent)
    path.write_bytes(original)
    assert newest(new.path.parent).taken == new
    assert found.taken == old
    assert [s.path for s in found.skipped] == [new.path]
    assert str(path) in found.skipped[0].reason or "has no manifest.json" in found.skipped[0].reason


def test_every_reason_says_what_is_wrong(tmp_path):
    saved = put(tmp_path, 1)
    weights = saved.path / "policy" / "model.safetensors"
    weights.write_bytes(b"short")
    with pytest.raises(StoreError, match=r"model\.safetensors has 5 bytes instead of 300"):
        verify(saved.path)
    weights.write_bytes(b"x" * 300)
    with pytest.raises(StoreError, match=r"model\.safetensors is damaged: its hash is \w+ instead of \w+"):
        verify(saved.path)
    weights.unlink()
    with pytest.raises(StoreError, match=r"model\.safetensors cannot be read: No such file"):
        verify(saved.path)
    manifest = (saved.path / MANIFEST).read_text()
    (saved.path / MANIFEST).write_text(manifest.replace('"version":1', '"version":2'))
    with pytest.raises(StoreError, match=r"manifest\.json is damaged \(its hash differs\)"):
        load_manifest(saved.path)
    (saved.path / MANIFEST).write_text("{}")
    with pytest.raises(StoreError, match=r"manifest\.json is damaged: KeyError"):
        load_manifest(saved.path)
    (saved.path / MANIFEST).unlink()
    with pytest.raises(StoreError, match=r"has no manifest\.json: it was not saved to its end"):
        load_manifest(saved.path)


def test_all_damaged_means_none(tmp_path):
    for steps in (1, 2):
        (put(tmp_path, steps).path / "state.json").unlink()
    found = newest(tmp_path)
    assert found.taken is None
    assert [s.path.name for s in found.skipped] == ["step-2", "step-1"]


def test_a_full_disk_in_the_writer_leaves_the_old_one(tmp_path):
    # pitfall 10
    old = put(tmp_path, 1)

    def write(folder: Path) -> None:
        (folder / "half").write_bytes(b"x" * 100)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "rest"))

    with pytest.raises(StoreError, match=r"step-2 cannot be saved: No space left on device .*Older .* intact") as error:
        save(tmp_path, header(2), write, lambda: 0)
    assert isinstance(error.value.__cause__, OSError)
    assert names(tmp_path) == ["step-1"]
    assert newest(tmp_path).taken == old


@pytest.mark.parametrize("raised", [KeyboardInterrupt, ZeroDivisionError])
def test_what_else_the_writer_raises_passes_and_leaves_nothing(tmp_path, raised):
    def write(folder: Path) -> None:
        (folder / "half").write_bytes(b"x")
        raise raised

    with pytest.raises(raised):
        save(tmp_path, header(2), write, lambda: 0)
    assert names(tmp_path) == []


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("there is no mount command")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("library", ["python", "safetensors"])
def test_a_really_full_disk(tiny_disk, library):
    # pitfall 10
    import numpy as np
    from safetensors.numpy import save_file

    old = put(tiny_disk, 1)

    def write(folder: Path) -> None:
        if library == "python":
            (folder / "big").write_bytes(b"x" * (3 << 20))
        else:
            save_file({"w": np.ones(3 << 20, np.uint8)}, folder / "big.safetensors")

    with pytest.raises(StoreError, match=r"step-2 cannot be saved: No space left on device"):
        save(tiny_disk, header(2), write, lambda: 0)
    assert names(tiny_disk) == ["step-1"]
    assert newest(tiny_disk).taken == old


def test_metrics_that_are_not_finite_never_enter_a_checkpoint(tmp_path):
    # pitfall 23
    with pytest.raises(StoreError, match="its metrics are not finite numbers"):
        put(tmp_path, 1, accuracy=float("nan"))
    with pytest.raises(StoreError, match=r"state\.json cannot be written: .* State must be finite numbers"):
        save(tmp_path, header(1), lambda folder: write_json(folder / "state.json", {"kl": float("nan")}), lambda: 0)
    assert names(tmp_path) == []


def test_saving_the_same_step_again_replaces_it(tmp_path):
    put(tmp_path, 5)
    (tmp_path / "step-5" / "state.json").write_text("damaged")
    again = save(tmp_path, header(5), content(7), lambda: 99)
    assert newest(tmp_path).taken == again
    assert read_json(again.path / "state.json") == {"steps": 7}
    assert names(tmp_path) == ["step-5"]


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "kept"),
    [
        (1, None, ["step-5"]),
        (2, None, ["step-4", "step-5"]),
        (9, None, ["step-1", "step-2", "step-3", "step-4", "step-5", "warmup-step-9"]),
        (1, "held_out/accuracy", ["step-3", "step-5"]),
        (3, "held_out/accuracy", ["step-3", "step-4", "step-5"]),
        (1, "unknown", ["step-5"]),
    ],
)
def test_what_stays(tmp_path, keep_last, keep_best, kept):
    put(tmp_path, 9, phase="warmup", accuracy=0.99)  # another phase's best is not this one's
    put(tmp_path, 1, accuracy=0.3)
    put(tmp_path, 2, accuracy=0.8)
    put(tmp_path, 3, accuracy=0.8)  # of equals the newest
    put(tmp_path, 4, accuracy=0.9, evaluated_at=3)  # not evaluated at its own step
    put(tmp_path, 5)
    prune(tmp_path, keep_last=keep_last, keep_best=keep_best)
    assert names(tmp_path) == kept


def test_a_checkpoint_without_manifest_counts_for_nothing(tmp_path):
    put(tmp_path, 1)
    (put(tmp_path, 2).path / MANIFEST).unlink()
    put(tmp_path, 3)
    prune(tmp_path, keep_last=2)
    assert names(tmp_path) == ["step-1", "step-3"]


def test_leftovers_of_killed_saves_are_put_right(tmp_path):
    put(tmp_path, 1)
    shutil.copytree(tmp_path / "step-1", tmp_path / ".tmp-step-2")
    shutil.copytree(tmp_path / "step-1", tmp_path / ".old-step-1")  # replaced, the removal was killed
    os.rename(put(tmp_path, 4).path, tmp_path / ".old-step-4")  # killed between the two renames
    clean(tmp_path)
    assert names(tmp_path) == ["step-1", "step-4"]
    assert newest(tmp_path).taken.header.steps_done == 4
    clean(tmp_path / "absent")


def test_a_skipped_one_is_set_aside_until_the_next_is_whole(tmp_path):
    put(tmp_path, 1)
    bad = put(tmp_path, 9)
    set_aside(Skipped(path=bad.path, reason="damaged"))
    assert names(tmp_path) == [".bad-step-9", "step-1"]
    put(tmp_path, 2)
    prune(tmp_path, keep_last=1)
    assert names(tmp_path) == ["step-2"]
