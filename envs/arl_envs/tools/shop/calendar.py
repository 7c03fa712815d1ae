"""The appointments: at most one in each hour, and one a day for each customer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_rl import ToolError, tool

from .rules import Rulebook

DAYS, HOURS = range(1, 31), range(9, 17)


class Calendar(Rulebook):
    """The tools for appointments. Days are 1 to 30, hours 9 to 16."""

    @tool
    def free_hours(self, day: int) -> str:
        """List the free hours of a day (1 to 30)."""
        _check(day, HOURS[0])
        found = self.database.all("SELECT hour FROM appointments WHERE day = ?", day)
        taken = {hour for (hour,) in found}
        return ", ".join(str(hour) for hour in HOURS if hour not in taken) or "none"

    @tool
    def list_appointments(self, customer: int) -> str:
        """List a customer's appointments: number, day, hour."""
        self.row("customers", customer, "customer")
        found = self.database.all(
            "SELECT id, day, hour FROM appointments WHERE customer = ? ORDER BY id", customer
        )
        return "; ".join(f"{key}: day {day} hour {hour}" for key, day, hour in found) or "none"

    @tool
    def book(self, customer: int, day: int, hour: int) -> str:
        """Make an appointment."""
        self.row("customers", customer, "customer")
        arguments = {"customer": customer, "day": day, "hour": hour}
        self._must_be_free(customer, -1, "book", arguments)
        key = 1 + max(self.database.all("SELECT MAX(id) FROM appointments")[0][0] or 0, 99)
        self.database.run("INSERT INTO appointments VALUES (?, ?, ?, ?)", key, customer, day, hour)
        return f"appointment {key}"

    @tool
    def move_appointment(self, appointment: int, day: int, hour: int) -> str:
        """Move an appointment."""
        _, customer, *_ = self.row("appointments", appointment, "appointment")
        arguments = {"appointment": appointment, "day": day, "hour": hour}
        self._must_be_free(customer, appointment, "move_appointment", arguments)
        self.database.run(
            "UPDATE appointments SET day = ?, hour = ? WHERE id = ?", day, hour, appointment
        )
        return "ok"

    def _must_be_free(
        self, customer: int, but: int, tool: str, arguments: Mapping[str, Any]
    ) -> None:
        """Require that nobody has the hour, and the customer no other appointment on the day.

        `but` is an appointment that moves and is not counted.
        """
        day, hour = arguments["day"], arguments["hour"]
        _check(day, hour)
        query = "SELECT 1 FROM appointments WHERE day = ? AND id != ? AND "
        if self.database.all(query + "hour = ?", day, but, hour):
            raise self.refuse("the hour is taken", tool, arguments)
        if self.database.all(query + "customer = ?", day, but, customer):
            raise self.refuse("one appointment a day", tool, arguments)


def _check(day: int, hour: int) -> None:
    """Raise ToolError if the shop is never open at this day and hour."""
    if day not in DAYS or hour not in HOURS:
        raise ToolError("days are 1 to 30, hours 9 to 16")
