#!/usr/bin/env python3
"""What Muster reads of Parquet files beside pyarrow: parquet_test.py WITH_PARQUET. Needs pyarrow, so it is run by
`make check-parquet`, not by `make test`. With --speed it prints rows a second beside CSV of the same numbers, instead."""
import datetime
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

PROGRAM = sys.argv[1]
COMPRESSIONS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


def run(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False)


def nested(values, shape):
    """A flat list as lists of lists."""
    if not shape:
        return values[0]
    size = math.prod(shape[1:])
    return [nested(values[i * size:(i + 1) * size], shape[1:]) for i in range(shape[0])]


def muster(batch, *files):
    """The elements that the program prints: by column, its type and its value."""
    done = run("rows", batch, *files)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    elements = []
    for line in done.stdout.splitlines():
        element = {}
        for name, column in json.loads(line).items():
            values = [bytes.fromhex(value) if isinstance(value, str) else value for value in column["values"]]
            element[name] = (column["type"], nested(values, column["shape"]))
        elements.append(element)
    return elements


def as_muster(value, kind):
    """What Muster makes of a value of pyarrow."""
    if isinstance(value, list):
        return [as_muster(each, kind) for each in value]
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool):
        return int(value)
    return value


def stored(column):
    """Times and dates as they are stored."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type)
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return column.cast(pa.int32())
    if pa.types.is_temporal(kind):
        return column.cast(pa.int64())
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.chunked_array([chunk.storage for chunk in column.chunks])
    return column


def columns(rows, seed=1):
    draw = random.Random(seed)
    def ints(bits, sign=True):
        return [draw.randrange(-(1 << bits) if sign else 0, 1 << bits) for _ in range(rows)]
    def floats(count=None):
        return [draw.uniform(-1e3, 1e3) for _ in range(count or rows)]
    words = ["", "a", "zwei", "\u00e9\u4e2d", "x" * 300]
    moments = [datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=draw.randrange(10 ** 8)) for _ in range(rows)]
    return pa.table({
        "bool": pa.array([draw.random() < 0.5 for _ in range(rows)]),
        "int8": pa.array(ints(7), pa.int8()), "int16": pa.array(ints(15), pa.int16()),
        "int32": pa.array(ints(31), pa.int32()), "int64": pa.array(ints(63), pa.int64()),
        "uint8": pa.array(ints(8, False), pa.uint8()), "uint16": pa.array(ints(16, False), pa.uint16()),
        "uint32": pa.array(ints(32, False), pa.uint32()), "uint64": pa.array(ints(63, False), pa.uint64()),
        "float16": pa.array(floats(), pa.float16()), "float32": pa.array(floats(), pa.float32()),
        "float64": pa.array([math.inf, -math.inf, *floats()][:rows], pa.float64()),
        "date": pa.array([moment.date() for moment in moments], pa.date32()),
        "milliseconds": pa.array(moments, pa.timestamp("ms")), "nanoseconds": pa.array(moments, pa.timestamp("ns", "UTC")),
        "string": pa.array([draw.choice(words) for _ in range(rows)]),
        "large": pa.array([draw.choice(words) for _ in range(rows)], pa.large_string()),
        "binary": pa.array([draw.randbytes(draw.randrange(9)) for _ in range(rows)]),
        "fixed": pa.array([draw.randbytes(5) for _ in range(rows)], pa.binary(5)),
        "category": pa.array([draw.choice(words) for _ in range(rows)]).dictionary_encode(),
        "three": pa.array([floats(3) for _ in range(rows)], pa.list_(pa.float32(), 3)),
        "list": pa.array([[draw.randrange(9)] * draw.randrange(4) for _ in range(rows)], pa.list_(pa.int16())),
        "matrix": pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.float64(), [2, 2]),
                                                 pa.array([floats(4) for _ in range(rows)], pa.list_(pa.float64(), 4))),
    })


class WithPyarrow(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="muster-parquet-")
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)

    def write(self, table, name="a.parquet", **options):
        pq.write_table(table, self.folder / name, **options)
        return self.folder / name

    def expect_same(self, table, elements, what=""):
        """Rows of `table`, or of what pyarrow reads of a file."""
        self.assertEqual(len(elements), table.num_rows, what)
        for name in table.column_names:
            theirs = stored(table[name]).to_pylist()
            for row, (element, value) in enumerate(zip(elements, theirs)):
                kind, ours = element[name]
                expected = as_muster(value, kind)
                if name == "matrix":
                    expected = [expected[:2], expected[2:]]
                self.assertEqual(ours, expected, f"{what} {name} {row}")

    def test_values_of_all_types(self):
        table = columns(257)
        file = self.write(table, row_group_size=100)
        elements = muster(0, file)
        self.expect_same(pq.read_table(file), elements)
        types = {name: kind for name, (kind, _) in elements[0].items()}
        self.assertEqual(types, {
            "bool": "bool", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64", "uint8": "uint8",
            "uint16": "int32", "uint32": "int64", "uint64": "int64", "float16": "float16", "float32": "float32",
            "float64": "float64", "date": "int64", "milliseconds": "int64", "nanoseconds": "int64", "string": "string",
            "large": "string", "binary": "string", "fixed": "string", "category": "string", "three": "float32",
            "list": "int16", "matrix": "float64"})

    def test_batches_are_their_rows(self):
        file = self.write(columns(50).drop_columns(["list"]))
        rows = muster(0, file)
        batches = muster(20, file)
        self.assertEqual([len(batch["int64"][1]) for batch in batches], [20, 20, 10])
        for name in rows[0]:
            self.assertEqual([value for batch in batches for value in batch[name][1]], [row[name][1] for row in rows], name)

    def test_compressions_and_versions(self):
        table = columns(60)
        for compression in COMPRESSIONS:
            for page in ("1.0", "2.0"):
                for dictionary in (True, False):
                    file = self.write(table, compression=compression, data_page_version=page, use_dictionary=dictionary,
                                      write_page_checksum=True)
                    self.expect_same(table, muster(0, file), f"{compression} {page} {dictionary}")

    def test_encodings(self):
        table = columns(60)
        plain = {name: "PLAIN" for name in ("int8", "binary", "float16")}
        file = self.write(table, use_dictionary=False, column_encoding=plain | {
            "int32": "DELTA_BINARY_PACKED", "int64": "DELTA_BINARY_PACKED", "string": "DELTA_BYTE_ARRAY",
            "large": "DELTA_LENGTH_BYTE_ARRAY", "float32": "BYTE_STREAM_SPLIT", "float64": "BYTE_STREAM_SPLIT"})
        self.expect_same(table, muster(0, file))

    def test_files_without_the_schema_of_arrow(self):
        table = columns(30).select(["bool", "int16", "uint32", "float64", "string", "binary", "milliseconds", "list"])
        file = self.write(table, store_schema=False)
        self.expect_same(pq.read_table(file), muster(0, file))

    def test_several_files_of_one_dataset(self):
        first, second = columns(20, 1), columns(30, 2)
        self.write(first, "part-0.parquet")
        self.write(second, "part-1.parquet", compression="zstd")
        self.expect_same(pa.concat_tables([first, second]), muster(0, self.folder / "part-*.parquet"))

    def test_what_cannot_be_read_is_named(self):
        for name, values, words in [
                ("money", pa.array([1], pa.decimal128(9, 2)), "decimal128(9, 2)"),
                ("point", pa.array([{"x": 1}]), "struct<x: int64>"),
                ("table", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "map<string, int64"),
                ("words", pa.array([["a"]]), "list<"),
                ("nothing", pa.nulls(1), "null"),
                ("missing", pa.array([None, 1]), "row 0: column \"missing\" is null")]:
            done = run("rows", 0, self.write(pa.table({name: values})))
            self.assertNotEqual(done.returncode, 0, name)
            self.assertIn(f'column "{name}"', done.stderr)
            self.assertIn(words, done.stderr)

    def test_a_damaged_page_is_named(self):
        file = self.write(pa.table({"a": range(10_000)}), write_page_checksum=True, use_dictionary=False, compression="none")
        damaged = bytearray(file.read_bytes())
        damaged[5_000] ^= 1
        file.write_bytes(damaged)
        done = run("rows", 100, file)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("row group 0 cannot be read", done.stderr)


def measure():
    """A click log, as bench/data.cc has it: 13 floats, 26 ids and a label."""
    draw = random.Random(1)
    rows = 200_000
    clicks = {f"d{i}": pa.array([round(draw.random(), 6) for _ in range(rows)], pa.float32()) for i in range(13)}
    clicks |= {f"c{i}": pa.array([draw.randrange(100_000) for _ in range(rows)]) for i in range(26)}
    table = pa.table(clicks | {"y": pa.array([float(draw.randrange(2)) for _ in range(rows)], pa.float32())})
    with tempfile.TemporaryDirectory(prefix="muster-parquet-") as folder:
        pq.write_table(table, f"{folder}/clicks.parquet")
        pyarrow.csv.write_csv(table, f"{folder}/clicks.csv")
        print(run("speed", f"{folder}/clicks").stdout, end="")


if __name__ == "__main__":
    if sys.argv[2:] == ["--speed"]:
        measure()
    else:
        unittest.main(argv=sys.argv[:1] + sys.argv[2:])
