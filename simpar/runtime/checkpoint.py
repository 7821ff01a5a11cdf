"""Checkpoints that are either complete or absent, load into any layout, and execute no code.

A checkpoint is a folder ``step-00000010`` with the files of torch.distributed.checkpoint and ``manifest.json``, which
has what was trained, and the size and digest of every file. It is written under a temporary name and renamed when every
rank has finished, so a half-written one is never taken for a checkpoint. Tensors have the parameter's name and whole
shape and are stored in shards, from which any other layout can read its own shards.

torch.distributed.checkpoint unpickles its index; here only the classes that an index consists of are admitted.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from simpar import files
from simpar.dataclass import dataclass
from simpar.errors import UserError
from simpar.runtime.saved import DELAYED, MANIFEST, PREFIX, VERSION, list_complete, read_manifest
from simpar.runtime.sharded import shard_like
from simpar.units import MIB

PARTIAL, INDEX = ".partial", ".metadata"
Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Contents:
    """The origin of a checkpoint: the model's name, the optimizer, the next step, and the plan that made it."""

    model: str
    optimizer: str
    step: int
    plan: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Store:
    """The checkpoints of a run in one folder. Every rank has one; all call its methods together.

    Saving goes on in a thread while training does, over a process group of its own.
    """

    folder: Path
    keep: int = 2
    background: bool = True
    group: Any = None
    _saving: Future[None] | None = None
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "checkpoint"))

    @staticmethod
    def open(folder: Path, *, keep: int, background: bool) -> Store:
        """Make the folder and delete half-written checkpoints."""
        store = Store(folder, keep, background, dist.new_group(backend="gloo"))
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            for left in folder.glob(f"{PREFIX}*{PARTIAL}"):
                shutil.rmtree(left)
        dist.barrier(store.group)
        return store

    def sound(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Undamaged checkpoints with their manifests, newest first, the same on every rank.

        The reason why one is damaged goes to the error stream of rank 0. If all are damaged, UserError is raised for
        the last one.
        """
        received: list[Any] = [None]
        if dist.get_rank() == 0:
            received = [[str(path) for path in reversed(list_complete(self.folder))]]
        dist.broadcast_object_list(received, src=0, group=self.group)
        for place, name in enumerate(received[0]):
            path = Path(name)
            reason = self._damage(path)
            if reason is None:
                yield path, read_manifest(path)
            elif place == len(received[0]) - 1:
                raise UserError(reason)
            elif dist.get_rank() == 0:
                sys.stderr.write(f"{reason}; going on with the one before\n")

    def _damage(self, path: Path) -> str | None:
        """Why a checkpoint cannot be loaded, whichever rank finds out; None if it is intact."""
        rank, world = dist.get_rank(), dist.get_world_size()

        def check() -> None:
            files_of = read_manifest(path)["files"]
            _check_files(path, files_of, sorted(files_of)[rank::world])

        every: list[Any] = [None] * world
        dist.all_gather_object(every, _attempt(check), group=self.group)
        return next((str(value) for kind, value in every if kind == "failed"), None)

    def save(self, tensors: Tensors, contents: Contents) -> None:
        """Write a checkpoint; returns once the tensors are copied. Raises the error of a previous save that failed."""
        self.wait()
        half = self.folder / f"{PREFIX}{contents.step:08d}{PARTIAL}"
        copies = {name: stage_tensor(tensor.detach()) for name, tensor in tensors.items()}
        writing = dcp.async_save(copies, storage_writer=dcp.FileSystemWriter(half), process_group=self.group)
        self._saving = self._thread.submit(self._commit, writing, half, contents)
        if not self.background:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is being written. Raises the error of a save that failed."""
        if self._saving is None:
            return
        saving, self._saving = self._saving, None
        try:
            saving.result()
        except BaseException as error:  # torch's CheckpointException is no Exception
            reason = _system_error(error)
            if reason is None:
                raise
            kept = list_complete(self.folder)
            left = f"the newest whole one is {kept[-1]}" if kept else "there is none yet"
            raise UserError(
                f"--checkpoint {self.folder}: a checkpoint cannot be written ({reason}); {left}; allowed: a folder "
                "with space for two"
            ) from error

    def _commit(self, writing: Future[Any], half: Path, contents: Contents) -> None:
        """When every rank has written: digests of all files into the manifest, then the final name."""
        writing.result()
        rank, mine = dist.get_rank(), {}
        for path in sorted(half.iterdir()):
            if path.name.startswith(f"__{rank}_") or (path.name == INDEX and rank == 0):
                mine[path.name] = digest(path)
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, mine, group=self.group)
        if rank == 0:
            manifest = {
                "version": VERSION, "model": contents.model, "optimizer": contents.optimizer,
                "step": contents.step, "plan": contents.plan,
                "files": {name: each for part in every for name, each in part.items()},
            }  # fmt: skip
            files.write_atomic(half / MANIFEST, json.dumps(manifest, indent=2) + "\n")
            whole = half.with_suffix("")
            if whole.exists():
                shutil.rmtree(whole)
            half.rename(whole)
            _sync_folder(self.folder)
            for old in list_complete(self.folder)[: -self.keep]:
                shutil.rmtree(old)
        dist.barrier(self.group)

    def load(self, path: Path, tensors: Sequence[Tensors]) -> None:
        """Fill tensors from a sound checkpoint of any layout; sets are filled in turn, because names may repeat.

        Raises UserError for a checkpoint of another model.
        """
        every: list[Any] = [None] * dist.get_world_size()
        reader = SafeReader(path)
        for part in tensors:
            outcome = _attempt(partial(_check_names, path, reader.read_metadata(), part))
            dist.all_gather_object(every, outcome, group=self.group)
            _agreed(every)
            with torch.no_grad():
                dcp.load(dict(part), storage_reader=reader, process_group=self.group)


