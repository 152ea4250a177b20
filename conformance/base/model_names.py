"""Makes the names in an ONNX model safe to show, where the model is read.

A name can have line feeds, with which it would print lines of its own, or a million characters. The
model is renamed as a whole and stays the same model, so that a runtime gets it under these names.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from conformance.base.text import safe_name

#: Fields whose texts are no names and are never shown, among them the paths of external data.
_NO_NAMES: Final = frozenset({"doc_string", "metadata_props", "external_data"})


def make_names_safe(message: Message) -> bool:
    """Give other names to what has unsafe ones; returns whether there were any.

    Raises ValueError for a name that is no text in UTF-8.
    """
    renamed = False
    for field, value in message.ListFields():
        if field.name in _NO_NAMES:
            continue
        if field.message_type is not None:
            for each in (value,) if isinstance(value, Message) else value:
                renamed |= make_names_safe(each)
        elif field.type == FieldDescriptor.TYPE_STRING:
            names = [value] if isinstance(value, str | bytes) else value
            if any(isinstance(name, bytes) for name in names):
                raise ValueError("a name is no text in UTF-8")
            safe = [safe_name(name) for name in names]
            if safe == [*names]:
                continue
            renamed = True
            if names is value:
                value[:] = safe
            else:
                setattr(message, field.name, safe[0])
    return renamed
