"""Several runs beside each other: their series, what is set otherwise, and where they part.

In: `RunReader`s, the first of which is the reference. Out: the answers of `/api/v1/compare`. Never: more than
`MOST_RUNS` of them.
"""

MOST_RUNS = 8  # more lines than these nobody tells apart
