"""A store: goods, prices, orders."""
