"""Suggestions for what was nearly typed right."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Any

import click


def meant(word: str, known: Collection[str]) -> str:
    """Say which known word may have been meant, or which there are: ``; did you mean 'steps'?``."""
    near = difflib.get_close_matches(word, known, 1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


class NearChoice(click.Choice):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.2
    """A choice that names the nearest one when it is mistyped."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            what = max(param.opts, key=len).lstrip("-") if param is not None else "choice"
            self.fail(f"there is no {what} {value!r}{meant(str(value), [str(c) for c in self.choices])}", param, ctx)
