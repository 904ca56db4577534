"""All golden cases through the public functions; ``pytest tests/golden --golden-dir DIR`` runs those in DIR."""

from pathlib import Path

import adapters_advantages
import adapters_losses
import adapters_metrics
import adapters_off_policy
import pytest
from cases import DATA, Adapter, compare, load_cases

ADAPTERS: dict[str, Adapter] = {
    **adapters_advantages.VARIANTS,
    **adapters_losses.VARIANTS,
    **adapters_off_policy.VARIANTS,
    **adapters_metrics.VARIANTS,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        cases = load_cases(Path(metafunc.config.getoption("golden_dir") or DATA))
        metafunc.parametrize("case", cases, ids=[f"{c['file']}:{c['name']}" for c in cases])


def test_case(case, record_property):
    variant = case["variant"]
    adapter = ADAPTERS.get(variant) or ADAPTERS.get(variant.partition(":")[0])  # "mask.kl:token_k2" is of "mask.kl"
    assert adapter, f"no function of ours computes {variant!r} ({case['file']}: {case['name']})"
    record_property("golden", f"{case['file']}: {variant}")
    compare(case, adapter(case))
