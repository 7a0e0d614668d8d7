"""The one message that kubectl sends as protobuf: a SelfSubjectAccessReview.  Pure."""

from __future__ import annotations

from kube.http_server import Json

MAGIC = b"k8s\0"
"""What begins every object in protobuf."""

# Numbers of fields, from k8s.io/api/authorization/v1/generated.proto and apimachinery/pkg/runtime/generated.proto.
RAW, SPEC, ATTRIBUTES = 2, 2, 1
NAMES = {1: "namespace", 2: "verb", 3: "group", 4: "version", 5: "resource", 6: "subresource", 7: "name"}


def access_review(body: bytes) -> Json:
    """The review as it would be in JSON."""
    review = _fields(_fields(body[len(MAGIC) :])[RAW])
    attributes = _fields(_fields(review[SPEC]).get(ATTRIBUTES, b""))
    found = {NAMES[number]: text.decode() for number, text in attributes.items() if number in NAMES}
    return {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": {"resourceAttributes": found},
    }


def _fields(data: bytes) -> dict[int, bytes]:
    """The fields of a message that have a length: strings, bytes and messages."""
    found: dict[int, bytes] = {}
    position = 0
    while position < len(data):
        key, position = _number(data, position)
        size, position = _number(data, position)
        if key & 7 == 2:
            found[key >> 3] = data[position : position + size]
            position += size
    return found


def _number(data: bytes, position: int) -> tuple[int, int]:
    """A varint, and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, position
