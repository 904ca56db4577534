"""Golden cases: numbers made by other post-training projects, or by the formula itself, in files of one schema.

A case has a ``variant``, which with ``params`` selects a formula, and ``inputs`` and ``expected``. An adapter gives a
case's inputs to the public functions, and returns what came out under the keys of ``expected``.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"

Case = Mapping[str, Any]
Adapter = Callable[[Case], Mapping[str, Any]]


def load_cases(folder: Path) -> list[dict[str, Any]]:
    """Every case of every file in ``folder``, with the name of its file as ``file``."""
    files = sorted(folder.glob("*.json"))
    assert files, f"no golden files in {folder}"
    cases: list[dict[str, Any]] = []
    for path in files:
        content = json.loads(path.read_text())
        assert content["schema"] == 1, (path, content["schema"])
        cases += [{**case, "file": path.stem} for case in content["cases"]]
    return cases


def compare(case: Case, ours: Mapping[str, Any]) -> None:
    """Hold every expected key against ours, within the tolerance of the case. A key that ours lacks is a failure."""
    if "bound" in case["expected"]:
        # Balancing: no partition is prescribed, only how large its largest part may be.
        assert ours["at_most"] <= case["expected"]["bound"], f"{case['name']}: {ours['at_most']} is above the bound"
        return
    missing = sorted(set(case["expected"]) - set(ours))
    assert not missing, f"{case['name']}: nothing was computed for {missing}"
    for key, expected in case["expected"].items():
        np.testing.assert_allclose(
            np.asarray(ours[key], np.float64),
            np.asarray(expected, np.float64),
            rtol=case["rtol"],
            atol=case["atol"],
            err_msg=f"{case['name']}: {key}",
        )


def padded(case: Case, name: str) -> np.ndarray:
    """A token-shaped input [rows, T], with NaN wherever the mask is 0: what stands there must not matter."""
    values = np.array(case["inputs"][name], np.float64)
    values[np.asarray(case["inputs"]["mask"]) == 0] = np.nan
    return values
