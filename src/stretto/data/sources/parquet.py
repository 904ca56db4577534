"""Parquet files, read by pyarrow batch by batch: rows outside the slice and columns no key names are left alone."""

from collections.abc import Iterator
from typing import Any

from stretto.config.prompts import ParquetPrompts
from stretto.data.sources.columns import wanted_columns
from stretto.data.sources.extras import from_extra
from stretto.data.sources.files import named_files
from stretto.data.sources.rows import Row, Taken
from stretto.errors import DataError

__all__ = ["overlap", "read_parquet"]

BATCH = 4096
"""Rows that are Python objects at the same time."""


def read_parquet(config: ParquetPrompts, taken: Taken) -> Iterator[Row]:
    """The rows of the files, numbered from 0 in each."""
    # Part of an extra, and a third of a second to import.
    parquet = from_extra("pyarrow.parquet", "data", "parquet")
    named = named_files(config.path, "parquet")
    opened = [(prefix, path, _open(parquet, path)) for prefix, path in named]
    wanted = taken.among(sum(file.metadata.num_rows for _, _, file in opened))
    begin = 0
    for prefix, path, file in opened:
        low = begin
        begin += file.metadata.num_rows
        if not len(overlap(wanted, low, begin)):
            continue
        for batch in file.iter_batches(batch_size=BATCH, columns=_columns(config, file)):
            rows = overlap(wanted, low, low + batch.num_rows)
            for index, columns in zip(rows, batch.take([i - low for i in rows]).to_pylist(), strict=True):
                number = index - begin + file.metadata.num_rows
                yield Row(place=f"{path}, row {number}", number=f"{prefix}{number}", columns=columns)
            low += batch.num_rows


def overlap(wanted: range, low: int, high: int) -> range:
    """The numbers of ``wanted`` (rising) in [low, high)."""
    behind = max(0, -(-(low - wanted.start) // wanted.step))
    return range(wanted.start + behind * wanted.step, min(wanted.stop, high), wanted.step)


def _open(parquet: Any, path: object) -> Any:
    try:
        return parquet.ParquetFile(path)
    except Exception as error:
        # The library has exceptions of its own for every kind of damage.
        raise DataError(f"{path} is no parquet file ({error}). Set prompts.path to one, or prompts.type.") from error


def _columns(config: ParquetPrompts, file: Any) -> list[str] | None:
    """The top columns to read; one that is missing is refused with its row."""
    wanted = wanted_columns(config)
    if wanted is None:
        return None
    heads = {name for path in wanted for name in (path, path.partition(".")[0])}
    return [name for name in file.schema_arrow.names if name in heads]
