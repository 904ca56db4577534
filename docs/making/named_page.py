"""The page about the named algorithms: what each computes, where it is from, its vetted settings, presets, parts."""

from docstrings import cell

from stretto.api.describing import AlgorithmDescription, SettingDescription, describe_algorithm, families, parts
from stretto.config.algorithms.presets import PRESETS, VERSIONS

HEAD = """\
# Named algorithms

Every `algorithm.type`, as `stretto algorithms` lists them and `stretto algorithms show NAME` shows one. [Which of them
to take](../algorithms.md), and how to change or compose one, is a page of its own.

Of the settings, those are given that differ from `grpo`'s or that it does not have. All of them, with their ranges, are
in the [keys of a recipe](../configuration.md).

"""

PRESETS_HEAD = """\
## Presets

`algorithm.preset` sets defaults to another framework's conventions; what a recipe sets itself stays. The golden vectors
in `tests/golden`, which these frameworks' own functions computed, hold a preset to its word. A defect that a preset
reproduces is marked; what is computed otherwise there and not reproduced is named.

"""

PARTS_HEAD = """\
## Estimators and losses

What `algorithm.type: composed` takes beside each other ([examples](../algorithms.md#put-one-together)).

"""

KEYS = {"advantages": "Advantages", "policy_loss": "Losses"}


def named_page() -> str:
    """The whole page."""
    described = {name: describe_algorithm(name) for names in families().values() for name in names}
    text = HEAD
    for family, names in families().items():
        text += f"**{family[0].upper()}{family[1:]}**\n\n| `algorithm.type` | |\n|---|---|\n"
        text += "".join(f"| [`{name}`](#{name}) | {cell(described[name].summary)} |\n" for name in names) + "\n"
    text += "".join(_algorithm(found) for found in described.values())
    return (text + _presets() + _parts()).rstrip() + "\n"


def _algorithm(found: AlgorithmDescription) -> str:
    text = f"## {found.name}\n\n{found.summary}\n\n" + (f"{found.doc}\n\n" if found.doc else "")
    text += f"```text\n{found.formula}\n```\n\n" if found.formula else ""
    text += f"Paper: {found.paper}.\n\n" if found.paper else ""
    shown = [s for s in found.settings if s.differs] if found.name != "grpo" else [*found.settings]
    if shown:
        text += f"| `algorithm.` | vetted | {'' if found.name == 'grpo' else '`grpo` | '}|\n"
        text += "|---|---|---|\n" if found.name == "grpo" else "|---|---|---|---|\n"
        text += "".join(_row(s, compared=found.name != "grpo") for s in shown) + "\n"
    if found.missing:
        text += f"Not read here, but by `grpo`: {', '.join(f'`{name}`' for name in found.missing)}.\n\n"
    return text


def _row(s: SettingDescription, *, compared: bool) -> str:
    beside = f" {'' if s.reference is None else f'`{s.reference}`'} |" if compared else ""
    return f"| `{s.key}` | `{cell(s.default)}` |{beside} {cell(s.doc)} |\n"


def _presets() -> str:
    text = PRESETS_HEAD
    for framework, version in VERSIONS.items():
        text += f"### {framework}\n\nRead: {version}.\n\n| `algorithm.type` | changes | |\n|---|---|---|\n"
        for name in PRESETS[framework]:
            (preset,) = (p for p in describe_algorithm(name).presets if p.name == framework)
            changes = ", ".join(f"`{key}={value}`" for key, value in preset.values.items()) or "nothing: as here"
            notes = [f"**A defect that is kept:** {text}." for text in preset.defects]
            notes += [f"Not reproduced: {text}." for text in preset.not_here]
            text += f"| `{name}` | {cell(changes)} | {cell(' '.join(notes))} |\n"
        text += "\n"
    return text


def _parts() -> str:
    text = PARTS_HEAD
    for key, title in KEYS.items():
        text += f"### {title}\n\n| `algorithm.{key}.type` | | settings |\n|---|---|---|\n"
        for part in (part for part in parts() if part.key == key):
            settings = ", ".join(f"`{s.key}={s.default}`" for s in part.settings)
            text += f"| `{part.name}` | {cell(part.summary)} | {cell(settings)} |\n"
        text += "\n"
    return text
