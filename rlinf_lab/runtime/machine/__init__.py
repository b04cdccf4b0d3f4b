"""Devices, cores, and the import of Ray."""
