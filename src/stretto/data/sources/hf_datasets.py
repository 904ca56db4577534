"""Folders of the library ``datasets``: as ``save_to_disk`` writes them, or data files by split. Needs no network."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stretto.config.prompts import DatasetsPrompts
from stretto.data.sources.extras import from_extra
from stretto.data.sources.rows import Row, Taken
from stretto.errors import DataError, nearest

__all__ = ["is_dataset", "read_datasets", "rows_of"]

BATCH = 4096


def read_datasets(config: DatasetsPrompts, taken: Taken) -> Iterator[Row]:
    """The rows of one split, numbered from 0."""
    folder = Path(config.path)
    if not folder.is_dir():
        raise DataError(
            f"the data set folder {config.path} does not exist (looked in {Path.cwd()}). Where there is a network, "
            f"datasets.load_dataset({config.path!r}, ...).save_to_disk(FOLDER) makes one; then set prompts.path=FOLDER."
        )
    # Part of an extra, and a second to import.
    library = from_extra("datasets", "data", "datasets")
    place = config.path if config.split is None else f"{config.path}, split {config.split}"
    yield from rows_of(_split(config, _load(library, folder)), place, taken)


def is_dataset(value: object) -> bool:
    """Whether an object is a ``datasets.Dataset``: told without importing the library."""
    return any(f"{base.__module__}.{base.__name__}" == "datasets.arrow_dataset.Dataset" for base in type(value).__mro__)


def rows_of(dataset: Any, place: str, taken: Taken) -> Iterator[Row]:
    """The rows of a ``datasets.Dataset``, read as columns, so that nothing is decoded (images, sound)."""
    wanted = taken.among(len(dataset))
    if not len(wanted):
        return
    numbers = iter(wanted)
    for table in dataset.select(wanted).with_format("arrow").iter(BATCH):
        for columns in table.to_pylist():
            number = next(numbers)
            yield Row(place=f"{place}, row {number}", number=str(number), columns=columns)


def _load(library: Any, folder: Path) -> Any:
    """A Dataset, or a mapping of splits to Datasets."""
    saved = (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()
    try:
        return library.load_from_disk(str(folder)) if saved else library.load_dataset(str(folder))
    except Exception as error:
        # The library lets through whatever its readers raise.
        raise DataError(
            f"the folder {folder} cannot be read as a data set ({type(error).__name__}: {error}). Write it with "
            "save_to_disk, or give it files by split, such as train.parquet or train.jsonl."
        ) from error


def _split(config: DatasetsPrompts, loaded: Any) -> Any:
    """The Dataset that ``prompts.split`` names, or the only one."""
    if is_dataset(loaded):
        if config.split is not None:
            raise DataError(
                f"prompts.split={config.split} cannot be taken: {config.path} has no splits. Leave prompts.split out."
            )
        return loaded
    names = [str(name) for name in loaded]
    if config.split is None and len(names) > 1:
        raise DataError(f"{config.path} has the splits {', '.join(names)}. Set prompts.split to one of them.")
    if config.split is not None and config.split not in names:
        raise DataError(f"prompts.split={config.split}: {config.path} has no such split.{nearest(config.split, names)}")
    return loaded[config.split or names[0]]
