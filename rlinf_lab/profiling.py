"""``lab.profiling``: what messages between processes cost, and how much cores slow each other down."""

from rlinf_lab.runtime.profiling.crowding import Crowd, crowding
from rlinf_lab.runtime.profiling.messages import PingPong, message_costs

__all__ = ["Crowd", "PingPong", "crowding", "message_costs"]
