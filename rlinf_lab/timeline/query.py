"""SQL over a timeline: DuckDB reads the columns where they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlinf_lab.errors import MissingDependencyError, TimelineError
from rlinf_lab.timeline import bubbles, tables

if TYPE_CHECKING:
    import pandas as pd

    from rlinf_lab.timeline.timeline import Timeline

#: The tables that a query may name.
TABLES = ("spans", "bubbles", "iterations", "counters")


def sql(timeline: Timeline, query: str) -> pd.DataFrame:
    """The answer to a query over the tables ``spans``, ``bubbles``, ``iterations`` and ``counters`` of a snapshot."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependencyError("Timeline.sql runs DuckDB, which is not installed. Next: pip install duckdb, or use Timeline.to_pandas().") from error
    frames = {
        "spans": lambda: tables.to_pandas(timeline), "bubbles": lambda: bubbles.bubbles(timeline, timeline.accounting(), None),
        "iterations": lambda: tables.iterations(timeline), "counters": lambda: tables.counters(timeline),
    }  # fmt: skip
    with duckdb.connect() as connection:
        for name in TABLES:
            if re.search(rf"\b{name}\b", query, re.IGNORECASE):
                connection.register(name, frames[name]())
        try:
            return connection.execute(query).df()
        except duckdb.Error as error:
            raise TimelineError(f"{error} Next: ask the tables {', '.join(TABLES)}; their columns: timeline.sql('describe spans').") from error
