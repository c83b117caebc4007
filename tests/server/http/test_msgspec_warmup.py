"""Threads that decode a type for the first time at once."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

AT_ONCE = """
import sys, threading, types
import msgspec
from rangewatch_server.core import msgspec_warmup

SOURCE = '''
from __future__ import annotations
import msgspec

class Inner(msgspec.Struct):
    a: int = 1

class Outer(msgspec.Struct):
    inner: Inner = msgspec.field(default_factory=Inner)
''' + "".join(f"    f{i}: tuple[int, ...] | None = None\\n" for i in range(12))

def made(number):
    module = types.ModuleType(f"rangewatch_server.made{number}")
    sys.modules[module.__name__] = module
    exec(SOURCE, vars(module))
    return module.Outer

def decode(shape, start):
    start.wait()
    msgspec.json.decode(b'{"f1": [1], "inner": {"a": 2}}', type=shape)

shapes = [made(number) for number in range(int(sys.argv[2]))]
if sys.argv[1] == "learnt":
    msgspec_warmup.learn()
sys.setswitchinterval(1e-6)
for shape in shapes:
    start = threading.Barrier(3)
    threads = [threading.Thread(target=decode, args=(shape, start)) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
"""


# The first types are enough for a fault, nearly always.
CASES = [("learnt", 150, 0), pytest.param("as they are", 1_500, -signal.SIGSEGV, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("how", "types", "status"), CASES)
def test_types_that_were_learnt_before_end_no_process(how: str, types: int, status: int) -> None:
    """The second shows what there is to be afraid of: once msgspec mends it, this file and what it tests can go."""
    done = subprocess.run([sys.executable, "-c", AT_ONCE, how, str(types)], timeout=60, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
