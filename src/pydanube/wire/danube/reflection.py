"""The standard reflection service: what this server offers, for tools that ask."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Sequence
from typing import Final

from google.protobuf.descriptor import FileDescriptor

from pydanube.wire.calls import Body, Call, HandlerTable, StatusCode, whole
from pydanube.wire.danube.generated import Reflection_pb2 as reflection
from pydanube.wire.danube.private_pool import POOL
from pydanube.wire.danube.services import decode

# Older tools ask under the older name; the messages are the same.
PATHS = (
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)

_ANSWERS_MAX: Final = 64
_QUESTION_BYTES_MAX: Final = 256
"""How many answers are kept, and for which questions: tools ask for the same few names."""


class Reflection:
    """Describes the services of one port, from the descriptors its messages are made of."""

    def __init__(self, service_names: Collection[str]) -> None:
        self._service_names = sorted(service_names)
        self._known: OrderedDict[bytes, bytes] = OrderedDict()
        """Answers given before, by their questions, the one used last at the end."""

    def register(self, table: HandlerTable) -> None:
        """Serve both names of the method."""
        for path in PATHS:
            table.add_exchange(path, self._serve)

    async def _serve(
        self, requests: AsyncIterator[Body], call: Call
    ) -> AsyncIterator[Sequence[bytes]]:
        return self._answers(requests)

    async def _answers(self, requests: AsyncIterator[Body]) -> AsyncIterator[Sequence[bytes]]:
        async for data in requests:
            yield [self._encoded_answer(whole(data))]

    def _encoded_answer(self, data: bytes) -> bytes:
        known = self._known.get(data)
        if known is not None:
            self._known.move_to_end(data)
            return known
        request = decode(reflection.ServerReflectionRequest, data)
        answer = self.answer(request).SerializeToString()
        if len(data) <= _QUESTION_BYTES_MAX:
            if len(self._known) >= _ANSWERS_MAX:
                self._known.popitem(last=False)
            self._known[data] = answer
        return answer

    def answer(
        self, request: reflection.ServerReflectionRequest
    ) -> reflection.ServerReflectionResponse:
        """Answer one question."""
        response = reflection.ServerReflectionResponse(
            valid_host=request.host, original_request=request
        )
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._service_names:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                self._describe(response, request.file_by_filename, by_symbol=False)
            case "file_containing_symbol":
                self._describe(response, request.file_containing_symbol, by_symbol=True)
            case _:
                _refuse(response, StatusCode.NOT_FOUND, "there are no extensions here")
        return response

    def _describe(
        self, response: reflection.ServerReflectionResponse, name: str, *, by_symbol: bool
    ) -> None:
        find = POOL.FindFileContainingSymbol if by_symbol else POOL.FindFileByName
        try:
            file = find(name)
        except KeyError:
            _refuse(response, StatusCode.NOT_FOUND, f"{name} is not known here")
            return
        files = response.file_descriptor_response.file_descriptor_proto
        files.extend(each.serialized_pb for each in _with_imports(file))


def _with_imports(file: FileDescriptor) -> list[FileDescriptor]:
    found: dict[str, FileDescriptor] = {}
    waiting = [file]
    while waiting:
        each = waiting.pop()
        if each.name not in found:
            found[each.name] = each
            waiting += each.dependencies
    return list(found.values())


def _refuse(response: reflection.ServerReflectionResponse, code: StatusCode, text: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = text
