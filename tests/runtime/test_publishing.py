"""What proves that weights arrived: it finds what was not written, and runs as often as the recipe says."""

import pytest
from small_runs import recipe

from stretto.api.runs import start
from stretto.engines.native.window import WeightWindow
from stretto.errors import RunError, StrettoError


def forgets(name, monkeypatch, after=0):
    """An engine that takes a weight and does not keep it, from its ``after``th publication on."""
    written, calls = WeightWindow.write, []

    def write(self, tensor):
        place = self._places.get(tensor.name)
        calls.append(tensor.name)
        if tensor.name == name and calls.count(name) > after and place is not None:
            self._written.add(name)
            return
        written(self, tensor)

    monkeypatch.setattr(WeightWindow, "write", write)


WEIGHT = "model.layers.1.self_attn.v_proj.weight"


def test_a_weight_that_did_not_arrive_ends_the_run_before_a_step(tmp_path, monkeypatch):  # pitfall 19
    forgets(WEIGHT, monkeypatch)
    with pytest.raises((RunError, StrettoError), match=r"just published|does not hold the weights"):
        start(recipe(tmp_path, "run"))


@pytest.mark.parametrize("how", ["once", "always", "off"])
def test_later_publications_are_proved_if_asked(how, tmp_path, monkeypatch):
    forgets(WEIGHT, monkeypatch, after=2)
    run = recipe(tmp_path, "run", publish={"check_weights": how}, evaluate={"every": None, "at_start": False})
    if how == "always":
        with pytest.raises((RunError, StrettoError), match=r"just published|does not hold the weights"):
            start(run)
        return
    assert start(run).steps == 4


def test_the_gap_is_a_metric_where_every_publication_is_proved(tmp_path):
    view = start(recipe(tmp_path, "run", publish={"check_weights": "always"}))
    gaps = [value for _, value in view.history("publish/gap")]
    assert len(gaps) == 4 and max(gaps) < 1e-4
    assert "publish/gap" not in start(recipe(tmp_path, "other")).metrics


def test_a_tolerance_that_is_too_small_says_so(tmp_path):
    with pytest.raises(StrettoError, match="at most 1e-12"):
        start(recipe(tmp_path, "run", publish={"tolerance": 1e-12}))
