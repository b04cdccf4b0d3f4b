"""What runs where: execution plans, their layout on devices and processes."""
