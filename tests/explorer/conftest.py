import pytest
from browser import Tab, browsing, serving


@pytest.fixture(scope="session")
def server():
    with serving() as found:
        yield found


@pytest.fixture(scope="session")
def browser():
    with browsing() as found:
        yield found


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
