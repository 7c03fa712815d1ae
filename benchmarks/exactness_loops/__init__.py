"""The parts of `arl bench exactness`: a model, its clients, the engine's record, a comparison."""
