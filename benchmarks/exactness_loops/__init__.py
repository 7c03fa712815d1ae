"""What `arl bench exactness` is made of: a model, its clients, the engine's view, a comparison."""
