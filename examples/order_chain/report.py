"""The results of the chain, in a table."""

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from examples.order_chain.plan import Plan
from examples.order_chain.trial import Result

CAPTION = (
    "Messages that a killed process was handling are redelivered, and a killed customer resends an order. "
    "Anything taken before is rejected as a duplicate."
)


def table(plan: Plan, results: Mapping[str, Result]) -> Table:
    """The expected result, and that of each transport, side by side."""
    made = Table(title="Does each order happen once?", caption=CAPTION)
    made.add_column("")
    for heading in ("expected", *results):
        made.add_column(heading, justify="right")
    found = list(results.values())

    def row(label: str, right: int, *values: int) -> None:
        cells = (Text(f"{value:,}", style="green" if value == right else "bold red") for value in values)
        made.add_row(label, f"{right:,}", *cells)

    def tell(label: str, *values: str) -> None:
        made.add_row(label, "", *values)

    confirmed = sum(status == "confirmed" for status in plan.statuses.values())
    right = set(plan.statuses.items())
    row("rows of orders", plan.orders, *(len(each.orders) for each in found))
    statuses = (len(right.intersection(each.orders)) for each in found)
    row("orders with the right status", plan.orders, *statuses)
    for item, quantity in plan.sold.items():
        row(f"{item} sold", quantity, *(each.sold[item] for each in found))
    row("shipments", confirmed, *(sum(each.shipments.values()) for each in found))
    row("dead letters", 0, *(each.dead for each in found))
    made.add_section()
    roles = sorted({role for each in found for role in each.killed})
    for role in roles:
        tell(f"{role}s killed", *(f"{each.killed[role] or ''}" for each in found))
    tell("deliveries", *(f"{each.heard.deliveries.total():,}" for each in found))
    tell("  of messages delivered before", *(f"{each.heard.redelivered:,}" for each in found))
    tell("duplicates rejected", *(f"{each.heard.verdicts['duplicate']:,}" for each in found))
    tell("calls downstream", *(f"{each.calls:,}" for each in found))
    tell("time", *(f"{each.seconds:.1f} s" for each in found))
    return made


def broken(plan: Plan, results: Mapping[str, Result]) -> list[str]:
    """Descriptions of the broken promises."""
    return [
        f"{name}: {promise}"
        for name, result in results.items()
        for promise, is_kept in result.promises(plan).items()
        if not is_kept
    ]
