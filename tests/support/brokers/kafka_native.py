"""Records that the Python producer cannot write, written through the client's C library."""

import ctypes
from pathlib import Path

_TOPIC, _VALUE, _FLAGS, _HEADERS, _END = map(ctypes.c_int, (1, 4, 7, 10, 0))
_COPY = ctypes.c_int(2)
_WAIT = 30_000


def put(address: str, topic: str, value: bytes, header: bytes) -> None:
    """Write a record with a header of this name, whatever its bytes are."""
    kafka = _library()
    settings = ctypes.c_void_p(kafka.rd_kafka_conf_new())
    kafka.rd_kafka_conf_set(settings, b"bootstrap.servers", address.encode(), None, 0)
    producer = ctypes.c_void_p(kafka.rd_kafka_new(0, settings, None, ctypes.c_size_t(0)))
    headers = ctypes.c_void_p(kafka.rd_kafka_headers_new(ctypes.c_size_t(1)))
    kafka.rd_kafka_header_add(headers, header, ctypes.c_ssize_t(len(header)), b"", ctypes.c_ssize_t(0))
    size = ctypes.c_size_t(len(value))
    what = [_TOPIC, topic.encode(), _VALUE, value, size, _FLAGS, _COPY, _HEADERS, headers, _END]
    errors = [kafka.rd_kafka_producev(producer, *what), kafka.rd_kafka_flush(producer, _WAIT)]
    kafka.rd_kafka_destroy(producer)
    if any(errors):
        raise RuntimeError(f"not written: {errors}")


def _library() -> ctypes.CDLL:
    """The library that confluent-kafka has loaded; its wheels give it a name of their own."""
    loaded = (line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines())
    library = ctypes.CDLL(next(path for path in loaded if "librdkafka" in path))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, name).restype = ctypes.c_void_p
    return library
