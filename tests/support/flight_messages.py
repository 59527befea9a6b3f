"""The messages of Arrow Flight as protobuf knows them: the judge of what is framed by hand."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
}

# An enumeration has the bytes of an int32, and needs no names here.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "FlightDescriptor": {"type": (1, "int32"), "cmd": (2, "bytes"), "path": (3, "string*")},
    "FlightData": {
        "flight_descriptor": (1, "FlightDescriptor"),
        "data_header": (2, "bytes"),
        "app_metadata": (3, "bytes"),
        "data_body": (1000, "bytes"),
    },
    "Ticket": {"ticket": (1, "bytes")},
    "Location": {"uri": (1, "string")},
    "FlightEndpoint": {
        "ticket": (1, "Ticket"),
        "location": (2, "Location*"),
        "app_metadata": (4, "bytes"),
    },
    "FlightInfo": {
        "schema": (1, "bytes"),
        "flight_descriptor": (2, "FlightDescriptor"),
        "endpoint": (3, "FlightEndpoint*"),
        "total_records": (4, "int64"),
        "total_bytes": (5, "int64"),
        "ordered": (6, "bool"),
        "app_metadata": (7, "bytes"),
    },
    "Action": {"type": (1, "string"), "body": (2, "bytes")},
    "ActionType": {"type": (1, "string"), "description": (2, "string")},
    "Result": {"body": (1, "bytes")},
    "PutResult": {"app_metadata": (1, "bytes")},
    "SchemaResult": {"schema": (1, "bytes")},
    "Criteria": {"expression": (1, "bytes")},
}


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="flight_of_the_tests.proto", package="flight_of_the_tests", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number)
            repeated = kind.endswith("*")
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            if kind in _TYPES:
                field.type = _TYPES[kind]
            else:
                field.type = field.TYPE_MESSAGE
                field.type_name = f".flight_of_the_tests.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"flight_of_the_tests.{name}")
        )
        for name in _MESSAGES
    }


MESSAGES = _build()
