"""Workers that learn from what an expert did: behaviour cloning and DAgger."""
