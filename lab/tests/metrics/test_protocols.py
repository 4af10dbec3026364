"""Every number of a protocol has a direction, and a number that no protocol has is an error."""

import pytest

from meancap_lab.metrics import PROTOCOLS, direction


def test_every_number_has_one_direction_in_all_protocols():
    for p in PROTOCOLS.values():
        assert p.numbers
        for number, way in p.numbers.items():
            assert way in (-1, 0, 1) and direction(number) == way, (p.name, number)
    assert (direction("FID"), direction("recall"), direction("saturation")) == (-1, 1, 0)


def test_an_unknown_number_has_no_direction():
    with pytest.raises(ValueError, match="unknown metric 'FID-2'; known metrics: FID, sFID"):
        direction("FID-2")
