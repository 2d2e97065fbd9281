"""Metrics of all nodes in one text, which a strict parser takes."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cove.server.cluster.gathering import merge_metrics

pytestmark = pytest.mark.pure

TEXT = """\
# HELP cove_request_seconds Time.
# TYPE cove_request_seconds histogram
cove_request_seconds_bucket{family="exec",le="0.1"} 1
cove_request_seconds_bucket{family="exec",le="+Inf"} 2
cove_request_seconds_sum{family="exec"} 0.5
cove_request_seconds_count{family="exec"} 2
# HELP cove_sandboxes Sandboxes.
# TYPE cove_sandboxes gauge
cove_sandboxes 3
"""


def test_samples_of_a_histogram_stay_with_it_and_every_sample_names_its_node() -> None:
    text = merge_metrics({"a": TEXT, "b": TEXT}, ["c"])
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert set(families) == {"cove_node_up", "cove_request_seconds", "cove_sandboxes"}
    histogram = families["cove_request_seconds"]
    assert (histogram.type, len(histogram.samples)) == ("histogram", 8)
    assert {sample.labels["node"] for sample in histogram.samples} == {"a", "b"}
    assert [sample.value for sample in families["cove_node_up"].samples] == [1.0, 1.0, 0.0]
    assert [sample.labels["node"] for sample in families["cove_sandboxes"].samples] == ["a", "b"]
