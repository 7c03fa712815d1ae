"""Short forms of texts and lists."""
