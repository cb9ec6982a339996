#!/usr/bin/env python3
"""What Muster writes and reads beside TensorFlow and Keras: tensorflow_test.py WITH_TENSORFLOW. Needs TensorFlow, so it is run by
`make check-tensorflow`, not by `make test`."""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

PROGRAM = sys.argv[1]
COMPRESSIONS = {"NONE": "", "GZIP": "GZIP", "ZLIB": "ZLIB"}


def muster(*words):
    """The columns that the program prints, by name: numpy arrays, of bytes where they are strings."""
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    columns = {}
    for line in done.stdout.splitlines():
        column = json.loads(line)
        values = [bytes.fromhex(value) if isinstance(value, str) else value for value in column["values"]]
        columns[column["column"]] = np.array(values, dtype=object).reshape(column["shape"])
    return columns


class WithTensorFlow(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="muster-tensorflow-")
        self.addCleanup(directory.cleanup)
        self.folder = pathlib.Path(directory.name)

    def expect_same(self, ours, theirs, what, tolerance=0.0):
        theirs = np.asarray(theirs)
        self.assertEqual(ours.shape, theirs.shape, what)
        for place in np.ndindex(theirs.shape):
            our, their = ours[place], theirs[place]
            if isinstance(their, (bytes, str)):
                self.assertEqual(our, their if isinstance(their, bytes) else their.encode(), f"{what} {place}")
            elif tolerance == 0 or not math.isfinite(float(their)):
                if math.isnan(float(their)):
                    self.assertTrue(math.isnan(our), f"{what} {place}: {our}")
                elif isinstance(their, np.floating):
                    self.assertEqual(np.float32(our), their, f"{what} {place}")
                else:
                    self.assertEqual(our, int(their), f"{what} {place}")
            else:
                self.assertLessEqual(abs(float(our) - float(their)), tolerance * max(1.0, abs(float(their))),
                                     f"{what} {place}: {our}, not {their}")


class WrittenByMuster(WithTensorFlow):
    def setUp(self):
        super().setUp()
        muster("write", self.folder)

    def test_examples_are_what_tensorflow_reads(self):
        for name, compression in COMPRESSIONS.items():
            with self.subTest(name):
                records = list(tf.data.TFRecordDataset(str(self.folder / f"{name}.tfrecord"), compression))
                self.assertEqual(len(records), 1000)
                for i in (0, 1, 7, 998, 999):
                    features = tf.train.Example.FromString(records[i].numpy()).features.feature
                    self.assertEqual(list(features["floats"].float_list.value),
                                     [np.float32(i) / np.float32(3), math.inf, 0.0, float(np.float32(1e-40))])
                    self.assertEqual(math.copysign(1, features["floats"].float_list.value[2]), -1)
                    self.assertEqual(list(features["int64s"].int64_list.value), [i, -2**63, 2**63 - 1, -1])
                    self.assertEqual(list(features["strings"].bytes_list.value), [b"", "größe".encode(), b"\0\xff"])
                    self.assertEqual(list(features["bytes"].bytes_list.value), [b"x" * (3 * i)])
                    self.assertEqual(features["no floats"].WhichOneof("kind"), "float_list")
                    self.assertEqual(features["no int64s"].WhichOneof("kind"), "int64_list")
                    self.assertEqual(features["no strings"].WhichOneof("kind"), "bytes_list")
                    self.assertEqual("even only" in features, i % 2 == 0)
                parsed = tf.io.parse_example([record.numpy() for record in records], {
                    "floats": tf.io.FixedLenFeature([4], tf.float32), "int64s": tf.io.VarLenFeature(tf.int64),
                    "no strings": tf.io.RaggedFeature(tf.string)})
                self.assertEqual(parsed["floats"].shape, [1000, 4])
                self.assertEqual(parsed["int64s"].values.shape, [4000])
                self.assertEqual(parsed["no strings"].flat_values.shape, [0])

    def test_sequences_are_what_tensorflow_reads(self):
        records = [record.numpy() for record in tf.data.TFRecordDataset(str(self.folder / "sequences.tfrecord"))]
        context, lists, _ = tf.io.parse_sequence_example(
            records, context_features={"user": tf.io.FixedLenFeature([], tf.int64)},
            sequence_features={"at": tf.io.FixedLenSequenceFeature([2], tf.float32), "item": tf.io.RaggedFeature(tf.int64),
                               "word": tf.io.VarLenFeature(tf.string)})
        self.assertEqual(context["user"].numpy().tolist(), list(range(100)))
        self.assertEqual(lists["at"].shape, [100, 4, 2])
        self.assertEqual(lists["at"][4].numpy().tolist(), [[0, 4], [1, 4], [2, 4], [3, 4]])
        self.assertEqual(lists["item"].to_list()[8], [[0], [1], [2]])
        self.assertEqual(lists["word"].values.shape, [200])
        read = tf.train.SequenceExample.FromString(records[0])
        self.assertEqual(sorted(read.feature_lists.feature_list), ["at", "item", "nothing", "word"])


