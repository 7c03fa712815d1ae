"""Accounts, and a bank that moves money between them; amounts are in cents."""
