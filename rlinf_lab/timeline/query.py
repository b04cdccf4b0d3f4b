"""SQL over a timeline: DuckDB reads the columns where they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rlinf_lab.errors import MissingDependencyError, TimelineError

if TYPE_CHECKING:
    import pandas as pd


def sql(frames: Mapping[str, Callable[[], pd.DataFrame]], query: str) -> pd.DataFrame:
    """The answer to a query over tables, each made when the query names it."""
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependencyError("Timeline.sql runs DuckDB, which is not installed. Next: pip install duckdb, or use Timeline.to_pandas().") from error
    with duckdb.connect() as connection:
        for name, frame in frames.items():
            if re.search(rf"\b{name}\b", query, re.IGNORECASE):
                connection.register(name, frame())
        try:
            return connection.execute(query).df()
        except duckdb.Error as error:
            raise TimelineError(f"{error} Next: ask the tables {', '.join(frames)}; their columns: timeline.sql('describe spans').") from error
