"""What a run may leave behind: processes, threads, files, ports, shared memory. Nothing, the tests of lifetime say."""

import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
CACHES = ("torchinductor_", "ray", "plasma")
"""What torch and Ray make for all of their processes, also for those of tests that run beside this one."""
SOON_S = 20.0
"""How long what was killed may take to be gone. A zombie that nobody reaps is gone."""


@dataclass(frozen=True)
class Held:
    """What this process and its children hold."""

    processes: frozenset[int]
    threads: tuple[str, ...]
    num_files: int
    ports: frozenset[tuple[str, int]]
    temporary: frozenset[str]
    shared: frozenset[str]


def held() -> Held:
    """What is held now."""
    me = psutil.Process()
    return Held(
        processes=frozenset(child.pid for child in me.children(recursive=True)),
        threads=tuple(sorted(t.name for t in threading.enumerate() if t.name.startswith("stretto"))),
        num_files=me.num_fds(),
        ports=ports_of([me]),
        temporary=names_in(Path(tempfile.gettempdir())),
        shared=names_in(SHARED_MEMORY),
    )


@contextmanager
def nothing_left(files: bool = True) -> Iterator[None]:
    """Whatever happens inside, what is held afterwards was held before. Without ``files`` those that are open may be
    more, and shared memory: a library that keeps some until the process ends is not ours to mend."""
    before = held()
    yield
    after = held()
    deadline = time.monotonic() + SOON_S
    while after.threads != before.threads and time.monotonic() < deadline:  # one that has ended may still be listed
        time.sleep(0.005)
        after = held()
    assert after.processes <= before.processes, "a child process is left"
    assert after.threads == before.threads, (before.threads, after.threads)
    assert not files or after.num_files <= before.num_files, f"{after.num_files - before.num_files} open files are left"
    assert after.ports <= before.ports
    new = {name for name in after.temporary - before.temporary if not name.startswith(CACHES)}
    assert not new, new
    assert not files or not {name for name in after.shared - before.shared if not name.startswith(CACHES)}


def family_of(pid: int) -> list[psutil.Process]:
    """A process and all its children."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def gone(processes: Sequence[psutil.Process]) -> bool:
    """Whether all these have ended, or do soon."""
    deadline = time.monotonic() + SOON_S
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in _known(processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _known(processes: Sequence[psutil.Process]) -> Iterator[psutil.Process]:
    """Those that the system still lists; one may go while it is looked at."""
    for process in processes:
        try:
            process.status()
        except psutil.NoSuchProcess:
            continue
        yield process


def ports_of(processes: Sequence[psutil.Process]) -> frozenset[tuple[str, int]]:
    """The addresses on which they listen."""
    found: set[tuple[str, int]] = set()
    for process in processes:
        for connection in process.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.add((connection.laddr.ip, connection.laddr.port))
    return frozenset(found)


def names_in(folder: Path) -> frozenset[str]:
    """What lies in a folder; nothing if there is none."""
    return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()
