"""What is kept of a flow beside its checkpoint: its identity, its status, who runs it."""

from collections.abc import Iterator
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct
from typing_extensions import override

from pydanube.errors import Corruption
from pydanube.pipelines.errors import FlowHeld
from pydanube.pipelines.identity import FlowIdentity
from pydanube.pipelines.reports import FlowStatus
from pydanube.runtime.blocking import (
    HeldFile,
    host_name,
    names_in,
    process_id,
    read_file_if_there,
    remove_file,
    rename,
    replace_file,
)

_Kept = TypeVar("_Kept")
HowToStop = Literal["after the batch", "now"]

_RECORD = ".flow.json"
_STATUS = ".status.json"
_NOTES = ".batches.json"
_STATIC_BATCHES_MAX = 10


class FlowRecord(Struct, frozen=True, kw_only=True):
    """What a flow was when its checkpoint was made."""

    identity: FlowIdentity
    hash: str
    query: str | None = None
    """Spark's id of the query; it lives in the checkpoint, too."""
    starts: dict[str, dict[str, int]] = {}
    """Offsets by source to start at, where a new checkpoint goes on from a sink."""
    begins: dict[str, dict[str, int]] = {}
    """Offsets by source that the sink's first row comes from, as far as that is known."""
    follows: str | None = None
    """The query whose work it goes on with."""


class FlowFiles:
    """The files of one flow, in a directory that everybody who runs it shares."""

    def __init__(self, root: str, pipeline: str, flow: str) -> None:
        self._directory = f"{directory_of(root)}/{pipeline}"
        self._base = f"{self._directory}/{flow}"
        self._name = f"{pipeline}/{flow}"
        self._held = HeldFile(f"{self._base}.lock")
        self._arguments = root, pipeline, flow

    @override
    def __reduce__(self) -> tuple[type["FlowFiles"], tuple[str, str, str]]:
        # Whoever holds the flow is this process; a batch that runs elsewhere is not.
        return FlowFiles, self._arguments

    @property
    def checkpoint(self) -> str:
        """Where Spark keeps the flow's progress."""
        return self._base

    def hold(self) -> None:
        """Be the only one who runs this flow, until `let_go` or the end of the process."""
        holder = f"process {process_id()} on {host_name()}"
        if not self._held.hold(holder.encode()):
            found = (read_file_if_there(f"{self._base}.lock") or b"").decode()
            raise FlowHeld(
                f"{self._name} is run by {found or 'another process'}; end it with `danube "
                f"pipeline stop {self._name.partition('/')[0]}`, or let it run"
            )

    def let_go(self) -> None:
        """Let others run the flow."""
        self._held.let_go()

    def record(self) -> FlowRecord | None:
        """Return what was noted about the checkpoint."""
        return _read(f"{self._base}{_RECORD}", FlowRecord)

    def note(self, record: FlowRecord) -> None:
        """Note what the checkpoint depends on."""
        replace_file(f"{self._base}{_RECORD}", msgspec.json.encode(record))

    def status(self) -> FlowStatus | None:
        """Return how the flow was doing when it last said so."""
        return _read(f"{self._base}{_STATUS}", FlowStatus)

    def report(self, status: FlowStatus) -> None:
        """Keep how the flow is doing."""
        replace_file(f"{self._base}{_STATUS}", msgspec.json.encode(status))

    @property
    def is_held(self) -> bool:
        """Whether somebody runs the flow."""
        if f"{self._base.rpartition('/')[2]}.lock" not in names_in(self._directory):
            return False
        if not self._held.hold(b""):
            return True
        self._held.let_go()
        return False

    def ask_to_stop(self, how: HowToStop) -> None:
        """Ask whoever runs the flow to stop it."""
        replace_file(f"{self._base}.stop", how.encode())

    def asked_to_stop(self) -> HowToStop | None:
        """Return how somebody wants it stopped."""
        found = read_file_if_there(f"{self._base}.stop")
        if found is None:
            return None
        return "now" if found == b"now" else "after the batch"

    def forget_stop(self) -> None:
        """Take a request to stop as answered."""
        remove_file(f"{self._base}.stop")

    def query_id(self) -> str | None:
        """Return Spark's id of the query; None before its first start, or when it is lost."""
        found = read_file_if_there(f"{self.checkpoint}/metadata")
        return None if found is None else str(msgspec.json.decode(found)["id"])

    def offsets_of(self, batch: int) -> list[str]:
        """Return the end offset of each source of a batch; Spark writes them before the batch."""
        found = read_file_if_there(f"{self.checkpoint}/offsets/{batch}")
        # A line with the version, one with the batch's settings, then a line for each source.
        return found.decode().splitlines()[2:] if found else []

    def last_batch(self) -> int | None:
        """Return the last batch that is done."""
        numbers = [int(each) for each in names_in(f"{self.checkpoint}/commits") if each.isdigit()]
        return max(numbers, default=None)

    def static_versions(self, batch: int) -> dict[str, int] | None:
        """Return which versions of tables a batch looked things up in."""
        return self._statics().get(str(batch))

    def note_static_versions(self, batch: int, versions: dict[str, int]) -> None:
        """Note them before the batch writes anything: a repeat must find the same."""
        kept = {**self._statics(), str(batch): versions}
        newest = sorted(kept, key=int)[-_STATIC_BATCHES_MAX:]
        content = msgspec.json.encode({each: kept[each] for each in newest})
        replace_file(f"{self._base}.statics.json", content)

    def batch_notes(self) -> bytes | None:
        """Return what batches that ran in other processes have noted since the last start."""
        return read_file_if_there(f"{self._base}{_NOTES}")

    def note_batches(self, content: bytes) -> None:
        """Keep what batches that run in other processes note."""
        replace_file(f"{self._base}{_NOTES}", content)

    def forget_batches(self) -> None:
        """Begin without notes of batches."""
        remove_file(f"{self._base}{_NOTES}")

    def set_aside(self, suffix: str) -> None:
        """Begin without the old checkpoint; it is kept under another name."""
        names = names_in(self._directory)
        base = self._base.rpartition("/")[2]
        for name in (base, f"{base}{_RECORD}", f"{base}.statics.json"):
            if name in names:
                rename(f"{self._directory}/{name}", f"{self._directory}/{name}.{suffix}")

    def _statics(self) -> dict[str, dict[str, int]]:
        return _read(f"{self._base}.statics.json", dict[str, dict[str, int]]) or {}


def directory_of(root: str) -> str:
    """Return the directory that `checkpoints` names."""
    return root.removeprefix("file://").rstrip("/")


def known_flows(root: str) -> Iterator[tuple[str, str]]:
    """Yield pipeline and flow of everything that has run over a directory of checkpoints."""
    for pipeline in names_in(directory_of(root)):
        for name in names_in(f"{directory_of(root)}/{pipeline}"):
            if name.endswith(_STATUS):
                yield pipeline, name.removesuffix(_STATUS)


def _read(path: str, kind: type[_Kept]) -> _Kept | None:
    found = read_file_if_there(path)
    if found is None:
        return None
    try:
        return msgspec.json.decode(found, type=kind)
    except msgspec.MsgspecError as error:
        raise Corruption(f"{path} was changed after it was written: {error}") from None
