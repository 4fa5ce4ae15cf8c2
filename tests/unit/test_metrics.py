"""Gauges show how it stands now: what has passed is set back."""

from __future__ import annotations

from collections import defaultdict
from unittest.mock import Mock

from temporalio.common import MetricMeter

from hatchway.metrics import Metrics


def test_the_gauges_of_the_reapers_sight_come_back_to_zero() -> None:
    instruments: dict[str, Mock] = defaultdict(Mock)
    meter = Mock(spec=MetricMeter)
    meter.create_gauge.side_effect = lambda name, *_: instruments[name]

    metrics = Metrics(meter)
    metrics.reaping(blocked=True, unseen=3)
    metrics.reaping(blocked=False, unseen=0)

    values = {
        name: [call.args[0] for call in gauge.set.call_args_list]
        for name, gauge in instruments.items()
        if gauge.set.called
    }
    assert values == {"hatchway_reap_blocked": [1, 0], "hatchway_reap_unseen_provisions": [3, 0]}


def test_events_are_counted_and_their_reasons_told_apart() -> None:
    instruments: dict[str, Mock] = defaultdict(Mock)
    meter = Mock(spec=MetricMeter)
    meter.create_counter.side_effect = lambda name, *_: instruments[name]

    metrics = Metrics(meter)
    metrics.scale_up_emitted()
    metrics.scale_down_emitted("job-complete")

    assert instruments["hatchway_scale_up_emitted_total"].add.call_args.args == (1,)
    assert instruments["hatchway_scale_down_emitted_total"].add.call_args.args == (1, {"reason": "job-complete"})
