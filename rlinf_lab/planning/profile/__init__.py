"""What work costs, as data: samples, memory, handovers, fingerprints."""
