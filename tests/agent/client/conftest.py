"""What a report is opened in: the browser tests' own pages."""

from tests.browser.conftest import new_tab, pages  # noqa: F401 - fixtures
