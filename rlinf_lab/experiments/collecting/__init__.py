"""Demonstrations, made with a policy or with a scripted expert."""

from rlinf_lab.experiments.collecting.collect import collect

__all__ = ["collect"]
