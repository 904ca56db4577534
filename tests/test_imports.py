"""Modules that users name: whatever importing them does, it is said with the module's name, and the status is 2."""

import gc

import pytest

from stretto.cli.main import main
from stretto.imports import importing_much

FAULTS = {
    "quits": ("import sys\nsys.exit(0)\n", "ends the program when it is imported"),
    "quits_with_words": ("raise SystemExit('bye')\n", "ends the program when it is imported"),
    "lacks": ("import not_there_at_all\n", "No module named 'not_there_at_all'"),
    "breaks": ("1 / 0\n", "ZeroDivisionError"),
    "garbled": ("def (\n", "SyntaxError"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "quickstart", "reward.use={}:f"),
        ("check", "quickstart", "workflow={}:f"),
        ("check", "quickstart", "prompts.type=python", "prompts.use={}:f"),
        ("check", "{}:f"),
        ("graph", "{}:f"),
        ("check", "quickstart", "warmup.workflow={}:f"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(tmp_path, monkeypatch, capsys, fault, arguments):
    # pitfall 34: a module that exits with 0 is no success
    text, said = FAULTS[fault]
    name = f"module_that_{fault}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    status = main([argument.format(name) for argument in arguments])
    told = capsys.readouterr().err
    assert (status, name in told, said in told) == (2, True, True), told
    assert "Traceback" not in told


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_as_it_was_after_a_large_import(enabled):
    was = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with importing_much():
            inside = gc.isenabled()
        assert (inside, gc.isenabled()) == (False, enabled)
    finally:
        (gc.enable if was else gc.disable)()
