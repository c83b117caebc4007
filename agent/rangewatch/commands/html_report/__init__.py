"""A run as one HTML file that opens with no server, and asks nobody for anything.

Everything that came over the network is text in it: names are escaped, in the page and in Plotly's labels.
"""

from rangewatch.commands.html_report.document import page

__all__ = ["page"]
