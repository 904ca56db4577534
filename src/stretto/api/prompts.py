"""The prompts of a recipe as its run has them: for tests of rewards, and for a look at them.

Owns no reading: that is ``data.sources``'.
"""

from collections.abc import Sequence

from stretto.config.load import load_recipe
from stretto.data.locations import locate
from stretto.data.sources import read_prompts
from stretto.data.tokens import load_tokenizer
from stretto.recipes import FOLDER
from stretto.types import Prompt

__all__ = ["prompts_of"]


def prompts_of(recipe: str, overrides: Sequence[str] = ()) -> tuple[Prompt, ...]:
    """Every prompt of ``recipe`` (a packaged name, a file or ``module:function``), held out or not, in its source's
    order, with the ``data`` that a reward gets. Needs the model's tokenizer, not its weights.

    Raises UserError for whatever would refuse a run of it for its prompts.
    """
    config = load_recipe(recipe, overrides, packaged=FOLDER).recipe
    tokenizer = load_tokenizer(locate(config.model.path, config.model.revision).path)
    return tuple(read_prompts(config.prompts, tokenizer).prompts)
