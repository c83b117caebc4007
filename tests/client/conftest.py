"""What a report is opened in: the browser tests' own pages."""

from tests.browser.conftest import new_tab, pages, start_empty  # noqa: F401 - fixtures
