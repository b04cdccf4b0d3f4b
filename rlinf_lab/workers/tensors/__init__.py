"""What workers do with simulators that hand over torch tensors."""
