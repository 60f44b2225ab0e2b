"""What every test may ask for."""

import pytest

import narrowcast as nc
from models import DEVICES


@pytest.fixture(params=nc.formats())
def format(request):
    return request.param


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param
