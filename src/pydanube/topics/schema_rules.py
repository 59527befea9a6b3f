"""Which messages a topic's schema refuses, and why. Pure; a whole batch at a time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pydanube.model.message import Message
from pydanube.model.schemas import VERSION_ASSUMED, TopicSchema
from pydanube.registry.records import SubjectRecord
from pydanube.schemas.format import Payloads, Validator

Reason = Literal["missing_schema_id", "subject_mismatch", "unknown_schema", "payload_invalid"]

Named = tuple[int | None, int | None]
"""Schema id and version, as a message names them."""


class Violation(Struct, frozen=True):
    """A message that is not what its topic asks for."""

    row: int
    reason: Reason
    text: str


class Rows(Struct, frozen=True):
    """What is looked at of some messages: the schemas they name, and their payloads."""

    named: Sequence[Named]
    """One per row, or a single one that holds for all of them."""
    payloads: Payloads
    count: int

    @classmethod
    def of_messages(cls, messages: Sequence[Message]) -> "Rows":
        """Look at single messages."""
        named = [(message.schema_id, message.schema_version) for message in messages]
        payloads = [message.payload for message in messages]
        return cls(_joined(named), payloads, len(messages))

    @classmethod
    def of_columns(cls, columns: pa.RecordBatch) -> "Rows":
        """Look at the rows of a batch, in its columns."""
        ids, versions = columns.column("schema_id"), columns.column("schema_version")
        payloads = columns.column("payload")
        if len(ids) and _is_constant(ids) and _is_constant(versions):
            return cls([(ids[0].as_py(), versions[0].as_py())], payloads, len(ids))
        named = list(zip(ids.to_pylist(), versions.to_pylist(), strict=True))
        return cls(_joined(named), payloads, len(ids))

    def rows_naming(self, named: Named) -> Sequence[int]:
        """Return the rows that name a schema."""
        if len(self.named) == 1:
            return range(self.count)
        return [row for row, each in enumerate(self.named) if each == named]

    def payloads_of(self, rows: Sequence[int]) -> Payloads:
        """Return the payloads of some rows."""
        if len(rows) == self.count:
            return self.payloads
        if isinstance(self.payloads, pa.Array):
            return self.payloads.take(pa.array(rows, pa.int64()))
        return [self.payloads[row] for row in rows]


class Faults(Struct, frozen=True):
    """What can be said without looking at payloads."""

    by_name: Mapping[Named, tuple[Reason, str]]
    """Schemas that the topic does not take, and why."""
    versions: Mapping[Named, int]
    """The others, as versions of the topic's subject."""


def find_faults(
    rule: TopicSchema,
    record: SubjectRecord | None,
    rows: Rows,
    subject_of: Callable[[int], str | None],
) -> Faults:
    """Sort the schemas that rows name into those the topic takes and the others."""
    faults: dict[Named, tuple[Reason, str]] = {}
    versions: dict[Named, int] = {}
    for named in dict.fromkeys(rows.named):
        fault = _fault(rule, record, named, subject_of)
        if fault is not None:
            faults[named] = fault
        else:
            versions[named] = _version(named)
    return Faults(faults, versions)


def find_violations(
    rows: Rows, faults: Faults, validators: Mapping[int, Validator | str]
) -> list[Violation]:
    """Return the rows that are not what the topic asks for, in their order.

    A version has its validator, or the reason why there is none; without an entry, payloads that
    name it are not looked at.
    """
    violations: list[Violation] = []
    for named, (reason, text) in faults.by_name.items():
        violations += [Violation(row, reason, text) for row in rows.rows_naming(named)]
    for named, version in faults.versions.items():
        validator = validators.get(version)
        if validator is None:
            continue
        indexes = rows.rows_naming(named)
        if isinstance(validator, str):
            text = f"version {version} of its schema cannot be used: {validator}"
            violations += [Violation(row, "payload_invalid", text) for row in indexes]
            continue
        for failure in validator.failures(rows.payloads_of(indexes)):
            text = f"the payload is not what version {version} says: {failure.reason}"
            violations.append(Violation(indexes[failure.row], "payload_invalid", text))
    return sorted(violations, key=lambda violation: violation.row)


def _fault(
    rule: TopicSchema,
    record: SubjectRecord | None,
    named: Named,
    subject_of: Callable[[int], str | None],
) -> tuple[Reason, str] | None:
    schema_id, _ = named
    if record is None:
        return "unknown_schema", f"the topic's schema subject {rule.subject} is not registered"
    if schema_id is None:
        return (
            "missing_schema_id",
            f"the message names no schema; the topic takes those of subject {rule.subject} "
            f"(schema_id {record.id})",
        )
    if schema_id != record.id:
        subject = subject_of(schema_id)
        takes = f"the topic takes those of subject {rule.subject} (schema_id {record.id})"
        if subject is None:
            return "unknown_schema", f"schema_id {schema_id} does not exist; {takes}"
        return "subject_mismatch", f"schema_id {schema_id} belongs to subject {subject}; {takes}"
    version = _version(named)
    if record.entry(version) is None:
        text = f"subject {rule.subject} has no version {version}, which the message names"
        return "unknown_schema", text
    return None


def _version(named: Named) -> int:
    return VERSION_ASSUMED if named[1] is None else named[1]


def _joined(named: list[Named]) -> Sequence[Named]:
    return named[:1] if named.count(named[0]) == len(named) else named


def _is_constant(column: pa.Array) -> bool:
    if column.null_count:
        return bool(column.null_count == len(column))
    bounds = pc.min_max(column)
    return bool(bounds["min"].as_py() == bounds["max"].as_py())
