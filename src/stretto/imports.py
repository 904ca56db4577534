"""What users name as ``module:name``: a reward, a workflow, a node, a loss, prompts, an environment or a recipe.

Owns what importing may do wrong and what to do about it, not what the thing that is found must be.
"""

import gc
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType

from stretto.errors import ConfigError, nearest

__all__ = ["find_named", "import_named", "importing_much", "is_named", "told"]


@contextmanager
def importing_much() -> Generator[None]:
    """Import a large library inside, without the garbage collector: it would search all that is being made, again and
    again, and find next to nothing. Importing torch and transformers takes a sixth less CPU time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def is_named(use: str) -> bool:
    """Whether ``use`` has the form ``module:name``."""
    module, _, name = use.partition(":")
    return bool(module and name)


def find_named(use: str, what: str) -> object:
    """The object called ``module:name``. Raises ConfigError that begins with ``what``, with the nearest name."""
    module_name, _, name = use.partition(":")
    try:
        module = import_named(module_name)
    except ImportError as error:
        raise ConfigError(f"{what}: {error}") from error
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise ConfigError(f"{what}: the module {module_name} has no {name!r}.{nearest(name, public)}")
    return getattr(module, name)


def import_named(module: str) -> ModuleType:
    """The module called ``module``. Whatever importing it raises, an exit too, comes as ImportError.

    Its message says whether the module is not there or is wrong, where, and what to do. A module that calls
    ``sys.exit`` would else end the command with the exit status of its own choice, success too.
    """
    try:
        return import_module(module)
    except SystemExit as error:
        raise ImportError(
            f"the module {module} ends the program when it is imported (SystemExit: {error}{_place(error)}). Put that "
            'under if __name__ == "__main__".'
        ) from error
    except Exception as error:
        # Importing runs the user's code, which may raise anything.
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise ImportError(
                f"there is no module {error.name!r}. Check the name, and run from the folder it is in, or put that on "
                "PYTHONPATH."
            ) from error
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        remedy = "Install what it imports, or mend it." if isinstance(error, ModuleNotFoundError) else "Mend it there."
        raise ImportError(
            f"the module {module} cannot be imported ({type(error).__name__}: {what}{_place(error)}). {remedy}"
        ) from error


def told(error: BaseException) -> str:
    """An exception of a user's code that was called while a run is prepared: its type, message, file and line."""
    return f"{type(error).__name__}: {error}{_place(error)}"


def _place(error: BaseException) -> str:
    """Where it is wrong: the file and line of bad syntax, else of the last line of code that ran."""
    if isinstance(error, SyntaxError):
        return f"; {error.filename}, line {error.lineno}" if error.filename else ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")][1:]
    return f"; {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
