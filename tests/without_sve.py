#!/usr/bin/env python3
"""without_sve.py LIBTORCH_CPU LIBMUSTER: on arm64, every template that libtorch exports with SVE code in it must have a
copy without it in our library (see muster/runtime/ops/without_sve.cc)."""
import array
import pathlib
import struct
import subprocess
import sys

EXECUTABLE = 4  # a flag of a section
ARM64 = 183


def code_sections(image: bytes) -> list[tuple[int, int, int]]:
    """Address, offset in the file and size of each section with code."""
    table, = struct.unpack_from("<Q", image, 0x28)
    entry_size, entries = struct.unpack_from("<HH", image, 0x3A)
    headers = (struct.unpack_from("<IIQQQQ", image, table + i * entry_size) for i in range(entries))
    return [(address, offset, size) for _, _, flags, address, offset, size in headers if flags & EXECUTABLE]


def weak_functions(library: pathlib.Path, *arguments: str) -> list[tuple[int, int, str]]:
    """Address, size and name of the exported functions that another library may have, too: inline ones and templates."""
    lines = subprocess.run(["nm", "-D", "-S", "--defined-only", *arguments, str(library)], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    rows = (line.split(maxsplit=3) for line in lines)
    return [(int(row[0], 16), int(row[1], 16), row[3]) for row in rows if len(row) == 4 and row[2] == "W"]


def has_sve(code: bytes) -> bool:
    """Bits 25 to 28 of an instruction say which family it is of; SVE's is 0b0010."""
    return any((word >> 25) & 0xF == 0b0010 for word in array.array("I", code[: len(code) // 4 * 4]))


def main() -> None:
    libtorch, ours = map(pathlib.Path, sys.argv[1:3])
    image = libtorch.read_bytes()
    machine, = struct.unpack_from("<H", image, 18)
    if machine != ARM64:
        print("without_sve: not for arm64, nothing to look for")
        return
    sections = code_sections(image)
    own = {name for _, _, name in weak_functions(ours)}
    looked_at, missing = 0, []
    for start, size, name in weak_functions(libtorch):
        offset = next((at + start - begin for begin, at, length in sections if begin <= start < begin + length), None)
        if offset is None:
            continue
        looked_at += 1
        if has_sve(image[offset : offset + size]) and name not in own:
            missing.append(name)
    if missing:
        sys.exit("these of libtorch have SVE code and no copy in libmuster:\n  " + "\n  ".join(missing))
    print(f"without_sve: looked at {looked_at} functions of libtorch, every one with SVE code has a copy of ours")


if __name__ == "__main__":
    main()
