"""The whole examination: machine, packages, trials, leftovers, and what to do about them. Changes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stretto.api.doctor.leftovers import Leftover, find_leftovers
from stretto.api.doctor.machine import Machine, look_at_machine
from stretto.api.doctor.packages import Extra, Package, look_at_extras, look_at_packages
from stretto.api.doctor.trials import Trial, run_trials

__all__ = ["Advice", "Examination", "examine"]

_LITTLE_DISK = 2 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is amiss and what to do. ``problem``: something needed does not work."""

    severity: Literal["problem", "warning"]
    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All that was found. ``trials`` is empty if nothing was tried."""

    machine: Machine
    packages: tuple[Package, ...]
    extras: tuple[Extra, ...]
    trials: tuple[Trial, ...]
    leftovers: tuple[Leftover, ...]
    advice: tuple[Advice, ...]

    @property
    def ok(self) -> bool:
        """Whether everything needed works."""
        return not any(advice.severity == "problem" for advice in self.advice)

    def as_json(self) -> Mapping[str, Any]:
        """For programs: every field, and ``ok``."""
        return {"ok": self.ok, **asdict(self)}


def examine(runs_dir: Path, *, trial_s: float | None = 180.0) -> Examination:
    """Examine this machine and the runs in ``runs_dir``. ``trial_s``: seconds for all trials; None tries nothing."""
    machine, packages = look_at_machine(runs_dir), look_at_packages()
    trials = [] if trial_s is None else run_trials(trial_s)
    advice = [*_about_packages(packages), *_about_trials(trials), *_about_machine(machine, runs_dir)]
    return Examination(
        machine=machine,
        packages=tuple(packages),
        extras=tuple(look_at_extras()),
        trials=tuple(trials),
        leftovers=tuple(find_leftovers(runs_dir)),
        advice=tuple(advice),
    )


def _about_packages(packages: list[Package]) -> Iterator[Advice]:
    for package in packages:
        if not package.fits:
            got = "is not installed" if package.installed is None else f"is {package.installed}"
            yield Advice(
                severity="problem" if package.installed is None else "warning",
                message=f"{package.name} {got}, and Stretto needs {package.name}{package.needs}.",
                remedy=f"pip install '{package.name}{package.needs}'",
            )


def _about_trials(trials: list[Trial]) -> Iterator[Advice]:
    for trial in trials:
        if not trial.ok:
            yield Advice(
                severity="problem" if trial.needed else "warning",
                message=f"It does not work here: {trial.name} ({trial.detail}).",
                remedy="Nothing will train until it does; look at the packages above."
                if trial.needed
                else "Leave it out of recipes (dtype, device, threads), or mend what the message names.",
            )


def _about_machine(machine: Machine, runs_dir: Path) -> Iterator[Advice]:
    if machine.disk_free_bytes < _LITTLE_DISK:
        yield Advice(
            severity="warning",
            message=f"{machine.disk_free_bytes / 1e9:.2g} GB are free where {runs_dir} is; a checkpoint holds weights "
            "and the optimizer's state, three times the model.",
            remedy="Free space, or set runs_dir to another disk.",
        )
    threads = machine.omp_threads or ""
    if threads.isdecimal() and int(threads) > machine.usable:
        yield Advice(
            severity="warning",
            message=f"OMP_NUM_THREADS={threads} is more than the {machine.usable} cores that this process may use: "
            "threads wait for each other by spinning, which can make everything 50 times slower.",
            remedy=f"Set OMP_NUM_THREADS={machine.usable} or less: cores divided by the processes that compute.",
        )
