import pytest
from browser import Tab, browsing, serving, until


@pytest.fixture(scope="session")
def server():
    with serving() as found:
        yield found


@pytest.fixture(scope="session")
def browser():
    with browsing() as found:
        yield found


@pytest.fixture(scope="session")
def compiled(browser):
    """Engines round differently; once the fast one is ready, it is the one that page and test both use."""
    from meancap_lab.explorer.comparison import COMPILED

    COMPILED.warm()
    until(lambda: not COMPILED.busy, 600)


@pytest.fixture
def tab(browser, server):
    """A page that has to stay quiet; `tab.open(link)` loads it."""
    found = Tab(browser, server.url)
    yield found
    found.close()


@pytest.fixture
def tabs(browser, server):
    """The same with options: `tabs(color_scheme="dark")`."""
    made = []

    def make(**options):
        made.append(Tab(browser, server.url, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
