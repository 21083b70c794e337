"""What importing the packages costs, with and without a broker's adapter."""

import json
import subprocess
import sys
from statistics import median

from ._lab import Lab
from ._measure import Grid, Report

_ALONE = "inbox, outbox"
_IMPORTS = {
    "no adapter": _ALONE,
    "Kafka": f"{_ALONE}, inbox.kafka, outbox.kafka",
    "NATS": f"{_ALONE}, inbox.nats, outbox.nats",
    "RabbitMQ": f"{_ALONE}, inbox.rabbitmq, outbox.rabbitmq",
    "Redis Streams": f"{_ALONE}, inbox.redis_streams, outbox.redis_streams",
    "RocketMQ": f"{_ALONE}, inbox.rocketmq, outbox.rocketmq",
    "SQS": f"{_ALONE}, inbox.sqs, outbox.sqs",
    "webhooks": f"{_ALONE}, inbox.webhook, outbox.webhook",
}
_PROGRAM = """
import {modules}
import json, re, time
peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
print(json.dumps([time.process_time() * 1_000, int(peak) / 1_024]))
"""


def importing(lab: Lab) -> Report:
    """CPU time and memory of new processes that import and end."""
    found: dict[str, list[list[float]]] = {name: [] for name in _IMPORTS}
    tick = lab.task("imports", lab.rounds + 1)
    for number in range(lab.rounds + 1):
        for name, modules in _IMPORTS.items():
            spent = _measured(modules)
            if number > 0:
                found[name].append(spent)
        tick()
    rows = [
        [name, *(f"{median(values):,.0f}" for values in zip(*measured, strict=True))]
        for name, measured in found.items()
    ]
    return Report(grids=[Grid("import inbox, outbox and an adapter", ["", "CPU, ms", "memory, MiB"], rows)])


def _measured(modules: str) -> list[float]:
    """Milliseconds and MiB of a process, its start included."""
    program = _PROGRAM.format(modules=modules)
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    measured: list[float] = json.loads(done.stdout)
    return measured
