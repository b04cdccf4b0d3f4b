"""What a long run with iterations takes: spans, bubbles, device time and sums go to files, memory stays as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json
from pathlib import Path
import rlinf_lab.timeline.account.accounting as accounting, rlinf_lab.timeline.account.windows as windows, rlinf_lab.widgets.feed as feed
from rlinf_lab.timeline import Recorder, SpanKind, Timeline
from rlinf_lab.timeline.record.store import Growing

as_it_is = Growing.__init__
Growing.__init__ = lambda self, dtype, memory_bytes=0: as_it_is(self, dtype, 1 << 18)  # everything long is in files at once
accounting._ENOUGH_ROWS = 1 << 12
recorder, timeline = Recorder("far", limit=1 << 16), Timeline(["cpu:0", "cpu:1"])
tracks, name = [recorder.track("w", r, (f"cpu:{r}",)) for r in range(2)], recorder.name("step")
driver, mark, channel, now = recorder.track("driver", 0), recorder.name("iteration"), recorder.channel("obs"), 0
live = feed.TimelineFeed(timeline)

def memory():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10

seen, told, iteration = [], [0, 0], 0
for portion in range(PORTIONS):
    for _ in range(20):
        begun = now
        for i in range(200):  # a span and a wait in turn: a bubble for every span
            recorder.add(tracks[i & 1], (SpanKind.RUN, SpanKind.GET)[(i >> 1) & 1], name, now, now + 90_000, iteration, 1, 0, channel, i)
            now += 100_000
        recorder.add(driver, SpanKind.MARK, mark, begun, now, iteration)
        iteration += 1
    timeline.extend(recorder.drain())
    live._not_before = 0.0
    update = live.take()
    told[0] += len(update.idle) // 24
    told[1] += len(update.bubbles)
    if portion >= PORTIONS // 3:
        seen.append(memory())
whole = live.everything()
print(json.dumps([seen, told, len(whole.idle) // 24, len(whole.bubbles), timeline.bubble_sum_error_ns(), len(timeline)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_does_not_grow_with_spans_iterations_and_bubbles() -> None:
    script = SCRIPT.replace("PORTIONS", "75")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    seen, (idle, sums), all_idle, all_sums, error, spans = json.loads(done.stdout)
    assert spans == 75 * 20 * 201 and error == 0 and all_idle >= idle > spans // 2 and all_sums == sums > 1400
    growth = (sorted(seen[-10:])[5] - sorted(seen[:10])[5]) / (spans * 2 / 3)
    assert growth < 15, f"{growth:.1f} bytes for each further span"
