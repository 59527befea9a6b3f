"""PyDanube's own descriptor pool.

Protobuf refuses two definitions of one name in a pool, and every Danube client in Python defines
package `danube` in the default pool. Ours live here, so that both fit in one process.
"""

from typing import Any

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

POOL = DescriptorPool()


def load(serialized_file: bytes, module: dict[str, Any]) -> FileDescriptor:
    """Add a file to the pool, and its messages and enums to the names of a module."""
    file = POOL.AddSerializedFile(serialized_file)
    for name, enum in file.enum_types_by_name.items():
        module[name] = EnumTypeWrapper(enum)
        module.update({value.name: value.number for value in enum.values})
    for name, message in file.message_types_by_name.items():
        module[name] = GetMessageClass(message)
    return file
