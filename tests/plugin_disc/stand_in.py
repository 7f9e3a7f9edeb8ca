"""Stands in for BladeDISC's compiler: same command line, same two files, and the faults that STAND_IN names."""

# ruff: noqa: T201 - what it prints is the log

import os
import struct
import sys
import time
from pathlib import Path

source, library = Path(sys.argv[1]), Path(sys.argv[2])
fault = os.environ.get("STAND_IN", "")
print("process", os.getpid())
print("argv", *sys.argv[3:])
print(*(f"{name}={os.environ.get(name)}" for name in ("TAO_MLIR_ENABLE_AMP", "DISC_CPU_FAST_MATH_LEVEL", "TF_CPP_VMODULE")))
print("to stderr", file=sys.stderr)
assert "tf.entry_function" in source.read_text()
if fault == "hangs":
    library.write_bytes(b"half")
    sys.stdout.flush()
    time.sleep(600)
if fault == "fails":
    library.write_bytes(b"half")
    print("no lowering for mhlo.sort")
    sys.exit(3)
key, data = b"weight", struct.pack("<2f", 1.0, 2.0)
metadata = struct.pack("<Q?Q", 0x1234567890ABCDEF, True, len(key)) + key + struct.pack("<Q", len(data)) + data
elf = struct.pack("<4s36xQ10xHH2x", b"\x7fELF", 0, 64, 9 if fault == "cut off library" else 0)
if fault != "no library":
    library.write_bytes(b"garbage" if fault == "garbage library" else elf)
if fault != "no metadata":
    count = 2 if fault == "wrong count" else 1
    tail = b"" if fault == "cut off" else struct.pack("<Q", count)
    Path(f"{library}.pbtxt").write_bytes(b"garbage, and long enough" if fault == "garbage metadata" else metadata + tail)
