"""What is written for Prometheus is read back unchanged, whatever topics are called."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pydanube.observability.exposition import Exposition, Histogram
from pydanube.observability.metric_table import Metric

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
METRIC = Metric("danube_x", "gauge", ("topic",), "Help.")


@given(st.dictionaries(NAMES, st.integers(0, 2**53), min_size=1, max_size=5), NAMES)
def test_labels_and_values_survive(values: dict[str, int], broker: str) -> None:
    out = Exposition(broker)
    out.add(METRIC, [(out.labels(("topic",), (name,)), value) for name, value in values.items()])
    text = out.text().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    assert {sample.labels["topic"]: sample.value for sample in samples} == values
    assert {sample.labels["broker"] for sample in samples} == {broker}


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_everything_once(observed: list[float]) -> None:
    histogram = Histogram((1.0, 10.0, 50.0))
    for value in observed:
        histogram.observe(value)
    out = Exposition("1")
    out.add(Metric("danube_x", "histogram", (), "Help."), [(out.broker, histogram)])
    (family,) = text_string_to_metric_families(out.text().decode())
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name == "danube_x_bucket"}
    for bound, count in buckets.items():
        assert count == sum(value <= float(bound) for value in observed)
