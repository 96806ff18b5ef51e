"""An object store through which a sweep's nodes hand over checkpoints, ledgers and models."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from raydp.system.locations import fetch, opened
from raydp.training.checkpoint import KEPT, CheckpointStore
from raydp.training.ledger import Ledger

if TYPE_CHECKING:
    import torch
    from pyarrow.fs import FileSystem

FIELD = "cluster.exchange"


@dataclass(frozen=True)
class Bucket:
    """A folder in an object store, by its URI. The `Exchange` of sweeps on several nodes."""

    uri: str

    @cached_property
    def _opened(self) -> tuple[FileSystem, str]:
        return opened(self.uri, FIELD)

    def __getstate__(self) -> dict[str, str]:
        return {"uri": self.uri}

    def put(self, path: Path, name: str) -> None:
        """Store a file, whole or not at all. An object exists once its stream is closed."""
        files, root = self._opened
        # An object store has no folders, and would keep a marker of one.
        if files.type_name == "local":
            files.create_dir(f"{root}/{name}".rpartition("/")[0], recursive=True)
        with path.open("rb") as source, files.open_output_stream(f"{root}/{name}") as sink:
            shutil.copyfileobj(source, sink, 1 << 22)

    def get(self, name: str, path: Path) -> None:
        """Fetch a file."""
        files, root = self._opened
        fetch(files, f"{root}/{name}", path)

    def names(self, folder: str) -> dict[str, int]:
        """Return name -> bytes of every file below a folder; "" is the whole bucket."""
        from pyarrow import fs

        files, root = self._opened
        selected = fs.FileSelector(
            f"{root}/{folder}".rstrip("/"), recursive=True, allow_not_found=True
        )
        entries = files.get_file_info(selected)
        return {
            entry.path[len(root) + 1 :]: entry.size
            for entry in entries
            if entry.type == fs.FileType.File
        }

    def delete(self, name: str) -> None:
        """Delete a file."""
        files, root = self._opened
        files.delete_file(f"{root}/{name}")

    def remove(self, folder: str) -> None:
        """Delete a folder, such as the folder of a run, if it exists."""
        files, root = self._opened
        if self.names(folder):
            files.delete_dir(f"{root}/{folder}")

    def check(self) -> None:
        """Check that files can be written to the object store and deleted.

        Raises:
            ValueError: they cannot.
        """
        if not PurePath(urlsplit(self.uri).netloc + urlsplit(self.uri).path).name:
            raise ValueError(
                f"{FIELD} must name a bucket or a folder, got {self.uri!r}. Write s3://bucket/folder."
            )
        name = f"probe-{secrets.token_hex(8)}/probe"
        # Only a trial write shows whether the credentials may write and delete.
        try:
            with tempfile.NamedTemporaryFile() as probe:
                self.put(Path(probe.name), name)
            self.remove(name.rpartition("/")[0])
        except OSError as error:
            raise ValueError(
                f"{FIELD} must be a place to write to, got {self.uri!r} ({error}). Correct it."
            ) from error

    def of_sweep(self, sweep_id: str) -> Bucket:
        """Return the folder of a sweep, which is named by its id."""
        parts = urlsplit(self.uri)
        return Bucket(parts._replace(path=f"{parts.path.rstrip('/')}/{sweep_id}").geturl())

    def files(self, run_id: str) -> StoredFiles:
        """Return the files of one run, for a worker."""
        return StoredFiles(bucket=self, run_id=run_id)

    def collect(self, run_id: str, attempt: str, folder: Path) -> None:
        """Fetch a run's model into folder/attempt/model. The driver calls this."""
        for name in self.names(f"{run_id}/{attempt}"):
            self.get(name, folder / attempt / "model" / name.rpartition("/")[2])

    def runs(self) -> set[str]:
        """Return the runs of which the folder holds files."""
        return {name.partition("/")[0] for name in self.names("")}


@dataclass(frozen=True, kw_only=True)
class _RemoteCheckpoints(CheckpointStore):
    """Checkpoints on this node's disk, copied to an object store for workers on other nodes."""

    bucket: Bucket
    remote: str

    def beside(self, name: str) -> CheckpointStore:
        folder = self.folder.with_name(f"{self.folder.name}-{name}")
        return replace(self, folder=folder, remote=f"{self.remote}-{name}")

    def save(self, step: int, tensors: dict[str, torch.Tensor], state: dict[str, object]) -> None:
        super().save(step, tensors, state)
        name = f"step-{step:08d}.safetensors"
        try:
            # Send the new checkpoint before deleting old ones, so that the store always has one.
            if (self.folder / name).is_file():
                self.bucket.put(self.folder / name, f"{self.remote}/{name}")
            for old in sorted(self.bucket.names(self.remote))[:-KEPT]:
                self.bucket.delete(old)
        except OSError as error:
            # A missing copy costs time, and no result: training goes on.
            self.warn(
                f"checkpoint after step {step} of run {self.run_id} could not be sent to the store "
                f"({error})"
            )

    def load(self) -> tuple[int, dict[str, torch.Tensor], dict[str, object]] | None:
        # Copy what this node lacks. Another size means a copy that was not finished.
        for name, size in self.bucket.names(self.remote).items():
            path = self.folder / name.rpartition("/")[2]
            if not path.is_file() or path.stat().st_size != size:
                self.bucket.get(name, path)
        return super().load()


class _RemoteLedger(Ledger):
    """A ledger of one file per attempt, sent to the store before the step's update is applied."""

    def __init__(self, path: Path, bucket: Bucket, remote: str) -> None:
        super().__init__(path)
        self._bucket, self._remote = bucket, remote

    def record(self, step: int) -> None:
        super().record(step)
        # Sent before the step's update: a noisy step counts even if the worker dies now.
        self._bucket.put(self._path, f"{self._remote}/{self._path.name}")

    def _steps(self) -> list[str]:
        steps = []
        # Every attempt has a file of its own, and the noisy steps of all attempts count.
        for name in self._bucket.names(self._remote):
            copy = self._path.with_name("read.txt")
            self._bucket.get(name, copy)
            steps += copy.read_text(encoding="ascii").split()
        return steps


@dataclass(frozen=True, kw_only=True)
class StoredFiles:
    """A folder on this node, and the run's folder in an object store.

    Attributes:
        bucket: the sweep's folder in the store.
        run_id: the run. Its folder in the bucket has this name.
    """

    bucket: Bucket
    run_id: str

    @cached_property
    def _scratch(self) -> Path:
        """Return a folder of this attempt alone.

        A worker that seemed dead may still run on the same node.
        """
        return Path(tempfile.mkdtemp(prefix=f"raydp-{self.run_id}-"))

    def checkpoints(self, warn: Callable[[str], None]) -> CheckpointStore:
        return _RemoteCheckpoints(
            folder=self._scratch / "checkpoints",
            run_id=self.run_id,
            warn=warn,
            bucket=self.bucket,
            remote=f"{self.run_id}/checkpoints",
        )

    def ledger(self) -> Ledger:
        # A new file for each attempt, so that none overwrites the steps of another.
        path = self._scratch / f"ledger-{secrets.token_hex(8)}.txt"
        return _RemoteLedger(path, self.bucket, f"{self.run_id}/ledger")

    def model_folder(self, attempt: str) -> Path:
        return self._scratch / attempt / "model"

    def hand_over(self, attempt: str) -> None:
        for path in self.model_folder(attempt).iterdir():
            self.bucket.put(path, f"{self.run_id}/{attempt}/{path.name}")

    def close(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
