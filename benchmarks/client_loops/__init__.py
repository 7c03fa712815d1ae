"""Real clients, played against a scripted model through the gateway, for `arl bench clients`."""
