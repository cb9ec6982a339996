#!/usr/bin/env python3
"""Checks the shape of muster/: who includes whom, how long files are, that a test sits beside its source."""
import pathlib
import re
import sys

# A folder may include itself and the folders named here.
MAY_INCLUDE = {
    "base": "",
    "graph": "base",
    "io": "base graph",
    "runtime": "base graph io",
    "trace": "base graph runtime",
    "collective": "base runtime near lines",
    "near": "base graph runtime",
    "lines": "base runtime near",
    "rpc": "base graph io runtime near lines",
    "session": "base graph trace runtime rpc",
    "cluster": "base graph io runtime trace rpc session data",
    "data": "base graph io runtime trace",
    "distribute": "base graph runtime trace collective rpc session cluster data",
    "train": "base graph runtime trace collective rpc session cluster data io distribute",
    "fit": "base graph runtime trace cluster data io distribute train",
}
WITHOUT_TORCH = {"base", "graph", "io"}
WITH_GRPC = {"rpc"}
# For users who have included <torch/torch.h> anyway: muster.h does without torch::nn, which takes seconds to compile.
OF_THEIR_OWN = {"muster/train/batch_norm.h", "muster/train/sync_batch_norm.h"}
# What muster.h must not lead to: how calls, clusters and coordinators work inside.
NOT_FOR_USERS = re.compile(r"muster/(rpc/(?!credentials/credentials\.h)|cluster/cluster_peers|session/local_master|distribute/coordinator/coordinator_core|.*\.pb\.h)")
MAX_HEADERS = {"base": 10}
MAX_FILES = 60  # of a folder or a room; what grows beyond gets another room
MAX_HEADER_LINES = 200
MAX_FILE_LINES = 600

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
TORCH = re.compile(r"(torch|ATen|c10|caffe2)/")
# The clock on the wall jumps. Nothing is timed by it; these show a date to somebody, or translate one that gRPC gave.
WALL_CLOCK = re.compile(r"system_clock|high_resolution_clock|absl::Now\(|gettimeofday|CLOCK_REALTIME|\btime\(nullptr\)|WaitWith(?:Timeout|Deadline)|AwaitWith")
MAY_SHOW_DATES = {"muster/base/log.cc", "muster/fit/tensorboard/event_file.cc", "muster/rpc/credentials/certificates.cc", "muster/rpc/credentials/certificates.h", "muster/rpc/rpc_server.cc"}
GRPC = re.compile(r"(grpc|grpcpp)/|.*\.grpc\.pb\.h$")


def complaints_about(path: pathlib.Path, text: str) -> list[str]:
    """What is wrong with one source file; `path` is relative to the root and starts with muster/."""
    found = []
    lines = text.count("\n")
    limit = MAX_HEADER_LINES if path.suffix == ".h" else MAX_FILE_LINES
    if lines > limit:
        found.append(f"has {lines} lines, the limit is {limit}")
    if WALL_CLOCK.search(text) and path.as_posix() not in MAY_SHOW_DATES and not path.name.endswith("_test.cc"):
        found.append("uses the clock on the wall, which jumps; time is measured by std::chrono::steady_clock")
    if len(path.parts) == 2:
        return found  # muster/muster.h stands above all folders.
    folder = path.parts[1]
    if folder not in MAY_INCLUDE:
        return found + [f'folder "{folder}" is not in the table of tests/layering.py']
    allowed = {folder, *MAY_INCLUDE[folder].split()}
    for quoted, angled in INCLUDE.findall(text):
        target = quoted or angled
        parts = target.split("/")
        if parts[0] == "muster":
            if angled:
                found.append(f"includes <{target}>; our own headers are in quotes")
            if len(parts) < 3:
                found.append(f'includes "{target}", which stands above all folders')
            elif parts[1] not in allowed:
                found.append(f'includes "{target}"; {folder} may include {" ".join(sorted(allowed))}')
        elif quoted:
            found.append(f'includes "{target}"; our own headers are named from the root, others are in <>')
        elif folder in WITHOUT_TORCH and TORCH.match(target):
            found.append(f"includes <{target}>; {folder} knows nothing of torch")
        elif folder not in WITH_GRPC and GRPC.match(target):
            found.append(f"includes <{target}>; only rpc knows gRPC")
    return found


def stems_tested_by(test: str) -> list[str]:
    """tracer_layers_test.cc tests tracer_layers, or tracer: a large test has a file per topic."""
    words = test.removesuffix("_test.cc").split("_")
    return ["_".join(words[:count]) for count in range(len(words), 0, -1)]


def installed_headers(root: pathlib.Path) -> set[str]:
    """What the FILE_SETs of the folders name, as it is included."""
    found = {"muster/muster.h"}
    for lists in (root / "muster").glob("*/CMakeLists.txt"):
        for names in re.findall(r"FILE_SET HEADERS FILES\s+([^)]*)\)", lists.read_text(encoding="utf-8")):
            found |= {f"muster/{lists.parent.name}/{name}" for name in names.split()}
    return found


def reached_headers(root: pathlib.Path, start: str = "muster/muster.h") -> set[str]:
    """What a program gets that includes `start`."""
    found, waiting = set(), [start]
    while waiting:
        header = waiting.pop()
        if header not in found:
            found.add(header)
            waiting += [quoted for quoted, _ in INCLUDE.findall((root / header).read_text(encoding="utf-8")) if quoted]
    return found


def check(root: pathlib.Path) -> list[str]:
    sources = sorted(path for path in (root / "muster").rglob("*") if path.suffix in {".h", ".cc"})
    found = []
    for path in sources:
        relative = path.relative_to(root)
        found += [f"{relative}: {words}" for words in complaints_about(relative, path.read_text(encoding="utf-8"))]
        if path.name.endswith("_test.cc"):
            beside = {other.name for other in path.parent.iterdir()}
            if not any(stem + end in beside for stem in stems_tested_by(path.name) for end in (".h", ".cc")):
                stem = path.name.removesuffix("_test.cc")
                found.append(f"{relative}: no {stem}.h or {stem}.cc beside it that it could be the test of")
    installed, reached = installed_headers(root), reached_headers(root)
    found += [f"{header}: muster.h needs it, and no FILE_SET installs it" for header in sorted(reached - installed)]
    found += [f"{header}: is installed, and muster.h does not need it" for header in sorted(installed - reached - OF_THEIR_OWN)]
    found += [f"{header}: muster.h needs it, which costs every program more than it is worth"
              for header in sorted(reached) if NOT_FOR_USERS.match(header)]
    for folder, limit in MAX_HEADERS.items():
        # Those of tests are nobody's interface.
        headers = sum(not header.name.startswith("test_") for header in (root / "muster" / folder).glob("*.h"))
        if headers > limit:
            found.append(f"muster/{folder}: has {headers} headers, the limit is {limit}")
    for folder in sorted({path.parent for path in sources}):
        files = sum(path.parent == folder for path in sources)
        if files > MAX_FILES:
            found.append(f"{folder.relative_to(root)}: has {files} files, the limit is {MAX_FILES}")
    if not sources:
        found.append("muster/: no sources")
    return found


if __name__ == "__main__":
    wrong = check(pathlib.Path(__file__).resolve().parent.parent)
    for line in wrong:
        print(line)
    if wrong:
        sys.exit(f"{len(wrong)} breaks of the layering")
    print("layering: all is in order")
