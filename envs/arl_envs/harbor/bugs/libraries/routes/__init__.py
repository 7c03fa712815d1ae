"""Places and the roads between them."""
