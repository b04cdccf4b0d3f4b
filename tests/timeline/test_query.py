"""SQL over a timeline agrees with its own tables; without DuckDB the error says what to install."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from built import recorder_of

from rlinf_lab.errors import MissingDependencyError, TimelineError
from rlinf_lab.timeline import SpanKind, Timeline

K = SpanKind
QUERY = "select worker, count(*) as n, sum(seconds) as seconds from spans where kind = 'run' group by all order by worker"


@pytest.fixture
def timeline() -> Timeline:
    rows = [("a", 0, ("cpu:0",), K.RUN, 100 * i, 100 * i + 60, i // 10) for i in range(50)]
    rows += [("b", 1, ("cpu:1",), (K.GET, K.RUN)[i % 2], 100 * i, 100 * i + 90, i // 10, "obs", i, 1) for i in range(50)]
    rows += [("driver", 0, (), K.MARK, 1000 * i, 1000 * i + 1000, i) for i in range(5)]
    recorder, timeline = recorder_of(rows), Timeline(["cpu:0", "cpu:1"])
    recorder.counter("cpu:0 %", 7, 12.5)
    timeline.extend(recorder.drain())
    return timeline


def test_answers_agree_with_the_tables_of_the_timeline(timeline: Timeline) -> None:
    found = timeline.sql(QUERY)
    assert found["worker"].tolist() == ["a", "b"] and found["n"].tolist() == [50, 25]
    assert found["seconds"].tolist() == pytest.approx([50 * 60e-9, 25 * 90e-9])
    causes = timeline.sql("select cause, sum(ns) as ns from bubbles group by all").set_index("cause")["ns"]
    assert causes.to_dict() == timeline.bubbles().set_index("cause")["ns"].to_dict()
    joined = timeline.sql("select i.iteration, count(*) as n from iterations i join spans s using (iteration) where s.kind = 'run' group by all order by 1")
    assert joined["n"].tolist() == [15] * 5
    assert timeline.sql("select value from counters")["value"].tolist() == [12.5]
    with pytest.raises(TimelineError, match=r"(?s)wrker.*describe spans"):
        timeline.sql("select wrker from spans")


@pytest.mark.parametrize("query", ["", ";", " ;\n", "-- nothing", None, ["select 1"], b"select 1", "select '\ud800'"])
def test_what_is_no_query(timeline: Timeline, query: Any) -> None:
    with pytest.raises(TimelineError, match=r"sql\(.*Next: ask the tables spans, bubbles"):
        timeline.sql(query)


def test_without_duckdb_the_error_says_what_to_install(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingDependencyError, match=r"pip install duckdb.*to_pandas"):
        timeline.sql(QUERY)
