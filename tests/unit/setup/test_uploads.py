"""What uploads are charged for: the images that the devices sent."""

import numpy as np
import pytest
from tests.parity.test_stacked import played

from hatdfed.core.energy.energy_model import Cause
from hatdfed.data.datasets import load_dataset
from hatdfed.setup.build.placement import Placement
from hatdfed.setup.build.simulation import make_batch
from hatdfed.setup.layers import resolve

PEOPLE = (5, 50, 100)  # images that each of three servers owns


def uploads(fleet, **settings):
    """Charged and sent bits of every server in every round."""
    dataset = load_dataset("synthetic", options={"train": sum(PEOPLE), "validation": 60, "test": 30})
    dataset = dataset._replace(groups=np.repeat(np.arange(len(PEOPLE)), PEOPLE))
    fixed = {"dataset": "synthetic", "network": "linear", "servers": 3, "rounds": 4, "validation_images": 50}
    config = resolve({**fixed, **settings})
    simulation = make_batch([config], dataset, Placement(fleet, "cpu"), ["x"]).simulations[0]
    records = played(simulation.coordinator, simulation.fleet, config.rounds)
    charged = [[row.bits for row in r.report.energy if row.cause is Cause.UPLOAD] for r in records]
    sent = [[server.num_samples * dataset.bits_per_sample for server in r.report.servers] for r in records]
    return np.array(charged), np.array(sent)


@pytest.mark.parametrize("fleet", ["mailbox", "stacked"])
def test_servers_with_few_images_are_charged_for_what_their_devices_send(fleet):
    charged, sent = uploads(fleet, split="groups")
    np.testing.assert_array_equal(charged, sent)
    assert len(set(sent.max(axis=0))) == len(PEOPLE), "shards differ, and so do uploads"


def test_with_as_many_images_everywhere_every_device_costs_the_same():
    charged, sent = uploads("stacked", images_per_server=90)
    np.testing.assert_array_equal(charged, sent)  # Eq. (4), as 60 images are 2 for each of 30 devices
    charged, _ = uploads("stacked", images_per_server=90, samples_per_round=50)
    per_device = 50 / 30 * 64 * 8
    np.testing.assert_allclose(charged / per_device, np.round(charged / per_device))
