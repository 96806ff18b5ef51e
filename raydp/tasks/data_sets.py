"""Hugging Face data sets: a folder that save_to_disk wrote, or a data set on the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raydp.search_spaces.names import columns_in_words

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset


def load_data_set(
    path: str,
    field: str,
    split_field: str = "task.split",
    *,
    config: str | None = None,
    split: str | None = None,
    revision: str | None = None,
    streaming: bool = False,
) -> Dataset | IterableDataset:
    """Load a part of a data set.

    Args:
        path: a folder, or a name on the hub.
        field, split_field: the options that hold the path and the part, for messages.
        config, revision: configuration and version of a data set on the hub.
        split: the part; None for `train`, or for a data set without parts.
        streaming: download the rows of a data set on the hub only as they are read.

    Raises:
        ValueError: the package datasets is not installed, or there is no such data set or part.
    """
    # The package is optional and heavy: import it only where a data set is named.
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{field} must be an existing file where the package datasets is not installed, got "
            f"{path!r}. Check the path, or run `pip install '.[datasets]'` in the repository."
        ) from error
    # load_dataset downloads whole data sets unless it streams.
    on_hub: dict[str, Any] = {"name": config, "revision": revision} if config or revision else {}
    on_hub |= {"streaming": True} if streaming else {}
    try:
        data = (
            datasets.load_from_disk(path)
            if Path(path).is_dir()
            else datasets.load_dataset(path, **on_hub)
        )
    except (FileNotFoundError, ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise ValueError(
            f"{field} must be an existing file, a folder of datasets.save_to_disk or a data set of "
            f"the Hugging Face hub, got {path!r}: {error} Check the path."
        ) from error
    # A data set without parts is returned as it is; otherwise take the named part, or `train`.
    if isinstance(data, datasets.Dataset | datasets.IterableDataset):
        if split is not None:
            raise ValueError(
                f"{split_field} must go with a data set in parts, got {split!r} with {path!r}. "
                "Remove it."
            )
        return data
    if (split or "train") not in data:
        raise ValueError(
            f"{split_field} must be a part of the data set, got {split or 'train'!r}. It has "
            f"{columns_in_words(data)}."
        )
    return data[split or "train"]


def rows_of_data_set(
    path: str,
    field: str,
    *,
    config: str | None,
    split: str | None,
    revision: str | None,
    max_rows: int | None,
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the rows of a data set with their places; rows beyond max_rows are not downloaded."""
    # A saved folder is on this disk, so there is nothing to download.
    streaming = max_rows is not None and not Path(path).is_dir()
    data = load_data_set(
        path, field, config=config, split=split, revision=revision, streaming=streaming
    )
    for number, row in enumerate(islice(data, max_rows), start=1):
        yield f"row {number} of the data set", row
