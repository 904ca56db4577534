"""Importing modules that users name: ``module:function`` of a reward, a workflow, a node, a loss, prompts or a recipe.

Owns what importing may do wrong and what to do about it, not what is looked for in the module or how an error begins.
"""

import traceback
from importlib import import_module
from types import ModuleType

__all__ = ["import_named"]


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


def _place(error: BaseException) -> str:
    """Where it is wrong: the file and line of bad syntax, else of the last line of code that ran."""
    if isinstance(error, SyntaxError):
        return f"; {error.filename}, line {error.lineno}" if error.filename else ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")][1:]
    return f"; {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
