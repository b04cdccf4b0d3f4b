"""SQL over a timeline: DuckDB reads the columns where they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rlinf_lab.errors import MissingDependencyError, TimelineError, shown

if TYPE_CHECKING:
    import pandas as pd


def sql(frames: Mapping[str, Callable[[], pd.DataFrame]], query: str) -> pd.DataFrame:
    """The answer to a query over tables, each made when the query names it. Raises `TimelineError` for what is no
    query, or one that DuckDB refuses.
    """
    ask = f"Next: ask the tables {', '.join(frames)}; their columns: timeline.sql('describe spans')."
    if not isinstance(query, str):
        raise TimelineError(f"sql({shown(query)}): the text of a query. {ask}")
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependencyError(
            "Timeline.sql runs DuckDB, which is not installed. Next: pip install duckdb, or use Timeline.to_pandas()."
        ) from error
    with duckdb.connect() as connection:
        for name, frame in frames.items():
            if re.search(rf"\b{name}\b", query, re.IGNORECASE):
                connection.register(name, frame())
        try:
            answer = connection.execute(query)
            if answer is None:  # nothing but blanks, comments or semicolons
                raise TimelineError(f"sql({shown(query)}): there is no query in this text. {ask}")
            return answer.df()
        except (duckdb.Error, RuntimeError) as error:  # the latter of half a character, which is no text of its own
            raise TimelineError(f"sql({shown(query)}): {error} {ask}") from error
