"""Files of knothole, changed at random: as bytes, or part by part and packed again.

An input is a number: the same one makes the same file in every process.
"""

import io
import json
import zipfile
from copy import deepcopy

import numpy as np

HEADER = "header.json.npy"
#: What numbers become.
EXTREMES = [0, -1, 1, 0.5, -0.0, 1e308, -1e308, 5e-324, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1]
EXTREMES += [float("nan"), float("inf"), float("-inf")]
#: What else may stand in a header.
STRANGE = [None, True, False, "", "é" * 50, [], {}, [[]], {"a": 1}, "gaussian", "categorical"]


def rng_of(number):
    return np.random.default_rng([14, number])


def raw(data, number):
    """Some bytes changed, cut out, doubled or put in."""
    rng = rng_of(number)
    data = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        at, length = int(rng.integers(len(data) + 1)), int(rng.integers(1, 64))
        kind = rng.integers(5)
        if kind == 0:
            data[at : at + 1] = bytes([int(rng.integers(256))])
        elif kind == 1:
            data[at : at + length] = b""
        elif kind == 2:
            data[at:at] = data[at : at + length]
        elif kind == 3:
            data[at : at + length] = rng.bytes(length)
        elif data:
            data[-at:] = b""
    return bytes(data)


def repacked(data, number):
    """Some arrays or entries of the header changed, the rest as it was."""
    rng = rng_of(number)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: np.load(io.BytesIO(archive.read(name))) for name in archive.namelist()}
    for _ in range(rng.integers(1, 4)):
        name = list(parts)[rng.integers(len(parts))]
        if rng.random() < 0.4 or name == HEADER:
            changed = text(parts[HEADER].tobytes().decode(), int(rng.integers(2**31)))
            parts[HEADER] = np.frombuffer(changed.encode(), dtype=np.uint8)
        elif rng.random() < 0.05:
            parts.pop(name)
        else:
            parts[name] = array(parts[name], rng)
        if HEADER not in parts:
            break
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            member = io.BytesIO()
            np.save(member, part)
            archive.writestr(name, member.getvalue())
    return out.getvalue()


def array(given, rng):
    """An array with other numbers, another shape, order or type."""
    kind = rng.integers(7)
    if kind == 0 and given.size and given.dtype.kind in "iufb":
        out = given.copy()
        flat = out.reshape(-1)
        with np.errstate(all="ignore"):
            for at in rng.integers(given.size, size=rng.integers(1, 4)):
                flat[at] = np.array(EXTREMES[rng.integers(len(EXTREMES))]).astype(out.dtype)
        return out
    if kind == 1 and given.ndim:
        return np.resize(given, (int(rng.integers(0, 2 * len(given) + 2)), *given.shape[1:]))
    if kind == 2 and given.ndim > 1:
        return np.resize(given, (given.shape[0], int(rng.integers(0, 2 * given.shape[1] + 2))))
    if kind == 3:
        return given[None] if rng.random() < 0.5 else given.reshape(-1)
    if kind == 4 and given.dtype.kind in "iufb":
        types = [np.float32, np.int8, np.int64, np.uint64, np.bool_, ">f8", np.complex128, "U3"]
        with np.errstate(all="ignore"):
            return np.nan_to_num(given).astype(types[rng.integers(len(types))])
    if kind == 5 and given.ndim:
        return given[::-1]
    return rng.permutation(given.reshape(-1)).reshape(given.shape)


def text(document, number):
    """JSON with some entries changed, gone, doubled or moved."""
    rng = rng_of(number)
    value = json.loads(document)
    for _ in range(rng.integers(1, 4)):
        place = value
        while True:
            keys = list(place) if isinstance(place, dict) else range(len(place))
            if not keys:
                break
            key = keys[rng.integers(len(keys))]
            inner = place[key]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
                place = inner
                continue
            kind = rng.integers(4)
            if kind == 0:
                place.pop(key)
            elif kind == 1 and isinstance(place, list):
                place.insert(key, inner)
            elif kind == 2:
                place[key] = deepcopy(STRANGE[rng.integers(len(STRANGE))])
            else:
                place[key] = EXTREMES[rng.integers(len(EXTREMES))]
            break
    return json.dumps(value)
