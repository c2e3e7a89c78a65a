"""A column is declared once, on its record class; every other form of it is derived here.

``columns(record)`` lists the columns of a record class, ``arrow_schema(record)`` makes the Arrow schema with type, unit and
meaning in the field metadata. The README table, ``ddtree-logs schema`` and the Parquet files come from the same two functions.
"""

from __future__ import annotations

import functools
import types
import typing
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ddtree_metrics.errors import SchemaError

if TYPE_CHECKING:
    import pyarrow as pa

# History of the tables' form. A file carries the number it was written with.
# 1: the first form.
# 2: servers.args_cut says that the line of arguments was cut (it was a key "__cut__" in servers.args); decode.retracted is the length of
#    a queue; an event that several ranks printed is one row.
# 3: what servers with slots say of a request: requests.prefill_ms, decode_ms, end_context, mean_accept_len, position_accept_rates, and
#    the columns of request_lines that they are made of; what vLLM says of a window: decode.prompt_throughput, accepted, drafted and others.
SCHEMA_VERSION = 3

METADATA_PREFIX = "ddtree_metrics."


@dataclass(frozen=True, slots=True)
class Col:
    """What a column means, and in which unit.

    Parameters
    ----------
    meaning : str
        One sentence for somebody who sees the column for the first time.
    unit : str or None
        The unit of the values, ``"ms"`` or ``"tokens"``.
    wide : bool
        Integers need 64 bits; otherwise they are stored in 32.
    """

    meaning: str
    unit: str | None = None
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, as derived from a field of a record class.

    Parameters
    ----------
    name : str
        The field's name.
    kind : str
        ``int``, ``float``, ``str``, ``bool``, ``datetime``, ``list<int>``, ``list<float>``, ``list<str>`` or ``map``.
    nullable : bool
        Whether the column may be null.
    col : Col
        Its declaration.
    """

    name: str
    kind: str
    nullable: bool
    col: Col

    @property
    def meaning(self) -> str:
        """What the column means."""
        return self.col.meaning

    @property
    def unit(self) -> str | None:
        """The unit of its values."""
        return self.col.unit

    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type in which the column is stored."""
        import pyarrow as pa

        small = pa.int64() if self.col.wide else pa.int32()
        made: dict[str, pa.DataType] = {
            "int": small,
            "float": pa.float64(),
            "str": pa.string(),
            "bool": pa.bool_(),
            "datetime": pa.timestamp("us", tz="UTC"),
            "list<int>": pa.list_(pa.field("element", small)),
            "list<float>": pa.list_(pa.field("element", pa.float64())),
            "list<str>": pa.list_(pa.field("element", pa.string())),
            "map": pa.map_(pa.string(), pa.string()),
        }
        return made[self.kind]

    def type_name(self) -> str:
        """Return the type in words, as the README and ``ddtree-logs schema`` print it."""
        text = str(self.arrow_type())
        return text.replace("element: ", "").replace("map<string, string>", "map<string, string>")


_SCALARS: dict[Any, str] = {int: "int", float: "float", str: "str", bool: "bool", datetime: "datetime"}


def _kind(annotation: Any) -> tuple[str, bool]:
    """Return the kind of a column and whether it may be null."""
    origin = typing.get_origin(annotation)
    args = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        rest = [a for a in args if a is not type(None)]
        if len(rest) != 1:
            raise SchemaError(f"a column has one type, or one type and None, not {annotation}")
        return _kind(rest[0])[0], True
    if annotation in _SCALARS:
        return _SCALARS[annotation], False
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis and args[0] in (int, float, str):
        return f"list<{_SCALARS[args[0]]}>", False
    if origin is dict and args == (str, str):
        return "map", False
    raise SchemaError(f"no column type for {annotation}; use int, float, str, bool, datetime, tuple[int, ...] or dict[str, str]")


@functools.cache
def columns(record: type) -> tuple[Column, ...]:
    """List the columns of a record class, in order.

    Parameters
    ----------
    record : type
        A dataclass whose fields are annotated with ``Annotated[type, Col(...)]``.

    Returns
    -------
    tuple of Column

    Raises
    ------
    SchemaError
        If a field has no ``Col``, or a type that no column can hold.
    """
    if not is_dataclass(record):
        raise SchemaError(f"{record.__name__} is not a record class; pass one of ddtree_metrics.records")
    hints = typing.get_type_hints(record, include_extras=True)
    made = []
    for field in fields(record):
        hint = hints[field.name]
        col = next((a for a in getattr(hint, "__metadata__", ()) if isinstance(a, Col)), None)
        if col is None:
            raise SchemaError(f"{record.__name__}.{field.name} has no Col(...) in its annotation")
        kind, nullable = _kind(typing.get_args(hint)[0])
        made.append(Column(field.name, kind, nullable, col))
    return tuple(made)


def arrow_schema(record: type, metadata: dict[str, str] | None = None) -> pa.Schema:
    """Make the Arrow schema of a record class; it never depends on data.

    Parameters
    ----------
    record : type
        The record class.
    metadata : dict of str to str, optional
        More entries for the schema's metadata; keys get the prefix ``ddtree_metrics.``.

    Returns
    -------
    pyarrow.Schema
        Unit and meaning stand in each field's metadata, the record's name and the schema version in the schema's.
    """
    schema = _bare_schema(record)
    if not metadata:
        return schema
    more = {f"{METADATA_PREFIX}{k}": v for k, v in metadata.items()}
    return schema.with_metadata({**(schema.metadata or {}), **more})


@functools.cache
def _bare_schema(record: type) -> pa.Schema:
    import pyarrow as pa

    made = []
    for column in columns(record):
        notes = {"meaning": column.meaning}
        if column.unit:
            notes["unit"] = column.unit
        made.append(pa.field(column.name, column.arrow_type(), nullable=True, metadata=notes))
    head = {
        f"{METADATA_PREFIX}record": record.__name__,
        f"{METADATA_PREFIX}schema_version": str(SCHEMA_VERSION),
    }
    return pa.schema(made, metadata=head)