class ReadByMuster(WithTensorFlow):
    @staticmethod
    def examples():
        def floats(*values):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))

        def ints(*values):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

        def strings(*values):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        for i in range(50):
            feature = {"f": floats(i / 7, -i, 1e30, math.nan if i == 3 else 0.1), "i": ints(i * 2**50 - 5),
                       "s": strings(b"", b"\xf0\x00" * i), "some f": floats(*[j / 3 for j in range(i % 4)]),
                       "some i": ints(*range(-2, i % 3)), "some s": strings(*[b"ab" * j for j in range(i % 5)]),
                       "ids": ints(*range(i % 6)), "weights": floats(*[j / 9 for j in range(i % 6)])}
            if i % 2 == 0:
                feature["maybe"] = ints(i)
            if i % 10 == 9:
                del feature["some f"]
            yield tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    def test_examples_are_what_tensorflow_makes_of_them(self):
        parsed = tf.io.parse_example(list(self.examples()), {
            "f": tf.io.FixedLenFeature([2, 2], tf.float32), "i": tf.io.FixedLenFeature([], tf.int64),
            "s": tf.io.FixedLenFeature([2], tf.string), "maybe": tf.io.FixedLenFeature([], tf.int64, -7),
            "some f": tf.io.RaggedFeature(tf.float32), "some i": tf.io.RaggedFeature(tf.int64),
            "some s": tf.io.RaggedFeature(tf.string), "ids": tf.io.RaggedFeature(tf.int64),
            "weights": tf.io.RaggedFeature(tf.float32)})
        for name, compression in COMPRESSIONS.items():
            with self.subTest(name):
                path = str(self.folder / f"{name}.tfrecord")
                with tf.io.TFRecordWriter(path, compression) as out:
                    for example in self.examples():
                        out.write(example)
                ours = muster("examples", path, name)
                for column in ("f", "i", "s", "maybe"):
                    self.expect_same(ours[column], parsed[column], column)
                for column in ("some f", "some i", "some s"):
                    self.expect_same(ours[column], parsed[column].to_tensor(), column)
                    self.expect_same(ours[column + "/length"], parsed[column].row_lengths(), column)
                self.expect_same(ours["ids"], parsed["ids"].flat_values, "ids")
                self.expect_same(ours["ids/offsets"], parsed["ids"].row_starts(), "ids/offsets")
                self.expect_same(ours["ids/weights"], parsed["weights"].flat_values, "ids/weights")

    def test_sequences_are_what_tensorflow_makes_of_them(self):
        records = []
        for i in range(30):
            steps = range(i % 4)
            lists = {
                "at": [tf.train.Feature(float_list=tf.train.FloatList(value=[j, i / 3])) for j in steps],
                "item": [tf.train.Feature(int64_list=tf.train.Int64List(value=[j - 1])) for j in steps],
                "word": [tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"w" * j])) for j in steps]}
            records.append(tf.train.SequenceExample(
                context=tf.train.Features(feature={"user": tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))}),
                feature_lists=tf.train.FeatureLists(
                    feature_list={name: tf.train.FeatureList(feature=values) for name, values in lists.items()}),
            ).SerializeToString())
        path = str(self.folder / "sequences.tfrecord")
        with tf.io.TFRecordWriter(path, "GZIP") as out:
            for record in records:
                out.write(record)
        context, lists, lengths = tf.io.parse_sequence_example(
            records, context_features={"user": tf.io.FixedLenFeature([], tf.int64)},
            sequence_features={"at": tf.io.FixedLenSequenceFeature([2], tf.float32),
                               "item": tf.io.FixedLenSequenceFeature([], tf.int64),
                               "word": tf.io.FixedLenSequenceFeature([], tf.string)})
        ours = muster("sequences", path, "GZIP")
        self.expect_same(ours["user"], context["user"], "user")
        for name, values in lists.items():
            self.expect_same(ours[name], values, name)
            self.expect_same(ours[name + "/length"], lengths[name], name)

    def test_lines_are_what_tensorflow_makes_of_them(self):
        path = self.folder / "a.csv"
        # No float below 1e-37: TensorFlow makes 0 of those that are subnormal, which are kept here.
        rows = [f'{i - 5},{i * 0.37 - 2},"a, ""{i}""\nb",plain{i},{i * 10**11},{"" if i % 3 else 7},-1.5e-{i % 37}' for i in range(40)]
        path.write_text("whole,part,quoted,word,large,gaps,small\n" + "\n".join(rows) + "\n")
        theirs = next(iter(tf.data.experimental.make_csv_dataset(
            str(path), batch_size=40, num_epochs=1, shuffle=False, num_rows_for_inference=100)))
        ours = muster("csv", path)
        self.assertEqual(list(ours), list(theirs))
        for name, values in theirs.items():
            self.expect_same(ours[name], values, name)

    def test_pictures_are_what_tensorflow_makes_of_them(self):
        random = np.random.default_rng(3)
        paths = []
        for label in ("b", "a10", "a9"):
            (self.folder / label).mkdir()
            for i in range(4):
                waves = np.add.outer(np.arange(37 + i) * (3 + i), np.arange(53) * 2)[:, :, None] + np.array([0, 40, 90])
                pixels = ((waves + random.integers(0, 16, (37 + i, 53, 3))) % 256).astype(np.uint8)
                path = self.folder / label / f"{i}.{'png' if i == 3 else 'jpg'}"
                encoded = (tf.io.encode_png(pixels) if i == 3 else
                           tf.io.encode_jpeg(pixels, quality=60 + 10 * i, progressive=i == 1, chroma_downsampling=i != 2))
                path.write_bytes(encoded.numpy())
                paths.append(path)
        paths.sort(key=lambda path: (path.parent.name, path.name))
        listed = keras.utils.image_dataset_from_directory(str(self.folder), shuffle=False, batch_size=None, verbose=False)
        labels = [int(label) for _, label in listed]
        for way, method in (("exact", "INTEGER_ACCURATE"), ("fast", "")):
            ours = muster("images", self.folder, way)
            self.assertEqual([int(ours[f"label{i}"]) for i in range(len(paths))], labels)
            for i, path in enumerate(paths):
                with self.subTest(f"{way} {path.parent.name}/{path.name}"):
                    png = path.suffix == ".png"
                    theirs = (tf.io.decode_png(path.read_bytes(), channels=3) if png else
                              tf.io.decode_jpeg(path.read_bytes(), channels=3, dct_method=method)).numpy()
                    self.assertEqual(ours[f"image{i}"].shape, theirs.shape)
                    levels = np.abs(ours[f"image{i}"].astype(np.int64) - theirs.astype(np.int64)).max()
                    self.assertLessEqual(levels, 0 if png else 1)


