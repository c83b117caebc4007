"""Questions that may never be answered."""

from __future__ import annotations

import threading

import pytest

from rangewatch.collectors.blocking_call import BlockingCall


def test_answers_and_faults_reach_the_asker() -> None:
    thread: BlockingCall[int] = BlockingCall("rangewatch-test")
    assert thread.ask(lambda: 1, 20) == 1
    with pytest.raises(ZeroDivisionError):
        thread.ask(lambda: 1 // 0, 20)
    assert thread.ask(lambda: 2, 20) == 2
    assert thread.stop(20)


def test_one_question_at_a_time() -> None:
    thread: BlockingCall[int] = BlockingCall("rangewatch-test")
    may_answer = threading.Event()

    def late() -> int:
        may_answer.wait(30)
        return 1

    with pytest.raises(TimeoutError):
        thread.ask(late, 0)
    with pytest.raises(TimeoutError):
        thread.ask(lambda: 2, 20)  # is not asked, and not waited for
    assert not thread.stop(0)
    may_answer.set()
    while thread.is_busy:
        try:
            assert thread.ask(lambda: 3, 0) == 1
        except TimeoutError:
            may_answer.wait(0.01)
    assert thread.stop(20)


def test_a_thread_that_was_never_asked() -> None:
    assert BlockingCall[int]("rangewatch-test").stop(0)
