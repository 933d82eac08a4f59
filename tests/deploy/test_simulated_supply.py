"""Energy that only simulated machines have is refused by a deployment."""

import pytest

from hatdfed.deploy.coordinator.state_folder import resolve_for_state
from hatdfed.errors import ConfigError


@pytest.mark.parametrize(
    ("layer", "what"), [({"supply": {"battery_joules": 5}}, "supply"), ({"energy": {"idle_watts": 2}}, "idle_watts")]
)
def test_batteries_and_idle_power_are_for_simulations(tmp_path, layer, what):
    with pytest.raises(ConfigError, match=f"{what} is for simulations"):
        resolve_for_state(tmp_path, layer)


def test_what_follows_from_reports_is_not(tmp_path):
    assert resolve_for_state(tmp_path, {"energy": {"probe_joules": 2}}).energy.probe_joules == 2
