"""The answers of the daemon, as they come: JSON objects with these keys.

Sizes are in bytes, times in seconds, paths absolute. A newer daemon may send more keys than are named here.
"""

from __future__ import annotations

from typing import Literal, TypedDict

Component = Literal["diffusion_model", "text_encoder", "vae", "other"]
Priority = Literal["low", "normal", "high"]
State = Literal["absent", "partial", "resident"]
Sort = Literal["path", "size", "resident", "used"]
JobState = Literal["running", "done", "failed", "cancelled"]


class MountStatus(TypedDict):
    """One mounted folder. `passthrough`: resident files are read without the daemon."""

    mountpoint: str
    source: str
    passthrough: bool


class RamStatus(TypedDict):
    """The arena. `client_held_bytes` are evicted, but mapped by programs; they count against the budget."""

    budget_bytes: int
    limit_bytes: int
    budget_reason: str
    high_watermark_bytes: int
    low_watermark_bytes: int
    resident_bytes: int
    pinned_bytes: int
    client_held_bytes: int


class IoStatus(TypedDict):
    """Sums since the start of the daemon."""

    engine: str
    source_read_bytes: int
    served_from_ram_bytes: int
    served_from_source_bytes: int
    passthrough_opens: int
    stream_opens: int
    evicted_bytes: int


class WorkerStatus(TypedDict):
    """The process that serves the mounts."""

    pid: int
    restarts: int


class HintStatus(TypedDict):
    """How many hints of each kind the daemon has now."""

    in_use: int
    queued: int
    in_vram: int


class Status(TypedDict):
    """How the daemon is."""

    mounts: list[MountStatus]
    ram: RamStatus
    io: IoStatus
    worker: WorkerStatus
    version: str
    notes: list[str]
    hints: HintStatus
    policy: str
    uptime_seconds: float


class FileStatus(TypedDict):
    """One model file and what of it is in RAM."""

    path: str
    size_bytes: int
    resident_bytes: int
    pinned_bytes: int
    kept_bytes: int
    client_held_bytes: int
    state: State
    filling_bytes: int
    format: Literal["safetensors", "gguf", "torch", "other"]
    priority: Priority
    in_use: bool
    in_vram: list[str]
    resident_seconds: float | None
    unused_seconds: float | None
    last_load: Literal["map", "pread", "whole"] | None


class Totals(TypedDict):
    """Of all files that a query names."""

    files: int
    size_bytes: int
    resident_bytes: int


class Files(TypedDict):
    """One page of files; `next` is the cursor of the page after it."""

    files: list[FileStatus]
    next: str | None
    totals: Totals


class GroupStatus(TypedDict):
    """Tensors whose names begin alike."""

    name: str
    tensors: int
    size_bytes: int
    resident_bytes: int
    pinned_bytes: int


class ComponentStatus(TypedDict):
    """A part of a checkpoint that is used on its own."""

    name: Component
    tensors: int
    size_bytes: int
    resident_bytes: int
    pattern: str | None


class TensorStatus(TypedDict):
    """One tensor. `offset` is in the file, `dtype` as the format spells it."""

    name: str
    dtype: str
    shape: list[int]
    offset: int
    size_bytes: int
    resident_bytes: int
    pinned: bool


class Tensors(TypedDict):
    """What a file consists of."""

    path: str
    size_bytes: int
    header_bytes: int
    format: str
    groups: list[GroupStatus]
    components: list[ComponentStatus]
    tensors: list[TensorStatus]
    omitted: int


class Outcome(TypedDict):
    """What was pinned, unpinned or freed. `left_bytes` had to stay, or are not resident yet."""

    files: int
    bytes: int
    left_bytes: int


class _JobBase(TypedDict):
    id: str
    state: JobState
    files: int
    bytes_done: int
    bytes_total: int
    bytes_per_second: int


class Job(_JobBase, total=False):
    """A prefetch. `detail` says why it failed or left something out."""

    detail: str


class _InUseBase(TypedDict):
    id: str
    expires_seconds: float


class InUse(_InUseBase, total=False):
    """A mark that files are used now, of so many that were understood; `unknown` paths lead to none."""

    files: int
    unknown: list[str]


class _QueueItemBase(TypedDict):
    path: str


class QueueItem(_QueueItemBase, total=False):
    """A file that will be loaded, or the part of it that `tensors` (a glob of names) or `component` names."""

    tensors: str
    component: Component


class QueueEntry(TypedDict):
    """One piece of work, such as a prompt, and the files that it needs in order."""

    id: str
    paths: list[QueueItem]


class Hinted(TypedDict):
    """What came of a hint: files that were understood, and paths that lead to none that can be kept.

    It ends after `expires_seconds`; None: when something else is said.
    """

    files: int
    unknown: list[str]
    expires_seconds: float | None


class NextToGo(TypedDict):
    """What of a file goes first when room is needed."""

    bytes: int
    reason: str
    bytes_before: int


class Explained(TypedDict):
    """Why a file is or is not in RAM."""

    path: str
    size_bytes: int
    resident_bytes: int
    pinned_bytes: int
    kept_bytes: int
    resident_seconds: float | None
    unused_seconds: float | None
    held: bool
    why: str
    next: NextToGo | None
    policy: str
    budget_bytes: int
    budget_reason: str


class Event(TypedDict, total=False):
    """Something that happened. Of kind `lost`, only `lost`: so many events came faster than they were read."""

    kind: str
    at: float
    path: str
    bytes: int
    reason: str
    lost: int
