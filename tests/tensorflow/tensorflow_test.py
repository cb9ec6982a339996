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
    """Events are read as TensorBoard's pages read them, and held against what tf.summary writes of the same values."""

    def setUp(self):
        super().setUp()
        muster("events", self.folder)

    def provider(self, folder):
        from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
        multiplexer = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(folder))
        multiplexer.Reload()
        return data_provider.MultiplexerDataProvider(multiplexer, str(folder))

    def values(self, kind, plugin, tag, folder=None, run="train"):
        """The values of a tag by step, as the pages of a plugin get them."""
        from tensorboard import context
        from tensorboard.data import provider
        found = getattr(self.provider(folder or self.folder), f"read_{kind}")(
            context.RequestContext(), experiment_id="", plugin_name=plugin, downsample=1000,
            run_tag_filter=provider.RunTagFilter(runs=[run], tags=[tag]))
        return found[run][tag]

    def theirs(self, write):
        folder = self.folder / "theirs"
        with tf.summary.create_file_writer(str(folder / "train")).as_default():
            write()
        return folder

    def test_scalars_are_what_tensorboard_shows(self):
        losses = [(point.step, point.value) for point in self.values("scalars", "scalars", "epoch_loss")]
        self.assertEqual(losses, [(0, 1.0), (1, 0.5), (2, np.float32(1 / 3))])

        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        tags = EventAccumulator(str(self.folder / "train")).Reload().Tags()
        self.assertEqual(sorted(tags["scalars"]), ["epoch_auc", "epoch_loss"])
        self.assertTrue(tags["graph"])

    def test_scalars_of_tensorflow_and_keras_are_read(self):
        def write():
            for step in range(3):
                tf.summary.scalar("rate", 0.1 * step, step=10 * step)
                tf.summary.histogram("spread", [1.0, 2.0], step=step)
        folder = self.theirs(write)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones((8, 1))
        history = model.fit(x, x, epochs=2, verbose=0, callbacks=[keras.callbacks.TensorBoard(str(folder / "keras"))])

        ours = muster("scalars", folder)

        self.expect_same(ours["train/rate"], np.array([[0, 10, 20], [0.0, 0.1, 0.2]], dtype=np.float32), "rate")
        self.expect_same(ours["keras/train/epoch_loss"],
                         np.array([[0, 1], history.history["loss"]], dtype=np.float32), "epoch_loss", tolerance=1e-6)

    def test_histograms_are_those_of_tf_summary(self):
        data = {"spread": np.sin(np.arange(1000) * 0.37), "one value": np.full(7, 0.25), "nothing": np.zeros(0)}

        def write():
            for tag, values in data.items():
                tf.summary.histogram(tag, values, step=4)
        folder = self.theirs(write)
        for tag in data:
            with self.subTest(tag):
                ours, = self.values("tensors", "histograms", tag)
                theirs, = self.values("tensors", "histograms", tag, folder)
                self.assertEqual((ours.step, ours.numpy.shape), (4, (30, 3)))
                self.assertEqual(ours.numpy[:, 2].tolist(), theirs.numpy[:, 2].tolist())
                np.testing.assert_allclose(ours.numpy, theirs.numpy, rtol=0, atol=1e-14)

    def test_images_are_those_of_tf_summary(self):
        data = {f"bytes{channels}": (np.arange(60 * channels) * 37 % 256).astype(np.uint8).reshape(2, 5, 6, channels)
                for channels in (1, 2, 3, 4)}
        data["floats"] = np.linspace(-0.5, 1.5, 24, dtype=np.float32).reshape(1, 4, 6, 1)

        def write():
            for tag, pixels in data.items():
                tf.summary.image(tag, pixels, step=1)
        folder = self.theirs(write)
        from tensorboard import context

        def pictures(folder, tag):
            data_provider = self.provider(folder)
            point, = self.values("blob_sequences", "images", tag, folder)
            return [data_provider.read_blob(context.RequestContext(), blob_key=value.blob_key) for value in point.values]
        for tag, pixels in data.items():
            with self.subTest(tag):
                ours, theirs = pictures(self.folder, tag), pictures(folder, tag)
                self.assertEqual(ours[:2], theirs[:2])
                self.assertEqual(len(ours), len(theirs))
                for our, their in zip(ours[2:], theirs[2:]):
                    channels = 0 if tag == "bytes2" else pixels.shape[3]
                    np.testing.assert_array_equal(tf.io.decode_png(our, channels), tf.io.decode_png(their, channels))

    def test_text_is_that_of_tf_summary(self):
        folder = self.theirs(lambda: tf.summary.text("notes", "# Größe\n*markdown*", step=3))
        ours, = self.values("tensors", "text", "notes")
        theirs, = self.values("tensors", "text", "notes", folder)
        self.assertEqual((ours.step, ours.numpy.shape, ours.numpy), (3, theirs.numpy.shape, theirs.numpy))

    def test_the_graph_is_one_that_tensorboard_draws(self):
        from tensorboard import context
        from tensorboard.plugins import base_plugin
        from tensorboard.plugins.graph import graphs_plugin
        plugin = graphs_plugin.GraphsPlugin(base_plugin.TBContext(data_provider=self.provider(self.folder)))

        text, kind = plugin.graph_impl(context.RequestContext(), "train", None, False, experiment="",
                                       limit_attr_size=1024, large_attrs_key="_too_large_attrs")

        self.assertEqual(kind, "text/x-protobuf")
        from google.protobuf import text_format
        from tensorboard.compat.proto import graph_pb2
        nodes = {node.name: node for node in text_format.Parse(text, graph_pb2.GraphDef()).node}
        self.assertEqual(sorted(nodes), ["arguments/0", "mm", "outputs/0", "outputs/1", "relu", "topk", "variables/w"])
        self.assertEqual((nodes["mm"].op, list(nodes["mm"].input)), ("aten::mm", ["arguments/0", "variables/w"]))
        self.assertEqual(list(nodes["outputs/1"].input), ["topk:1"])
        shape = nodes["arguments/0"].attr["_output_shapes"].list.shape[0]
        self.assertEqual([dim.size for dim in shape.dim], [4, 2])
        self.assertEqual(nodes["arguments/0"].attr["dtype"].type, tf.float32.as_datatype_enum)
        self.assertIn(b"k=2", nodes["topk"].attr["settings"].s)

    def hparams(self, folder):
        """The columns of the table of hyperparameters, its metrics and its rows."""
        from tensorboard import context
        from tensorboard.plugins import base_plugin
        from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups
        board = backend_context.Context(base_plugin.TBContext(data_provider=self.provider(folder)))
        request = context.RequestContext()
        experiment = get_experiment.Handler(request, board, "", api_pb2.GetExperimentRequest(include_metrics=True)).run()
        metrics = [api_pb2.ColParams(metric=metric.name) for metric in experiment.metric_infos]
        rows = list_session_groups.Handler(request, board, "", api_pb2.ListSessionGroupsRequest(
            start_index=0, slice_size=10, col_params=metrics, include_metrics=True,
            allowed_statuses=[api_pb2.STATUS_SUCCESS, api_pb2.STATUS_FAILURE, api_pb2.STATUS_UNKNOWN])).run()
        return experiment, rows.session_groups

    def test_hyperparameters_are_a_table(self):
        from tensorboard.plugins.hparams import api_pb2
        experiment, rows = self.hparams(self.folder / "tuning")

        self.assertEqual([(info.name, info.type) for info in experiment.hparam_infos],
                         [("augment", api_pb2.DATA_TYPE_BOOL), ("rate", api_pb2.DATA_TYPE_FLOAT64),
                          ("rule", api_pb2.DATA_TYPE_STRING)])
        self.assertEqual([value.string_value for value in experiment.hparam_infos[2].domain_discrete.values], ["sgd", "adam"])
        self.assertEqual([(info.name.group, info.name.tag) for info in experiment.metric_infos],
                         [("", "accuracy"), ("validation", "epoch_loss")])
        first, second = sorted(rows, key=lambda row: row.hparams["rate"].number_value)
        self.assertEqual((first.hparams["rule"].string_value, first.hparams["augment"].bool_value), ("sgd", True))
        self.assertEqual(first.sessions[0].status, api_pb2.STATUS_SUCCESS)
        self.assertEqual([(value.name.tag, value.value) for value in first.metric_values], [("accuracy", 0.5)])
        self.assertEqual(second.sessions[0].status, api_pb2.STATUS_FAILURE)
        self.assertEqual([(value.name.group, value.value) for value in second.metric_values], [("validation", 0.25)])

    def test_hyperparameters_of_a_session_alone_tell_the_columns(self):
        experiment, rows = self.hparams(self.folder / "tuning" / "first")

        self.assertEqual(sorted(info.name for info in experiment.hparam_infos), ["augment", "rate", "rule"])
        self.assertEqual([info.name.tag for info in experiment.metric_infos], ["accuracy"])
        self.assertEqual(len(rows), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
