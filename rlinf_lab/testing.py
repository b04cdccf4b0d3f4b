"""``lab.testing``: calling a worker's methods without any runtime, and timelines made by hand.

>>> out = lab.testing.Collected()
>>> Policy().act(lab.testing.Scripted([observation], micro_batch=1), out)
"""

from rlinf_lab.timeline.record.recorder import Recorder
from rlinf_lab.workflow.worker import Collected, Scripted

__all__ = ["Collected", "Recorder", "Scripted"]
