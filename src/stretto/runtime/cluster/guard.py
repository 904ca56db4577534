"""Ends what a cluster left, if the process that started it dies without a word.

Run as a script by that process, which holds the other end of standard input: a line with the cluster's folder, before
there is anything in it; then one with its processes (ids, and when they began); then ``done`` once all has ended in
order. If the input ends before, its process is gone: what still lives of the cluster is killed, and the folder goes.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterable, Iterator

import psutil

__all__ = ["PREFIX", "kill_all", "processes_of"]

PREFIX = "stretto-ray-"
"""What the names of such clusters' folders begin with, in the folder for temporary files."""
SOON_S = 2.0
"""What ends by itself, since it has noticed, has this long; and so has what is killed."""
PAUSE_S = 0.1


def main() -> None:
    """Wait for the end of the input, then see to it that nothing is left."""
    folder, *told = [line.strip() for line in sys.stdin] or [""]
    if not folder or told[-1:] == ["done"]:
        return
    known = [(int(pid), float(began)) for pid, began in json.loads(told[0])] if told else []
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline and [*_alive(known), *processes_of(folder)]:
        time.sleep(PAUSE_S)
    deadline = time.monotonic() + SOON_S  # what one of them started while it was killed is found the next time
    while time.monotonic() < deadline and (left := [*_alive(known), *processes_of(folder)]):
        kill_all(left)
        time.sleep(PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: str) -> Iterator[psutil.Process]:
    """The processes that live of the cluster in ``folder``: their command lines name it, or, where Ray has put a title
    in the place of those, what they print goes there."""
    for process in psutil.process_iter():
        try:
            said = " ".join(process.cmdline())
            if folder in said or (said.startswith("ray::") and _prints_to(process, folder)):
                yield process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it ended while it was looked at, or it is another user's


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill these; one that has ended meanwhile is fine."""
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _prints_to(process: psutil.Process, folder: str) -> bool:
    return any(file.path.startswith(folder) for file in process.open_files())


def _alive(known: Iterable[tuple[int, float]]) -> Iterator[psutil.Process]:
    """Those that live, and are not others that were given their numbers."""
    for pid, began in known:
        try:
            process = psutil.Process(pid)
            if abs(process.create_time() - began) < 1.0 and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.NoSuchProcess:
            continue


if __name__ == "__main__":
    main()
