"""The machine and its packages as they are."""

import tomllib
from pathlib import Path

from stretto.api.doctor.machine import look_at_machine, parse_cpuinfo
from stretto.api.doctor.packages import ENABLES, look_at_extras, look_at_packages

CPUINFO = """processor\t: 0
model name\t: Made Up 9000
flags\t\t: fpu avx2 avx512f avx512_bf16
processor\t: 1
model name\t: Another
"""


def test_the_processor_is_read():
    assert parse_cpuinfo(CPUINFO) == ("Made Up 9000", ("avx2", "avx512f", "avx512_bf16"))
    name, features = parse_cpuinfo("")
    assert name and features == ()


def test_the_machine(tmp_path):
    machine = look_at_machine(tmp_path / "not" / "there" / "yet")
    assert 1 <= machine.physical <= machine.logical and 1 <= machine.usable <= machine.logical
    alone, beside = machine.training_threads
    assert 1 <= beside <= alone <= machine.usable
    assert 0 < machine.available_bytes <= machine.memory_bytes and machine.disk_free_bytes > 0


def test_what_is_needed_is_here():
    packages = {package.name: package for package in look_at_packages()}
    assert {"Python", "torch", "numpy", "typer"} <= set(packages)
    assert all(package.fits for package in packages.values()), packages
    assert "peft" not in packages, "an extra is not always needed"


def test_every_extra_says_what_it_enables():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) <= set(ENABLES)
    assert {extra.name for extra in look_at_extras()} <= set(ENABLES)
