"""Records are found again whatever is torn or damaged around them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rangewatch.delivery.spool.record import FREED, HEADER, STATE_OFFSET, Encoded, pack, scan

THREE = [Encoded(bytes([n]) * (5 + n), n, f"digest{n}", n, n + 1) for n in range(3)]
DATA = b"".join(map(pack, THREE))
ENDS = [sum(len(pack(each)) for each in THREE[:count]) for count in range(4)]


def test_there_and_back() -> None:
    assert [each.batch for each in scan(DATA).records] == THREE
    assert [each.offset for each in scan(DATA).records] == ENDS[:3]
    assert all(each.is_held for each in scan(DATA).records)


@given(st.binary(max_size=200), st.integers(0, 2**63))
def test_any_there_and_back(body: bytes, sequence: int) -> None:
    batch = Encoded(body, 1, "a" * 32, sequence)
    assert [each.batch for each in scan(b"rest of an older record" + pack(batch)).records] == [batch]


def test_cut_at_every_byte() -> None:
    for size in range(len(DATA) + 1):
        whole = sum(end <= size for end in ENDS[1:])
        assert [each.batch for each in scan(DATA[:size]).records] == THREE[:whole], size
        assert scan(DATA[:size]).damaged == 0, "it was being written when its process ended"


def test_a_damaged_byte_takes_no_other_record_with_it() -> None:
    for place in range(len(DATA)):
        hurt = next(number for number in range(3) if place < ENDS[number + 1])
        for mask in (0x01, 0xFF):
            data = bytearray(DATA)
            data[place] ^= mask
            found = [each.batch for each in scan(bytes(data)).records]
            if place - ENDS[hurt] >= STATE_OFFSET and place - ENDS[hurt] < HEADER.size:
                is_freed = data[place] == FREED and place - ENDS[hurt] == STATE_OFFSET
                assert found == THREE, "the state and what follows it are no part of the record"
                assert [each.is_held for each in scan(bytes(data)).records][hurt] is not is_freed
            else:
                assert found == [each for number, each in enumerate(THREE) if number != hurt], place
                assert scan(bytes(data)).damaged == 1, place


def test_a_single_wrong_bit_frees_no_record() -> None:
    for bit in range(8):
        data = bytearray(DATA)
        data[STATE_OFFSET] ^= 1 << bit
        assert all(each.is_held for each in scan(bytes(data)).records)


def test_rests_of_older_records_in_between() -> None:
    """A segment that is written over from its start holds such."""
    data = pack(THREE[0]) + pack(THREE[2])[10:] + pack(THREE[1])
    assert [each.batch for each in scan(data).records] == THREE[:2]


def test_what_was_overwritten_is_not_damaged() -> None:
    """A segment is written over from its start, and what lies after its newest record begins anywhere."""
    older = b"".join(pack(Encoded(bytes([n]) * (40 + 13 * n), 1, "d", n)) for n in range(8))
    newer = b"".join(pack(Encoded(bytes([n]) * 30, 1, "d", n)) for n in range(8, 12))
    for size in range(len(older)):
        found = scan(newer + older[size:])
        assert (found.damaged, [each.batch.sequence for each in found.records[:4]]) == (0, [8, 9, 10, 11]), size


def test_a_whole_page_of_records_that_is_gone_is_counted() -> None:
    records = [pack(Encoded(bytes([n]) * 30, 1, "d", n)) for n in range(9)]
    data = b"".join((*records[:2], bytes(sum(map(len, records[2:7]))), *records[7:]))
    assert scan(data).damaged == 5


def test_one_that_had_been_sent_is_no_loss() -> None:
    data = bytearray(DATA)
    for end in ENDS[:3]:
        data[end + STATE_OFFSET] = FREED
    for place in (HEADER.size + 2, ENDS[1] + HEADER.size + 2, ENDS[2] + HEADER.size + 2):
        data[place] ^= 1
        assert scan(bytes(data)).damaged == 0


@given(st.binary(max_size=300))
def test_garbage_is_no_record(data: bytes) -> None:
    assert scan(data).records == []
