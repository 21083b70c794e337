"""Health checks: over HTTP, and for systemd."""
