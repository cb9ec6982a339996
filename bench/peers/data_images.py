"""data_images: pictures per second that tf.data reads, decodes, crops and batches; one and two threads.

5,000 JPEG files of 256 x 256, of which the 224 x 224 in the middle are decoded, in batches of 64: what `muster bench data_images` does
with the same pictures. Usage: data_images.py [THREADS], in the directory of the peers' scripts for TensorFlow, whose common.py it uses
(bench/compare does so)."""
import os
import sys
import tempfile

sys.path.insert(0, os.getcwd())
import common  # noqa: E402

PICTURES, BATCH, CLASSES, SIDE, CROP = 5_000, 64, 10, 256, 224


def picture(number):
    import numpy as np
    at = np.arange(SIDE, dtype=np.uint32)
    y, x, channel = at[:, None, None], at[None, :, None], np.arange(3, dtype=np.uint32)

    def wave(position):
        return np.abs((position % 256).astype(np.int64) - 128)
    with np.errstate(over="ignore"):
        noise = (x * np.uint32(374761393) + y * np.uint32(668265263)
                 + (np.uint32(3 * number) + channel) * np.uint32(2246822519))
        noise = (noise ^ (noise >> np.uint32(13))) * np.uint32(1274126177)
    waves = wave(x * (1 + number % 3) + 40 * channel) + wave(y * (1 + number % 5) + 3 * number)
    return (waves * 7 // 8 + (noise >> np.uint32(28))).astype(np.uint8)


def write(folder):
    import tensorflow as tf
    paths, labels = [], []
    for number in range(PICTURES):
        inside = os.path.join(folder, "class%d" % (number % CLASSES))
        os.makedirs(inside, exist_ok=True)
        paths.append(os.path.join(inside, "%d.jpg" % number))
        labels.append(number % CLASSES)
        with open(paths[-1], "wb") as out:
            out.write(tf.io.encode_jpeg(picture(number), quality=90).numpy())
    return paths, labels


def main(threads):
    common.time_limit(600)
    import tensorflow as tf
    common.quiet(tf)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        edge = (SIDE - CROP) // 2

        def decoded(path, label):
            return tf.image.decode_and_crop_jpeg(tf.io.read_file(path), [edge, edge, CROP, CROP], channels=3), label

        dataset = (tf.data.Dataset.from_tensor_slices(write(folder)).map(decoded, num_parallel_calls=threads)
                   .batch(BATCH).prefetch(2).with_options(options))

        def drain():
            for _ in dataset:
                pass
        common.emit("data_images", "%dthreads" % threads, common.best_rate(drain, PICTURES), "examples/s")


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or [1, 2]):
        main(count)
