"""Who runs where. So far: `local`, every process on this machine."""
