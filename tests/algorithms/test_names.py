"""A name of a form that a formula does not have is refused, whichever function is called: none falls into another."""

import importlib
import inspect
import pkgutil
from typing import Literal, get_origin

import pytest

import stretto.algorithms
from stretto.algorithms.losses import LOSSES, resolve_loss
from stretto.errors import ConfigError
from stretto.types import LossRef


def named(function) -> list[str]:
    """The parameters that are Literals."""
    return [n for n, p in inspect.signature(function).parameters.items() if get_origin(p.annotation) is Literal]


def public_functions():
    """Of all modules; losses are called through ``resolve_loss``, and theirs is the file of KL terms."""
    for found in pkgutil.walk_packages(stretto.algorithms.__path__, "stretto.algorithms."):
        if found.name.startswith("stretto.algorithms.losses.") and found.name != "stretto.algorithms.losses.kl":
            continue
        module = importlib.import_module(found.name)
        for name in getattr(module, "__all__", ()):
            function = getattr(module, name)
            if inspect.isfunction(function) and function.__module__ == found.name and named(function):
                yield function


FUNCTIONS = list(public_functions())


def test_there_are_such_functions():
    names = {function.__name__ for function in FUNCTIONS}
    assert {"aggregation_weights", "group_advantages", "gae", "importance_weights", "kl_in_loss", "lr_at"} <= names


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_refuse_names_that_they_do_not_know(function):
    for parameter in named(function):
        with pytest.raises(ConfigError, match=f"{function.__name__}: {parameter}='nonesuch' is not known"):
            function(**{parameter: "nonesuch"})
    with pytest.raises(TypeError, match="missing"):  # what is not about names is as Python has it
        function()


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_losses_refuse_names_that_they_do_not_know(name):
    for setting in named(LOSSES[name]):
        with pytest.raises(ConfigError, match=f"the loss '{name}': {setting}='nonesuch' is not known"):
            resolve_loss(LossRef(use=name, settings={setting: "nonesuch"}))


def test_a_name_is_refused_by_place_too():
    with pytest.raises(ConfigError, match="Did you mean 'token_mean'"):
        stretto.algorithms.aggregation.aggregation_weights(None, "tokn_mean")
