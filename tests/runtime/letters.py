"""Letters that no process of a run would send: mutated bytes, and messages whose fields hold anything of their type."""

from __future__ import annotations

import types
import typing
from random import Random
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import numpy as np

from dovetail.runtime.messages import Message
from dovetail.transport import EnvelopeCodec
from dovetail.transport.envelope import PREFIX

CODEC = EnvelopeCodec(Message)
KINDS: tuple[Any, ...] = get_args(Message)
NOW = {"generation": 1, "step": 0, "version": 0}
"""What a run that has just begun stands at."""
NUMBERS = (0, 1, 2, 3, 5, 100, -1, -(2**31), 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1)
FLOATS = (0.0, 1.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
WORDS = (
    "",
    "worker-0",
    "worker-1",
    "server-0",
    "coordinator",
    "launcher",
    "..",
    "/etc",
    "a\nb",
    "ü" * 50,
    "\0",
    "x" * 3000,
)


def random_value(random: Random, kind: Any, own: str) -> Any:
    """Return anything of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is bool:
        return random.random() < 0.5
    if kind is int:
        return random.choice(NUMBERS) if random.random() < 0.2 else random.randrange(4)
    if kind is float:
        return random.choice(FLOATS) if random.random() < 0.3 else random.random()
    if kind is str:
        return own if random.random() < 0.4 else random.choice(WORDS)
    if kind is type(None):
        return None
    if origin is Literal:
        return random.choice(inner)
    if origin in (Union, types.UnionType):
        return random_value(random, random.choice(inner), own)
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return tuple(random_value(random, inner[0], own) for _ in range(random.randrange(4)))
        return tuple(random_value(random, each, own) for each in inner)
    if origin is dict:
        return {random_value(random, str, own): random_value(random, str, own) for _ in range(random.randrange(3))}
    return random_fields(random, kind, own)


def random_fields(random: Random, kind: Any, own: str) -> list[Any]:
    """Return the fields of a struct as they travel; they make sense by chance alone."""
    hints = typing.get_type_hints(kind)
    fields = {name: random_value(random, hints[name], own) for name in kind.__struct_fields__}
    if random.random() < 0.7:  # in its own name and of this moment, so that it gets past whoever looks at that alone
        fields |= {name: own for name in ("name", "worker") if name in fields}
        fields |= {name: NOW[name] for name in NOW if name in fields}
    if fields.get("most_samples") == 0:  # who has no memory for one sample is believed, and nobody can go on without it
        fields["most_samples"] = 1
    return list(fields.values())


def random_arrays(random: Random) -> list[np.ndarray[Any, Any]]:
    """Return arrays of any type and shape."""
    kinds = ("float32", "int64", "int32", "uint8", "bool")
    shapes = ((), (0,), (1,), (3,), (3, 1), (3, 4), (0, 4), (2, 2, 2))
    arrays = []
    for _ in range(random.choice((0, 0, 1, 2, 3))):
        shape = random.choice(shapes)
        numbers = [random.choice((0, 1, 2, 7)) for _ in range(int(np.prod(shape)))]
        array = np.array(numbers).reshape(shape).astype(random.choice(kinds))
        if array.dtype == np.float32 and array.size and random.random() < 0.2:
            array.flat[0] = random.choice((np.nan, np.inf))
        if array.dtype == np.int64 and array.size and random.random() < 0.3:
            array.flat[0] = random.choice((-1, 2**62, -(2**63)))
        arrays.append(array)
    return arrays


def mutated(random: Random, frames: list[bytes]) -> list[bytes]:
    """Return frames with some bytes or some frames otherwise."""
    frames = [bytes(frame) for frame in frames]
    for _ in range(random.randint(1, 3)):
        number = random.randrange(len(frames))
        frame = bytearray(frames[number])
        at = random.randint(0, len(frame))
        match random.choice(("set", "cut", "insert", "drop", "repeat", "swap")):
            case "set" if at < len(frame):
                frame[at] = random.randrange(256)
            case "cut":
                del frame[at:]
            case "insert":
                frame[at:at] = random.randbytes(random.randint(1, 9))
            case "drop" if len(frames) > 1:
                del frames[number]
                continue
            case "repeat":
                frames.append(bytes(frame))
            case "swap":
                random.shuffle(frames)
                continue
        frames[number] = bytes(frame)
    return frames


def random_letter(random: Random, own: str, kinds: tuple[Any, ...] = KINDS) -> list[bytes]:
    """Return the frames of an envelope."""
    kind, arrays = random.choice(kinds), random_arrays(random)
    claims = [[str(array.dtype), array.shape] for array in arrays]
    header = msgspec.msgpack.encode(
        [random.choice((0, 1, 7)), [kind.__name__, *random_fields(random, kind, own)], claims]
    )
    frames = [PREFIX + header, *(array.tobytes() for array in arrays)]
    return mutated(random, frames) if random.random() < 0.3 else frames
