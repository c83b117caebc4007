"""A run as one HTML file that opens with no server and asks nobody for anything; its figures, for notebooks too.

In come answers of the server's API, out goes HTML, piece by piece. `rangewatch export` writes it from a client's
answers, and the server sends it from its own. Everything that came over the network is text in it: names are escaped,
in the page and in Plotly's labels. It reads no database and asks nobody over the network.
"""

from rangewatch.report.document import page
from rangewatch.report.source import Refused, Source

__all__ = ["Refused", "Source", "page"]
