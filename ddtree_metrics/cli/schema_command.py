"""``ddtree-logs schema``: columns, types, units, meanings."""

from __future__ import annotations

import textwrap

import click

from ddtree_metrics.cli.near import NearChoice
from ddtree_metrics.cli.screen import write, write_json
from ddtree_metrics.records import TABLES


@click.command(epilog="\b\nExamples:\n  ddtree-logs schema\n  ddtree-logs schema steps --json")
@click.argument("table", type=NearChoice(list(TABLES)), required=False)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def schema(table: str | None, as_json: bool) -> None:
    """Print the columns of TABLE, or of all tables: type, unit and meaning."""
    from ddtree_metrics.schema import SCHEMA_VERSION, columns

    chosen = [table] if table else list(TABLES)
    if as_json:
        made = {
            "schema_version": SCHEMA_VERSION,
            "tables": {
                name: [{"name": c.name, "type": c.type_name(), "unit": c.unit, "meaning": c.meaning} for c in columns(TABLES[name])]
                for name in chosen
            },
        }
        write_json(made)
        return
    for i, name in enumerate(chosen):
        if i:
            write()
        about = (TABLES[name].__doc__ or "").split("\n")[0]
        write(f"{name}: {about}")
        for c in columns(TABLES[name]):
            unit = f" [{c.unit}]" if c.unit else ""
            write(f"  {c.name}: {c.type_name()}{unit}")
            write(textwrap.fill(c.meaning, 78, initial_indent="      ", subsequent_indent="      "))
