"""What happened when, and where the idle time of a device went. Here are clocks, spans, recorders and timelines.

Importing this loads numpy only; pandas and pyarrow come with the first frame or file.
"""

from __future__ import annotations

from rlinf_lab.timeline.record.batch import SpanBatch
from rlinf_lab.timeline.record.clock import Clock, MonotonicClock
from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.timeline.record.span import Cause, Span, SpanKind, Track
from rlinf_lab.timeline.timeline import Timeline

__all__ = ["Cause", "Clock", "MonotonicClock", "Recorder", "Span", "SpanBatch", "SpanKind", "Timeline", "Track"]
