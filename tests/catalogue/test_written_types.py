"""Problems whose resources are the catalogue's keep the cloud's word for them."""

import pytest

from dovetail.catalogue import load_catalogue, read_problem_with
from dovetail.spec import Layer, LayerTime, Problem, Training, write_problem


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_a_written_problem_is_read_with_spot_prices_too(tmp_path, ending):
    catalogue = load_catalogue()
    entry = catalogue.find("aws:g5.xlarge")
    layer = Layer(
        name="fc",
        kind="fc",
        on={"g5.xlarge": LayerTime(compute_s=0.1, comm_s=0.0, compute_parallel=1.0, comm_parallel=1.0)},
    )
    problem = Problem(training=Training(samples=1000, batch=10), resources=(entry.to_resource(),), layers=(layer,))
    path = tmp_path / f"problem.{ending}"
    write_problem(problem, path, types={"g5.xlarge": entry.id})

    assert "aws:g5.xlarge" in path.read_text()
    assert read_problem_with(catalogue, path) == problem
    (spot,) = read_problem_with(catalogue, path, spot=True).resources
    assert spot.price_per_hour == entry.spot_usd_per_hour < entry.on_demand_usd_per_hour