class Layers(WithTensorFlow):
    LEARN = {"strings": ["oslo", "turin", "oslo", "bergen", "", "turin", "oslo", "ålesund", "x"],
             "ints": [5, 3, 5, -7, 2**40, 3, 5, 0, -1],
             "floats": [0.1, 5, -3, 2.5, 2.5, 7, 1e3, -20, 0.333, 12, 0.7, 3.1],
             "texts": ["The cat sat, on the mat!", "A cat. (a dog?)", "  tabs\tand more   spaces ", "It's Ünïcode -- Ä", "", "the the"]}
    GIVE = {"strings": ["oslo", "never seen", "turin", "", "[UNK]", "ålesund", "bergen"],
            "ints": [5, 4, 3, -7, 0, -1, 2**40], "floats": [-1, 0, 0.5, 10, 10.5, -50, 0.49, 1e9, 2.5],
            "texts": ["the dog sat", "", "THE, unknown: word", "it's a cat's ünïcode ä"]}
    CODES = [0, 4, 2, 2]

    def test_layers_give_what_those_of_keras_give(self):
        for name, values in {"learn": self.LEARN, "give": self.GIVE, "codes": {"ints": self.CODES}}.items():
            for kind, lines in values.items():
                text = "".join(f"{line}\n" for line in lines)
                (self.folder / f"{name}_{kind}.txt").write_text(text, encoding="utf-8")
        layers = keras.layers
        learn = {kind: np.array(values) if kind in ("ints", "floats") else tf.constant(values)
                 for kind, values in self.LEARN.items()}
        give = {kind: np.array(values) if kind in ("ints", "floats") else tf.constant(values)
                for kind, values in self.GIVE.items()}
        learn["floats"], give["floats"] = learn["floats"].astype(np.float32), give["floats"].astype(np.float32)
        codes = np.array(self.CODES)

        def adapted(layer, values):
            layer.adapt(values)
            return layer
        theirs = {
            "string_lookup": adapted(layers.StringLookup(), learn["strings"])(give["strings"]),
            "string_lookup of a vocabulary": layers.StringLookup(vocabulary=["oslo", "turin"])(give["strings"]),
            "string_lookup one_hot":
                layers.StringLookup(vocabulary=["oslo", "turin"], output_mode="one_hot")(give["strings"]),
            "integer_lookup": adapted(layers.IntegerLookup(), learn["ints"])(give["ints"]),
            "hashing of strings": layers.Hashing(10)(give["strings"]),
            "hashing of ints": layers.Hashing(10)(give["ints"]),
            "hashing with salt": layers.Hashing(10, salt=133)(give["strings"]),
            "hashing with mask": layers.Hashing(10, mask_value="oslo")(give["strings"]),
            "discretization": layers.Discretization([-1.0, 0.0, 0.5, 10.0])(give["floats"]),
            "discretization learned": adapted(layers.Discretization(num_bins=4), learn["floats"])(give["floats"]),
            "normalization": adapted(layers.Normalization(), learn["floats"][:, None])(give["floats"][:, None]),
            "category_encoding": layers.CategoryEncoding(num_tokens=5)(codes[:, None]),
            "category_encoding one_hot": layers.CategoryEncoding(num_tokens=5, output_mode="one_hot")(codes),
            "category_encoding count": layers.CategoryEncoding(num_tokens=5, output_mode="count")(codes[:, None]),
            "text_vectorization": adapted(layers.TextVectorization(), learn["texts"])(give["texts"]),
        }
        ours = muster("layers", self.folder)
        self.assertEqual(sorted(ours), sorted(theirs))
        for name, values in theirs.items():
            with self.subTest(name):
                self.expect_same(ours[name], values, name, tolerance=1e-5 if name == "normalization" else 0.0)


class EventsOfMuster(WithTensorFlow):
    def test_scalars_are_what_tensorboard_shows(self):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        muster("events", self.folder / "train")

        events = EventAccumulator(str(self.folder / "train")).Reload()

        self.assertEqual(sorted(events.Tags()["scalars"]), ["epoch_auc", "epoch_loss"])
        losses = [(event.step, event.value) for event in events.Scalars("epoch_loss")]
        self.assertEqual(losses, [(0, 1.0), (1, 0.5), (2, np.float32(1 / 3))])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
