"""Ends what a cluster left, if the process that started it dies without a word.

Run as a script by that process, which holds the other end of standard input: first a line with what there is to end
(process ids with the times they began, and a folder), then ``done`` once all has ended in order. If the input ends
before, its process is gone: those that still live are killed, and the folder is removed.
"""

import json
import shutil
import sys
import time

import psutil

SOON_S = 2.0
"""What ends by itself, since it has noticed, has this long."""


def main() -> None:
    """Wait for the end of the input, then see to it that nothing is left."""
    told = sys.stdin.readline()
    if not told or sys.stdin.readline().strip() == "done":
        return
    known = json.loads(told)
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline and any(_alive(pid, began) for pid, began in known["processes"]):
        time.sleep(0.05)
    for pid, began in known["processes"]:
        if _alive(pid, began):
            psutil.Process(pid).kill()
    shutil.rmtree(known["folder"], ignore_errors=True)


def _alive(pid: int, began: float) -> bool:
    """Whether it is there, and not another that was given its number."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - began) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    main()
