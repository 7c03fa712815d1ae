"""The customers: they can be found and shown, and their orders listed; their complaints are
tickets."""

from __future__ import annotations

from agentgym_rl import ToolError, tool

from .rules import Rulebook

PHONES = range(10_000, 100_000)


class Customers(Rulebook):
    """The tools for customers. Several customers may have the same name."""

    @tool
    def find_customer(self, name: str) -> str:
        """Find customers by first name, last name, or both."""
        wanted = " ".join(name.casefold().split())
        found = [
            f"{key}: {full}, {city}"
            for key, full, city, _ in self.database.all("SELECT * FROM customers ORDER BY id")
            if wanted in (full.casefold(), *full.casefold().split())
        ]
        if not found:
            raise ToolError("no customer of that name")
        return "; ".join(found)

    @tool
    def get_customer(self, customer: int) -> str:
        """Show a customer's name, city and phone number."""
        _, name, city, phone = self.row("customers", customer, "customer")
        return f"name {name}; city {city}; phone {phone}"

    @tool
    def set_phone(self, customer: int, phone: int) -> str:
        """Change a customer's phone number (five digits)."""
        self.row("customers", customer, "customer")
        if phone not in PHONES:
            raise ToolError("a phone number has five digits")
        self.database.run("UPDATE customers SET phone = ? WHERE id = ?", phone, customer)
        return "ok"

    @tool
    def list_orders(self, customer: int) -> str:
        """List a customer's orders: number, status, items."""
        self.row("customers", customer, "customer")
        found = self.database.all(
            "SELECT o.id, o.status, l.quantity, p.name FROM orders o"
            " LEFT JOIN lines l ON l.orders = o.id LEFT JOIN products p ON p.id = l.product"
            " WHERE o.customer = ? ORDER BY o.id, p.name",
            customer,
        )
        items: dict[tuple[int, str], list[str]] = {}
        for order, status, quantity, product in found:
            items.setdefault((order, status), []).append(f"{quantity} {product}")
        orders = [
            f"{order} {status} ({', '.join(what)})" for (order, status), what in items.items()
        ]
        return "; ".join(orders) or "none"


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
