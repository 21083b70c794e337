"""Health checks of relays and consumers: over HTTP, and for systemd:

    with serve_probes("0.0.0.0:8080", relay), systemd_watchdog(relay):
        relay.run()

Both are off unless you call them.
"""

from inbox._probing.server import Metrics, serve_probes
from inbox._probing.systemd import systemd_watchdog
from inbox_outbox_base.monitoring.life_signs import HasProbe, Probe

__all__ = ["HasProbe", "Metrics", "Probe", "serve_probes", "systemd_watchdog"]
