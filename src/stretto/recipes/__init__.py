"""The recipes that come with Stretto, by name. Each is a YAML file of this folder."""

from pathlib import Path

from stretto.errors import ConfigError, nearest

__all__ = ["FOLDER", "packaged", "path_of"]

FOLDER = Path(__file__).parent
"""Where they are: what ``load_recipe`` takes as ``packaged``."""


def packaged() -> dict[str, Path]:
    """The file of every packaged recipe, by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def path_of(name: str) -> Path:
    """The file of one. Raises ConfigError with the nearest name."""
    recipes = packaged()
    if name not in recipes:
        raise ConfigError(f"no packaged recipe is called {name!r}.{nearest(name, recipes)}")
    return recipes[name]
