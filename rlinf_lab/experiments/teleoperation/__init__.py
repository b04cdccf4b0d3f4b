"""Somebody at the controls: demonstrations and corrections by hand, in the notebook."""

from rlinf_lab.experiments.teleoperation.panel import Teleoperation, teleoperate

__all__ = ["Teleoperation", "teleoperate"]
