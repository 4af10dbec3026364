import pytest

from meancap_lab.models.data import read_fashion
from meancap_lab.runs.scoring import fashion_folder, shipped_fashion
from repeatable import _catalogue_as_it_was, _repeatable  # noqa: F401


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MEANCAP_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def real_features():
    """Features of 10,000 real photographs of garments, as shipped."""
    return shipped_fashion().features["pool"]


@pytest.fixture(scope="session")
def garments():
    """600 test images of Fashion-MNIST, NHWC, with their labels."""
    if not (fashion_folder() / "t10k-images-idx3-ubyte.gz").is_file():
        pytest.skip("needs Fashion-MNIST: apt-get install dataset-fashion-mnist")
    found = read_fashion(fashion_folder(), train=False)
    return found.images[:600].permute(0, 2, 3, 1).contiguous(), found.labels[:600]
