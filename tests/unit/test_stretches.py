"""The histograms of where a provision's time goes: in seconds, with buckets in which seconds can be told apart."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import time, urllib.request
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from hatchway.dev.ports import free_port
from hatchway.metrics import runtime
from hatchway.model import ProvisionState as S
from workflows import stages

address = f"127.0.0.1:{free_port('127.0.0.1')}"
page_of = runtime(address)
meter, now = page_of.metric_meter, [datetime(2026, 1, 1, tzinfo=UTC)]
stages.workflow = SimpleNamespace(now=lambda: now[0], metric_meter=lambda: meter)
one = stages.Stages()
for state in (S.SPAWNING, S.AWAITING_ADOPTION, S.ACTIVE, S.TEARING_DOWN, S.CLOSED):
    now[0] += timedelta(seconds=2)
    one.enter(state)
for _ in range(100):
    page = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
    if page.count("_count{") >= len(stages.MEASURED_AT):
        break
    time.sleep(0.05)
print("\\n".join(sorted(stages.MEASURED_AT[state][0] for state in stages.MEASURED_AT)), page, sep="\\n---\\n")
"""


def test_each_stretch_is_counted_in_seconds() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    names, page = ran.stdout.split("\n---\n")
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    value = {line.rpartition(" ")[0].replace('service_name="temporal-core-sdk",', ""): line.rpartition(" ")[2]
             for line in lines}  # fmt: skip

    for name in names.split():
        assert value[f'hatchway_{name}_bucket{{le="1"}}'] == "0"
        assert value[f'hatchway_{name}_bucket{{le="5"}}'] == "1"
        assert value[f'hatchway_{name}_sum{{service_name="temporal-core-sdk"}}'] == "2"
    assert len(names.split()) == 4
