"""Trained policies of others from a folder, as policies of ours. Each in one file, imports inside."""

from rlinf_lab.policies.pretrained.act import load_act
from rlinf_lab.policies.pretrained.diffusion import load_diffusion
from rlinf_lab.policies.pretrained.openvla_oft import load_openvla_oft
from rlinf_lab.policies.pretrained.pi0 import load_pi0

__all__ = ["load_act", "load_diffusion", "load_openvla_oft", "load_pi0"]
