"""gRPC by hand, byte for byte, so that every byte can be wrong: HTTP/2 frames (RFC 9113), the envelope of muster/rpc/frame.h
and the messages of muster/rpc/rpc.proto."""
import pathlib
import re
import socket
import ssl
import struct
import time

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
MAX_CONCURRENT_STREAMS = 3  # a setting
UNAUTHENTICATED = 16
MAX_FRAME = 16384  # bytes of a payload, until a server allows more

NAMES = pathlib.Path(__file__).resolve().parent.parent / "muster/rpc/service_names.h"
METHODS = re.findall(r'"(/muster\.\w+/\w+)"', NAMES.read_text())


def frame(kind, flags=0, stream=0, payload=b"", length=None):
    """`length` is what the frame says of its payload, if that is to be a lie."""
    length = len(payload) if length is None else length
    return struct.pack(">I", length)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(headers):
    """Literals that are not indexed: the names and values as they are."""
    block = b""
    for name, value in headers:
        name, value = name.encode(), value.encode()
        block += b"\0" + integer(len(name), 7) + name + integer(len(value), 7) + value
    return block


def integer(value, bits):
    """As HPACK writes it, below `bits` bits of zeros."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    value -= most
    out = bytes([most])
    while value >= 128:
        out += bytes([value % 128 | 128])
        value //= 128
    return out + bytes([value])


def request_headers(method, token=None, timeout="10S", encoding=None):
    headers = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", "muster"), ("te", "trailers"),
               ("content-type", "application/grpc"), ("grpc-timeout", timeout)]
    if token is not None:
        headers.append(("authorization", "Bearer " + token))
    if encoding is not None:
        headers.append(("grpc-encoding", encoding))
    return header_block(headers)


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value >= 128:
        out += bytes([value % 128 | 128])
        value //= 128
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def fixed64(field, value):
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def text(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def envelope(header=b"", tensors=(), request=None, wanted=(), incarnation=0):
    """`tensors` as (dtype, sizes), `request` as (client, number)."""
    out = text(1, header)
    for dtype, sizes in tensors:
        out += text(2, number(1, dtype) + text(2, b"".join(varint(size) for size in sizes)))
    if request:
        out += number(4, request[1]) + fixed64(11, request[0]) + text(13, b"".join(varint(distance) for distance in wanted))
    if incarnation:
        out += fixed64(5, incarnation)
    return out


def message(envelope_bytes, tensor_bytes=b"", compressed=0, length=None, envelope_length=None):
    envelope_length = len(envelope_bytes) if envelope_length is None else envelope_length
    body = struct.pack("<I", envelope_length) + envelope_bytes + tensor_bytes
    return struct.pack(">BI", compressed, len(body) if length is None else length) + body


def fields(data):
    """The fields of a message as (number, value)."""
    def read_varint():
        nonlocal data
        value, shift = 0, 0
        while True:
            byte, data = data[0], data[1:]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while data:
        key = read_varint()
        if key & 7 == 0:
            value = read_varint()
        else:
            length = {1: 8, 5: 4}.get(key & 7) or read_varint()
            value, data = data[:length], data[length:]
        yield key >> 3, value


def header_of(answer):
    """The header in the message of an answer, or None if the answer is an error."""
    length = int.from_bytes(answer[5:9], "little")
    found = dict(fields(answer[9:9 + length]))
    return None if 3 in found else found.get(1, b"")


class Connection:
    """A connection to a server; with `context`, one inside TLS. `source` is the address that it comes from."""

    def __init__(self, address, context=None, source="127.0.0.1"):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30, source_address=(source, 0))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.unread = b""
        self.next_stream = 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        """False if the server does not listen any more."""
        try:
            self.socket.sendall(data)
            return True
        except OSError:
            return False

    def greet(self):
        # With a window that lets every answer through.
        settings = struct.pack(">HI", 4, (1 << 31) - 1)
        return self.send(PREFACE + frame(SETTINGS, payload=settings) +
                         frame(WINDOW_UPDATE, payload=struct.pack(">I", (1 << 31) - 1 - 65535)))

    def settled(self):
        """Waits for the server's settings, as clients of gRPC do before their first call: of what comes together with the end of
        a TLS handshake, gRPC's server keeps 17 KiB only."""
        return any(kind == SETTINGS and not flags & ACK for kind, flags, _, _ in self.frames())

    def call(self, method, message_bytes, **headers):
        """Sends a call and returns the number of its stream; does not wait."""
        stream = self.new_stream()
        self.send(frame(HEADERS, END_HEADERS, stream, request_headers(method, **headers)) +
                  frame(DATA, END_STREAM, stream, message_bytes))
        return stream

    def upload(self, method, size, **headers):
        """Makes a call whose message has `size` bytes, and sends as much of it as the server wants. Returns how much."""
        stream = self.new_stream()
        self.send(frame(HEADERS, END_HEADERS, stream, request_headers(method, **headers)) +
                  frame(DATA, 0, stream, struct.pack(">BI", 0, size)))
        sent, windows = 0, {0: 65535 - 5, stream: 65535 - 5}
        while sent < size:
            part = min(size - sent, MAX_FRAME, *windows.values())
            if part > 0:
                self.send(frame(DATA, END_STREAM if sent + part == size else 0, stream, bytes(part)))
                sent += part
                windows = {key: window - part for key, window in windows.items()}
            if part == 0 or sent % (1 << 20) < MAX_FRAME:
                for kind, flags, of, payload in self.frames(seconds=5 if part == 0 else 0.01):
                    if kind == SETTINGS and not flags & ACK:
                        for key, value in struct.iter_unpack(">HI", payload):
                            windows[stream] += value - 65535 if key == 4 else 0
                    if kind == WINDOW_UPDATE and of in windows:
                        windows[of] += struct.unpack(">I", payload)[0]
                    if of == stream and (kind == RST_STREAM or flags & END_STREAM):
                        return sent
                    if kind == WINDOW_UPDATE and min(windows.values()) > 0:
                        break
                else:
                    if part == 0:
                        return sent  # it wants no more
        return sent

    def new_stream(self):
        self.next_stream += 2
        return self.next_stream - 2

    def frames(self, seconds=30):
        """What comes from the server, as (kind, flags, stream, payload), until it closes or `seconds` have passed."""
        end = time.monotonic() + seconds
        while True:
            while len(self.unread) >= 9:
                length = int.from_bytes(self.unread[:3], "big")
                if len(self.unread) < 9 + length:
                    break
                kind, flags, stream = struct.unpack(">BBI", self.unread[3:9])
                payload, self.unread = self.unread[9:9 + length], self.unread[9 + length:]
                if kind == SETTINGS and not flags & ACK:
                    self.send(frame(SETTINGS, ACK))
                if kind == PING and not flags & ACK:
                    self.send(frame(PING, ACK, payload=payload))
                yield kind, flags, stream, payload
            if not (data := self.read(end - time.monotonic())):
                return
            self.unread += data

    def read(self, seconds):
        """Some bytes; none when the server has closed; None when nothing came."""
        if seconds <= 0:
            return None
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1 << 16)
        except (TimeoutError, ssl.SSLWantReadError):
            return None
        except OSError:
            return b""

    def closed(self, seconds=30):
        """Whether the server closes the connection in that time."""
        end = time.monotonic() + seconds
        while data := self.read(end - time.monotonic()):
            pass
        return data == b""

    def answers(self, streams, seconds=30, enough=None):
        """Waits for the ends of these streams, or of `enough` of them: {stream: (headers and trailers, message)} of those that
        ended."""
        streams, blocks, bodies = set(streams), {}, {}
        ended = set()
        if streams:
            for kind, flags, stream, payload in self.frames(seconds):
                if kind == HEADERS:
                    blocks[stream] = blocks.get(stream, b"") + payload
                if kind == DATA:
                    bodies[stream] = bodies.get(stream, b"") + payload
                if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
                    ended.add(stream)
                if len(streams & ended) >= (enough or len(streams)):
                    break
        return {stream: (blocks.get(stream, b""), bodies.get(stream, b"")) for stream in streams & ended}


def grpc_status(block):
    """The status in the first trailers of a connection: gRPC writes them as they are."""
    found = re.search(rb"grpc-status.(\d+)", block, re.DOTALL)
    return int(found[1]) if found else None
