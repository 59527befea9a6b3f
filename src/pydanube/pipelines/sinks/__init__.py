"""Kinds of sinks, one file each: what it checks, where it writes, what it guarantees.

A new kind is a class below `SinkKind` and an entry point of the group `pydanube.pipeline_sinks`,
whose name is the sink's `format`. Nothing else names it.
"""
