"""Settings in files with sections."""