def stage_tensor(tensor: Any) -> Any:
    """A copy on the host, in pinned memory if the tensor is on a device, so that no device memory is held."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if local.device.type == "cpu":
        return tensor.clone()
    copy = torch.empty(local.shape, dtype=local.dtype, pin_memory=True)
    copy.copy_(local)
    return shard_like(copy, tensor)


def _system_error(error: BaseException) -> str | None:
    """The system's message for a failed write, on whichever rank; None for any other error."""
    failures = [each[0] if isinstance(each, tuple) else each for each in getattr(error, "failures", {}).values()]
    for each in (error, error.__cause__, *failures):
        if isinstance(each, OSError) and each.strerror:
            return each.strerror
        # torch's writer raises RuntimeErrors of its own when a stream is full
        if isinstance(each, RuntimeError) and ("file write failed" in str(each) or "No space left" in str(each)):
            return "No space left on device"
    return None


def digest(path: Path) -> list[Any]:
    """Size in bytes and BLAKE2 digest of a file."""
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as stream:
        while block := stream.read(MIB):
            state.update(block)
    return [path.stat().st_size, state.hexdigest()]


def _check_files(path: Path, expected: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        file = path / Path(name).name
        if not file.is_file():
            raise UserError(f"{file}: is missing; remove the checkpoint {path} to use an older one")
        if digest(file) != list(expected[name]):
            raise UserError(f"{file}: is corrupt; remove the checkpoint {path} to use an older one")


def _check_names(path: Path, index: Metadata, tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        metadata = index.state_dict_metadata.get(name)
        there = tuple(metadata.size) if isinstance(metadata, TensorStorageMetadata) else None
        if there is None and name.startswith(f"{DELAYED}."):
            raise UserError(
                f"{path}: holds no delayed update of {name.removeprefix(f'{DELAYED}.')}, which its layout updated on "
                "the device; allowed: that layout, or offload_ratio 1"
            )
        if there != tuple(tensor.shape):
            raise UserError(
                f"{path}: is a checkpoint of another model: {name} is {_shape(there)} there, "
                f"{_shape(tuple(tensor.shape))} here"
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else " x ".join(map(str, shape)) or "a number"


def _attempt(action: Callable[[], Any]) -> tuple[str, Any]:
    """The result of an action, or its user error, in a form that can be sent to other ranks."""
    try:
        return "done", action()
    except UserError as error:
        return "failed", str(error)


def _agreed(outcomes: Sequence[tuple[str, Any]]) -> list[Any]:
    """The results of all ranks; if one failed, all fail with the same error."""
    for kind, value in outcomes:
        if kind == "failed":
            raise UserError(value)
    return [value for _, value in outcomes]


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SafeReader(dcp.FileSystemReader):
    """A reader whose index cannot execute code."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """The index of the checkpoint. Raises UserError if it holds anything but tensors."""
        file = Path(self.path) / INDEX
        try:
            with file.open("rb") as stream:
                index = _IndexUnpickler(stream).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, IndexError) as error:
            raise UserError(f"{file}: is not the index of a checkpoint ({error})") from None
        entries = getattr(index, "state_dict_metadata", None)
        if not isinstance(index, Metadata) or not isinstance(entries, dict):
            raise UserError(f"{file}: is not the index of a checkpoint")
        strange = [name for name, entry in entries.items() if not isinstance(entry, TensorStorageMetadata)]
        if strange:
            raise UserError(f"{file}: {strange[0]} is not a tensor; allowed: checkpoints of simpar run")
        if index.storage_meta is None:
            index.storage_meta = StorageMeta()
        index.storage_meta.load_id = self.load_id
        return index


class _IndexUnpickler(pickle.Unpickler):
    """Admits the dataclasses of torch.distributed.checkpoint's index, sizes, dtypes and layouts."""

    CLASSES: ClassVar[Mapping[str, set[str]]] = {
        "torch.distributed.checkpoint.metadata": {
            "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex",
            "StorageMeta", "BytesStorageMetadata", "_MEM_FORMAT_ENCODING",
        },
        "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "StorageMeta"},
        "torch": {"Size"},
        "torch.serialization": {"_get_layout"},
        "pathlib": {"PosixPath", "PurePosixPath"},
        "builtins": {"set", "frozenset", "tuple"},
    }  # fmt: skip

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(stream)

    def find_class(self, module: str, name: str) -> Any:
        """The class of that name if an index may contain it. Raises UnpicklingError otherwise."""
        module = (
            "pathlib" if module == "pathlib._local" else module
        )  # Python 3.13 pickles paths under a private module name
        if name in self.CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
