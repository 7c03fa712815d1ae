"""The tickets: complaints of customers."""

from __future__ import annotations

from agentgym_rl.gym.tool_env import tool

from .rules import Rulebook


class Tickets(Rulebook):
    """The tools for tickets. A ticket can be closed only once."""

    @tool
    def list_tickets(self, customer: int) -> str:
        """List a customer's tickets: number, subject, status."""
        self.row("customers", customer, "customer")
        found = self.database.all(
            "SELECT id, subject, status FROM tickets WHERE customer = ? ORDER BY id", customer
        )
        return "; ".join(f"{key}: {subject}, {status}" for key, subject, status in found) or "none"

    @tool
    def close_ticket(self, ticket: int) -> str:
        """Close a ticket."""
        status = self.row("tickets", ticket, "ticket")[3]
        if status != "open":
            raise self.refuse(f"ticket is {status}", "close_ticket", {"ticket": ticket})
        self.database.run("UPDATE tickets SET status = 'closed' WHERE id = ?", ticket)
        return "ok"
