"""Importing modules that users name: ``module:function`` of a reward, a workflow, a node, a loss, prompts or a recipe.

Owns what importing may do wrong, not what is looked for in the module or how the error is worded there.
"""

from importlib import import_module
from types import ModuleType

__all__ = ["import_named"]


def import_named(module: str) -> ModuleType:
    """The module called ``module``. Whatever importing it raises, an exit too, comes as ImportError that says it.

    A module that calls ``sys.exit`` would else end the command with the exit status of its own choice, success too.
    """
    try:
        return import_module(module)
    except SystemExit as error:
        raise ImportError(
            f'it ends the program when it is imported (SystemExit: {error}); put that under if __name__ == "__main__"'
        ) from error
    except Exception as error:
        # Importing runs the user's code, which may raise anything.
        raise ImportError(f"{type(error).__name__}: {error}") from error
