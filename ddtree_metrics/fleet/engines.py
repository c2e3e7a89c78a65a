"""Engines that answer over a lake: DuckDB in this process, Spark, or whatever connection of Ibis is given; and how each reads Parquet."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from ddtree_metrics.errors import SourceUnsupported, UsageError
from ddtree_metrics.records import TABLES
from ddtree_metrics.schema import arrow_schema

if TYPE_CHECKING:
    import ibis
    import ibis.expr.types as ir

    from ddtree_metrics.tables.manifest import LakePart

THREADS, MEMORY = 2, "800MB"
"""What DuckDB may use here: a query over a lake holds a few thousand rows of a histogram, and its memory goes to what it reads ahead."""

FORMS = "'duckdb', 'spark', the URL of a master (spark://…) or of Spark Connect (sc://…), a Spark session, or a connection of Ibis"


def connect(engine: Any) -> ibis.BaseBackend:
    """Return the connection of Ibis that answers.

    Parameters
    ----------
    engine : str, SparkSession or ibis connection
        ``duckdb``; ``spark`` (the session there is, else a new local one); ``spark://host:7077``, a master; ``sc://host:15002``, a Spark
        Connect server; a Spark session; or any connection of Ibis.

    Raises
    ------
    UsageError
        If it is none of these.
    SourceUnsupported
        If the packages are not installed.
    """
    _need("ibis", "ibis-framework", "fleet")
    import ibis

    if isinstance(engine, ibis.BaseBackend):
        return engine
    if engine == "duckdb":
        _need("duckdb", "duckdb", "fleet")
        made = ibis.duckdb.connect(threads=THREADS, memory_limit=MEMORY)
        made.raw_sql("SET preserve_insertion_order = false")
        return made
    if isinstance(engine, str) and (engine == "spark" or engine.startswith(("spark://", "sc://", "local["))):
        _need("pyspark", "pyspark", "spark")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pyspark warns of a pandas newer than itself, of which nothing is used here
            from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName("ddtree-metrics")
        if engine.startswith("sc://"):
            builder = builder.remote(engine)
        elif engine != "spark":
            builder = builder.master(engine)
        return ibis.pyspark.connect(builder.getOrCreate())
    if type(engine).__name__ == "SparkSession":
        return ibis.pyspark.connect(engine)
    raise UsageError(f"no engine {engine!r}; give {FORMS}")


def _need(module: str, package: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise SourceUnsupported(f"{package} is not installed, which answers over a lake: pip install 'ddtree-metrics[{extra}]'")


def read_parts(connection: ibis.BaseBackend, table: str, parts: Sequence[LakePart], root: Path) -> ir.Table:
    """Return a table of a lake as Ibis sees it, the columns of the folders' names among its own; null where a part is older than a column.

    Parameters
    ----------
    connection : ibis connection
        The engine.
    table : str
        One of ``records.TABLES``.
    parts : sequence of LakePart
        Its files; without any the table is empty.
    root : Path
        The lake.
    """
    import ibis

    if not parts:
        return ibis.memtable(arrow_schema(TABLES[table]).empty_table())
    otherwise = [part for part in parts if any(_folders(part).get(name) != value for name, value in part.partition.items())]
    if otherwise and len(otherwise) < len(parts):  # a machine may be called what stands for an unknown one
        others = {id(part) for part in otherwise}
        plain = [part for part in parts if id(part) not in others]
        return read_parts(connection, table, plain, root).union(read_parts(connection, table, otherwise, root))
    paths = [str(part.path) for part in parts]
    if connection.name == "duckdb":
        older = len({part.schema_version for part in parts}) > 1
        reader: Any = connection.read_parquet
        made = reader(paths, hive_partitioning=True, hive_types_autocast=False, union_by_name=older)
    elif connection.name == "pyspark":
        made = _of_spark(connection, table, parts, root)
    else:
        made = _one_by_one(connection, parts)
    return _completed(_meant(made, parts), table)


def _of_spark(connection: Any, table: str, parts: Sequence[LakePart], root: Path) -> ir.Table:
    """Read with the schema of the record class, so that Spark reads no footer before it plans, and columns that a part lacks are null."""
    from ibis.backends.pyspark.datatypes import PySparkSchema
    from ibis.formats.pyarrow import PyArrowSchema
    from pyspark.sql.types import StringType, StructField

    session = connection._session
    folders = list(parts[0].partition)
    schema = PySparkSchema.from_ibis(PyArrowSchema.to_ibis(arrow_schema(TABLES[table])))
    kept = [field for field in schema.fields if field.name not in folders]
    schema = type(schema)([*kept, *(StructField(name, StringType()) for name in folders)])
    paths = [f"file://{part.path.resolve()}" for part in parts]  # Hadoop takes %XX in a path as it stands
    name = f"ddtree_{table}_{abs(hash((root, tuple(paths)))):x}"
    reader = session.read.schema(schema).option("basePath", f"file://{(root / table).resolve()}")
    reader.parquet(*paths).createOrReplaceTempView(name)
    return cast("ir.Table", connection.table(name))


def _one_by_one(connection: Any, parts: Sequence[LakePart]) -> ir.Table:
    """Read the files of each partition, and give them the columns of their folders."""
    import ibis

    by_folder: dict[tuple[tuple[str, str | None], ...], list[str]] = {}
    for part in parts:
        by_folder.setdefault(tuple(part.partition.items()), []).append(str(part.path))
    made = []
    for values, paths in by_folder.items():
        for path in paths:
            read = connection.read_parquet(path)
            made.append(read.mutate(**{name: ibis.literal(value, type="string") for name, value in values}))
    return cast("ir.Table", functools.reduce(lambda a, b: a.union(b), made))


def _meant(table: ir.Table, parts: Sequence[LakePart]) -> ir.Table:
    """Put in what folders stand for where they are called otherwise: null for ``unknown``, and names that are too long for a folder."""
    import ibis

    new: dict[str, dict[str, str | None]] = {}
    for part in parts:
        named = _folders(part)
        for name, value in part.partition.items():
            if name in named and named[name] != value:
                new.setdefault(name, {})[named[name]] = value
    for name, values in new.items():
        if name in table.columns:
            cases = [(table[name] == old, ibis.literal(value, type="string")) for old, value in values.items()]
            table = table.mutate(**{name: ibis.cases(*cases, else_=table[name])})
    return table


def _folders(part: LakePart) -> dict[str, str]:
    """Return what the folders of a part are called."""
    return {name: unquote(value) for name, _, value in (folder.partition("=") for folder in part.name.split("/")[1:-1])}


def _completed(table: ir.Table, name: str) -> ir.Table:
    """Add the columns of the record class that no part has, as null."""
    import ibis
    from ibis.formats.pyarrow import PyArrowType

    missing = [field for field in arrow_schema(TABLES[name]) if field.name not in table.columns]
    return table.mutate(**{field.name: ibis.literal(None, type=PyArrowType.to_ibis(field.type)) for field in missing}) if missing else table
