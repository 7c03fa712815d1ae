"""Numbers as people write them."""
