"""Engine and learner never ask for more threads than there are cores, unless a recipe says so; then it is told."""

import os

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.config.load import recipe_from_mapping
from stretto.runtime.threads import threads_of, told_threads, usable_cores


def recipe_of(staleness, engine, backend=None):
    schedule = {"max_staleness": staleness, "deterministic": False}
    return recipe_from_mapping({"steps": 1, "schedule": schedule, "engine": engine, "backend": backend or {}})


def threads(number):
    return {"threads": number}


@given(cores=st.integers(1, 64), engine=st.integers(1, 64), staleness=st.sampled_from([0, 1]))
def test_the_default_fits_beside_the_engine(cores, engine, staleness):
    recipe = recipe_of(staleness, threads(engine))
    training = threads_of(recipe, cores)
    assert training is not None and 1 <= training <= cores
    if not staleness:
        assert training == cores
    elif engine < cores:
        assert training + engine == cores
    fits = (training + engine if staleness else max(training, engine)) <= cores
    assert len(told_threads(recipe, cores)) == (1 if fits else 2)


@given(
    cores=st.integers(1, 64), learners=st.integers(1, 8), rollers=st.integers(1, 8), staleness=st.sampled_from([0, 1])
)
def test_workers_of_a_cluster_share_the_cores(cores, learners, rollers, staleness):
    schedule, placement = {"max_staleness": staleness}, {"learners": learners, "rollers": rollers}
    sections = {"steps": 1, "schedule": schedule, "cluster": {"type": "ray"}, "placement": placement}
    training = threads_of(recipe_from_mapping(sections), cores)
    assert training is not None and training >= 1
    assert training == 1 or training * (learners + rollers) <= cores < (training + 1) * (learners + rollers)
    assert threads_of(recipe_from_mapping({**sections, "backend": threads(3)}), cores) == 3


def test_what_is_set_stays_and_is_told():
    recipe = recipe_of(1, threads(1), threads(2))
    assert threads_of(recipe, 2) == 2
    first, second = told_threads(recipe, 2)
    assert first == "threads: 1 of the engine, 2 of training, at the same time (max_staleness 1), on 2 cores"
    assert "Set backend.threads and engine.threads to no more than 2 together." in second
    assert told_threads(recipe_of(0, threads(1), threads(2)), 2) == [
        "threads: 1 of the engine, 2 of training, in turns, on 2 cores"
    ]


def test_one_core_cannot_do_both_at_once():
    assert "max_staleness=0" in told_threads(recipe_of(1, threads(1)), 1)[1]


def test_an_engine_on_another_device_takes_no_core():
    elsewhere = recipe_of(1, {"device": "cuda", "threads": 1})
    assert threads_of(elsewhere, 4) == 4
    assert told_threads(elsewhere, 4) == []


def test_nothing_is_told_of_what_computes_nothing():
    fake = recipe_of(1, {"type": "fake"}, {"type": "fake"})
    assert threads_of(fake) is None and told_threads(fake) == []


@pytest.mark.skipif(not psutil.LINUX, reason="where a process can be kept to some cores")
def test_cores_that_a_process_may_not_use_are_not_counted():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert usable_cores() <= len(allowed)
