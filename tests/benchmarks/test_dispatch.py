"""What is simulated of how answers are shared out, and in which order they begin, is what the recipe's workers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlinf_lab.runtime.threads.clocks import MockClock

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_shares_and_orders_are_as_foretold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import dispatch

    monkeypatch.setattr(dispatch, "PROMPTS", 6)
    monkeypatch.setattr(dispatch, "SIZE", 4)
    monkeypatch.setattr(dispatch, "SLOTS", 4)
    seen = []
    for what, ways in dispatch.foretold(3).items():
        for how, foretold_ms in ways.items():
            assert dispatch.run_ms(3, what, how, MockClock()) == pytest.approx(foretold_ms), (what, how)
            seen.append(foretold_ms)
    assert len(set(seen)) == 5, "each of them makes a difference; even shares begun as asked are compared twice"
