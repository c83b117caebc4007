"""Which rows of the data a step was made of on a rank, where its loop says so, as sentences for findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rangewatch.wire.events import BatchRows, RowLoss
from rangewatch_server.core import deadline
from rangewatch_server.query.reader import RunReader

SHOWN_IDS, SHOWN_LOSSES = 16, 3
"""Of a batch in a sentence; the Step page has all that were sent."""

MOST_RANKS = 3
"""Whose rows a finding names."""

OUTLIER = 5.0
"""How many times the median of its batch the loss of a row must be to be called so."""


def rows_of(run: RunReader, rank: int, step: int) -> BatchRows | None:
    """What the rank's newest process of those that sent them says; None where none did."""
    deadline.check()
    for event in run.events(BatchRows.KIND, 1, rank=rank, step=step):
        return event.read(BatchRows)
    return None


def row_sentences(run: RunReader, ranks: Iterable[int], step: int) -> Iterator[str]:
    """A sentence for each of the first ranks whose rows of the step are known."""
    said = 0
    for rank in ranks:
        rows = rows_of(run, rank, step)
        if rows is not None and (rows.ids or rows.largest):
            yield f"{_ids(rows, step, rank)}{_losses(rows)}"
            said += 1
            if said == MOST_RANKS:
                return


def bad_rows(rows: BatchRows) -> tuple[RowLoss, ...]:
    """Rows whose loss is not finite, where those of others of the batch are."""
    bad = tuple(each for each in rows.largest if isinstance(each.loss, str))
    return bad if rows.median is not None else ()


def outliers(rows: BatchRows) -> tuple[RowLoss, ...]:
    """Rows whose loss is not finite, or far above the median of their batch; none where all are alike."""
    median = rows.median
    if median is None:
        return ()
    high = (each for each in rows.largest if not isinstance(each.loss, str) and median > 0)
    return (*bad_rows(rows), *(each for each in high if float(each.loss) >= OUTLIER * median))


def _ids(rows: BatchRows, step: int, rank: int) -> str:
    if not rows.ids:
        return f"Step {step} on rank {rank} had {rows.loss_count} rows."
    shown = ", ".join(map(str, rows.ids[:SHOWN_IDS]))
    rest = max(rows.count, len(rows.ids)) - len(rows.ids[:SHOWN_IDS])
    more = f" and {rest} more" if rest else ""
    return f"The batch of step {step} on rank {rank} was made of the rows {shown}{more}."


def _losses(rows: BatchRows) -> str:
    high = outliers(rows)[:SHOWN_LOSSES]
    if not high:
        if rows.median is None or not rows.largest:
            return ""
        return (
            f" No row stands out: the losses reach {_number(rows.largest[0].loss)}, with a median of {rows.median:.3g}."
        )
    kind = "row" if rows.ids else "the row at place"
    texts = [f"{kind} {each.row} had a loss of {_number(each.loss)}{_times(each, rows)}" for each in high]
    return f" {'; '.join([texts[0][0].upper() + texts[0][1:], *texts[1:]])}."


def _number(loss: float | str) -> str:
    return loss if isinstance(loss, str) else f"{loss:.3g}"


def _times(row: RowLoss, rows: BatchRows) -> str:
    if isinstance(row.loss, str) or not rows.median:
        return f", others of the batch {rows.median:.3g} (median)" if rows.median is not None else ""
    return f", {row.loss / rows.median:.3g} times the median"
