"""Trained vision-language-action models from a folder, as policies; each in one file, imports inside."""

from rlinf_lab.policies.pretrained.pi0 import load_pi0

__all__ = ["load_pi0"]
