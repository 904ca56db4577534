"""When periodic work is due: by steps, epochs, minutes, and when a file asks for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.config.intervals import Every, Unit, every
from stretto.runtime.periodic import Moment, Periodic, due_after


def moments(count, *, epochs=0.25, seconds=20.0):
    """Windows after every step: so many passes over the prompts and seconds each."""
    return [Moment(step=i, epochs=i * epochs, time_s=1000 + i * seconds) for i in range(count)]


def due_steps(interval, file, windows):
    periodic = Periodic(interval, file, windows[0])
    return [window.step for window in windows[1:] if periodic.due(window)]


@pytest.mark.parametrize(
    ("interval", "steps"),
    [
        (None, []),
        (4, [4, 8, 12]),
        ("4 steps", [4, 8, 12]),
        ("1 epoch", [4, 8, 12]),
        ("0.5 epochs", [2, 4, 6, 8, 10, 12]),
        ("1.5 epochs", [6, 12]),
        ("1 minute", [3, 6, 9, 12]),
        ("0.5 minutes", [2, 4, 6, 8, 10, 12]),
        ("0.1minutes", list(range(1, 13))),
    ],
)
def test_due_by_what_the_interval_counts(tmp_path, interval, steps):
    assert due_steps(interval, tmp_path / "now", moments(13)) == steps


def test_an_epoch_that_ends_between_windows_is_due_at_the_next_once(tmp_path):
    assert due_steps("1 epoch", tmp_path / "now", moments(8, epochs=0.4)) == [3, 5]
    assert due_steps("1 epoch", tmp_path / "now", moments(4, epochs=2.5)) == [1, 2, 3]


def test_after_a_resume_epochs_go_on_counting_and_minutes_begin_anew(tmp_path):
    windows = moments(13)
    assert due_steps("1 epoch", tmp_path / "now", windows[5:]) == [8, 12]
    assert due_steps("1 minute", tmp_path / "now", windows[5:]) == [8, 11]


def test_a_file_asks_once_and_goes(tmp_path):
    file = tmp_path / "now"
    windows = moments(6)
    periodic = Periodic(3, file, windows[0])
    file.touch()
    assert periodic.due(windows[1])
    assert not file.exists()
    assert not periodic.due(windows[2])
    file.touch()
    assert periodic.due(windows[3])  # due by steps too: once
    assert not file.exists()


def test_another_may_remove_the_file_first(tmp_path, monkeypatch):
    file = tmp_path / "now"
    file.touch()
    exists = type(file).exists
    monkeypatch.setattr(type(file), "exists", lambda self: exists(self) and (self.unlink() or True))
    assert Periodic(None, file, moments(1)[0]).due(moments(2)[1])


@given(st.integers(1, 10**6))
def test_a_number_is_steps(count):
    assert every(count) == every(f"{count} steps") == Every(count=count, unit=Unit.STEP)
    assert due_after(count, 3 * count)
    assert not due_after(f"{count} epochs", 3 * count)


@pytest.mark.parametrize(
    "text", ["", "10", "ten minutes", "1.5 steps", "0 epochs", "-1 steps", "1 hour", "5 min", 0, -3]
)
def test_what_is_no_interval(text):
    with pytest.raises(ValueError, match="no interval"):
        every(text)
