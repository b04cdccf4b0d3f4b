"""Between a plan's tree and devices: what fits, where it sits, what it costs."""
