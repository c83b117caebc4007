"""Time that the training thread spends in a data loader: in the iterator's `__next__`, and where it starts workers.

Accelerate's and Lightning's loaders have torch's iterator inside. An iterator of the user's own is not seen: then data
wait is unknown, and counts as `other`.
"""

from __future__ import annotations

from torch.utils.data import dataloader

from rangewatch.phase_clock_calls import PhaseCall
from rangewatch.phase_clock_spent import DATA_WAIT

_ITERATOR = getattr(dataloader, "_BaseDataLoaderIter", None)  # private: another torch may have another

CALLS = (
    PhaseCall(dataloader.DataLoader, "__iter__", DATA_WAIT),
    *([] if _ITERATOR is None else [PhaseCall(_ITERATOR, "__next__", DATA_WAIT)]),
)
"""One object a process, as the classes are."""
