"""Changes of one subject that overtake each other, and what is kept at hand."""

import asyncio
from collections.abc import Sequence

import pytest
from typing_extensions import override

from pydanube.errors import Conflict, Unavailable
from pydanube.metadata.memory_store import MemoryMetadataStore
from pydanube.metadata.store import Expect, Operation
from pydanube.model.schemas import SchemaReference
from pydanube.registry import compiled, registry
from pydanube.registry.decisions import NewSchema
from pydanube.registry.errors import IncompatibleSchema, SchemaInUse, SchemaNotFound
from pydanube.registry.registry import SchemaRegistry
from pydanube.runtime.clock import SystemClock
from pydanube.runtime.threads import WorkerThreads
from pydanube.schemas.format import SchemaTools
from tests.support.schema_calls import ORDER, ORDER_RENUMBERED, ORDER_WITH_NOTE, json_schema


class HeldStore(MemoryMetadataStore):
    """Lets a test do something between the decision for a change and its writing."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.before_writing: list[asyncio.Future[None]] = []
        self.reached = asyncio.Event()

    @override
    async def transact(self, conditions: Sequence[Expect], operations: Sequence[Operation]) -> int:
        if self.before_writing:
            held = self.before_writing.pop(0)
            self.reached.set()
            await held
        return await super().transact(conditions, operations)

    def hold_next(self) -> "asyncio.Future[None]":
        self.reached.clear()
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.before_writing.append(held)
        return held


@pytest.fixture
async def store() -> HeldStore:
    return HeldStore()


@pytest.fixture
async def schemas(store: HeldStore) -> SchemaRegistry:
    return SchemaRegistry(store, SystemClock(), WorkerThreads("schemas", 1), SchemaTools())


def order(definition: bytes = ORDER) -> NewSchema:
    return NewSchema(subject="orders", schema_type="json_schema", definition=definition)


async def test_a_registration_that_is_overtaken_is_judged_again(
    store: HeldStore, schemas: SchemaRegistry
) -> None:
    await schemas.register(order())
    held = store.hold_next()
    # Compatible with the version there is, and not with the one that overtakes it.
    late = asyncio.create_task(schemas.register(order(json_schema("id", id="integer", a="string"))))
    await store.reached.wait()
    await schemas.register(order(json_schema("id", id="integer", a="integer")))
    held.set_result(None)
    with pytest.raises(IncompatibleSchema, match="version 2"):
        await late
    assert [found.version.version for found in schemas.versions("orders")] == [1, 2]


async def test_an_equal_registration_that_is_overtaken_finds_the_other(
    store: HeldStore, schemas: SchemaRegistry
) -> None:
    held = store.hold_next()
    late = asyncio.create_task(schemas.register(order()))
    await store.reached.wait()
    first = await schemas.register(order())
    held.set_result(None)
    found = await late
    assert (found.schema_id, found.version) == (first.schema_id, first.version)
    assert (first.is_new_version, found.is_new_version) == (True, False)


async def bind(store: HeldStore, schemas: SchemaRegistry, version: int | None) -> None:
    plan = schemas.plan_use("orders", "/default/t", version)
    assert plan is not None
    await MemoryMetadataStore.transact(store, plan.conditions, plan.operations)


async def test_a_subject_that_is_bound_while_it_is_deleted_stays(
    store: HeldStore, schemas: SchemaRegistry
) -> None:
    await schemas.register(order())
    held = store.hold_next()
    deleting = asyncio.create_task(schemas.delete_subject("orders"))
    await store.reached.wait()
    await bind(store, schemas, None)
    held.set_result(None)
    with pytest.raises(SchemaInUse, match="/default/t"):
        await deleting
    assert schemas.find_version("orders").version.version == 1


async def test_a_version_that_a_producer_names_while_it_is_deleted_stays(
    store: HeldStore, schemas: SchemaRegistry
) -> None:
    await schemas.register(order())
    await schemas.register(order(ORDER_WITH_NOTE))
    held = store.hold_next()
    deleting = asyncio.create_task(schemas.delete_version("orders", 1))
    await store.reached.wait()
    await bind(store, schemas, 1)
    held.set_result(None)
    with pytest.raises(SchemaInUse, match="named by producers"):
        await deleting
    assert schemas.resolve(SchemaReference(subject="orders", version=1)).version == 1


async def test_a_binding_that_a_deletion_overtakes_is_refused(
    store: HeldStore, schemas: SchemaRegistry
) -> None:
    await schemas.register(order())
    plan = schemas.plan_use("orders", "/default/t", 1)
    assert plan is not None
    await schemas.delete_subject("orders")
    with pytest.raises(Conflict):
        await store.transact(plan.conditions, plan.operations)


async def test_a_change_that_is_always_overtaken_gives_up(
    store: HeldStore, schemas: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    await schemas.register(order())
    monkeypatch.setattr(registry, "ATTEMPTS_MAX", 2)

    async def refuse(*_: object) -> int:
        raise Conflict("not as expected")

    monkeypatch.setattr(store, "transact", refuse)
    with pytest.raises(Unavailable, match="try again"):
        await schemas.set_mode("orders", "none")


async def test_only_so_many_schemas_are_at_hand_and_the_others_are_parsed_again(
    schemas: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "SCHEMAS_MAX", 2)
    await schemas.register(order())
    await schemas.set_mode("orders", "none")
    for definition in (ORDER_WITH_NOTE, ORDER_RENUMBERED):
        await schemas.register(order(definition))
    at_hand = [schemas.compiled((1, version)) is not None for version in (1, 2, 3)]
    assert at_hand == [False, True, True]
    assert (
        schemas.parsing("orders", 1)().fingerprint
        == schemas.versions("orders")[0].version.fingerprint
    )


async def test_a_subject_without_versions_keeps_its_id(schemas: SchemaRegistry) -> None:
    await schemas.register(order())
    await schemas.delete_version("orders", 1)
    with pytest.raises(SchemaNotFound, match="has no version"):
        schemas.find_version("orders")
    (record,) = schemas.subjects()
    assert (record.latest, schemas.tags(record)) == (None, ())
    again = await schemas.register(order())
    assert (again.schema_id, again.version) == (1, 2)
    assert (await schemas.register(order(ORDER_WITH_NOTE))).version == 3
