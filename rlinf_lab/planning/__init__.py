"""How to do it: plans, the engine, the simulator, estimates."""
