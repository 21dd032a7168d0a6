"""Files changed at random: as bytes, or part by part and packed again.

An input is a number: the same one makes the same file in every process.
"""

import io
import json
import re
import struct
import zipfile
from copy import deepcopy

import numpy as np

from knothole.trees.readers import ubjson

HEADER = "header.json.npy"
#: What numbers become.
EXTREMES = [0, -1, 1, 0.5, -0.0, 1e308, -1e308, 5e-324, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1]
EXTREMES += [float("nan"), float("inf"), float("-inf")]
#: What else may stand in a header.
STRANGE = [None, True, False, "", "é" * 50, [], {}, [[]], {"a": 1}, "gaussian", "categorical"]
#: Words of a binary file, and the types of numbers in another.
WORDS = [0, 1, 2, 3, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 4, 0x7FC00000, 0x7F7FFFFF]
UBJ_TYPES = {"|u1": b"U", "|i1": b"i", ">i2": b"I", ">i4": b"l", ">i8": b"L"}
UBJ_TYPES |= {">f4": b"d", ">f8": b"D"}


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


def changed_parts(data, other):
    """Parts of a container that another one has otherwise.

    A part is an entry of the header, or all arrays of one prefix; the format, the version and
    what is in neither are "header".
    """
    found = []
    for content in (data, other):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        header = json.loads(np.load(io.BytesIO(members.pop(HEADER))).tobytes())
        entries = {("entry", name): json.dumps(value) for name, value in header.items()}
        found.append(entries | {("array", name): value for name, value in members.items()})
    first, second = found
    names = {"parts": "correction", "correction": "tables", "selection": "tables"}
    names |= {"priors": "tables", "refit": "tables", "model": "tables"}
    names |= {"format": "header", "version": "header"}

    def part(key):
        kind, name = key
        return names.get(name, name) if kind == "entry" else name.partition(".")[0]

    return {part(key) for key in first.keys() | second.keys() if first.get(key) != second.get(key)}


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
    return given.reshape(-1)[rng.permutation(given.size)].reshape(given.shape)


def text(document, number):
    """JSON with some entries changed, gone, doubled or moved; the odd key comes twice."""
    rng = rng_of(number)
    value = json.loads(document)
    entries(value, rng)
    made = json.dumps(value)
    if rng.random() < 0.05 and (keys := re.findall(r'"\w+": ', made)):
        key = keys[rng.integers(len(keys))]
        made = made.replace(key, f"{key}{rng.integers(-3, 3)}, {key}", 1)
    return made


def entries(value, rng):
    """Change some entries of lists and dicts in place; at every depth as likely, or everywhere."""
    for _ in range(rng.integers(1, 4)):
        places = list(places_in(value))
        if rng.random() < 0.5:
            depths = sorted({depth for depth, _, _ in places})
            depth = depths[rng.integers(len(depths))] if depths else 0
            places = [place for place in places if place[0] == depth]
        if not places:
            return
        _, place, key = places[rng.integers(len(places))]
        inner, kind = place[key], rng.integers(6)
        if isinstance(inner, np.ndarray) and kind:
            place[key] = array(inner, rng)
        elif kind == 0:
            place.pop(key)
        elif kind == 1 and isinstance(place, list):
            place.insert(key, inner)
        elif kind == 2:
            place[key] = deepcopy(STRANGE[rng.integers(len(STRANGE))])
        elif kind == 3:  # what stands elsewhere
            _, other, name = places[rng.integers(len(places))]
            place[key] = deepcopy(other[name])
        elif kind == 4 and isinstance(inner, int | float):
            place[key] = inner + int(rng.integers(-2, 3))
        else:
            number = EXTREMES[rng.integers(len(EXTREMES))]
            # Some libraries write numbers in quotes.
            place[key] = str(number) if isinstance(inner, str) else number


def places_in(value, depth=0):
    """Where each entry of a document is: depth, what holds it, and its key there."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield depth, value, key
        if isinstance(value[key], dict | list):
            yield from places_in(value[key], depth + 1)


def ubj(data, number):
    """The same of Universal Binary JSON."""
    rng = rng_of(number)
    value = ubjson.parse(data)
    entries(value, rng)
    return in_ubj(value)


def in_ubj(value):
    """A document as XGBoost writes it: arrays of numbers with their type and length before them."""
    if isinstance(value, np.ndarray):
        if value.ndim == 1 and (mark := UBJ_TYPES.get(value.dtype.newbyteorder(">").str)):
            big = value.astype(value.dtype.newbyteorder(">"))
            return b"[$" + mark + b"#L" + struct.pack(">q", len(big)) + big.tobytes()
        return in_ubj(value.tolist())
    if isinstance(value, dict):
        return b"{" + b"".join(in_ubj(key)[1:] + in_ubj(value[key]) for key in value) + b"}"
    if isinstance(value, list):
        return b"[" + b"".join(map(in_ubj, value)) + b"]"
    if isinstance(value, str):
        return b"SL" + struct.pack(">q", len(value.encode())) + value.encode()
    if value is None or isinstance(value, bool):
        return {None: b"Z", True: b"T", False: b"F"}[value]
    if isinstance(value, int):
        return b"L" + struct.pack(">q", min(value, 2**63 - 1))
    return b"D" + struct.pack(">d", value) if isinstance(value, float) else b"Z"


def lines(data, number):
    """Lines of ``key=values`` with other values, more or fewer; lines gone, doubled, exchanged."""
    rng = rng_of(number)
    found = data.decode().split("\n")
    used = found.index("end of trees") + 1 if "end of trees" in found else len(found)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(min(used, len(found))))
        kind = rng.integers(10)
        if kind == 0:
            found.pop(at)
        elif kind == 1:
            found.insert(at, found[rng.integers(len(found))])
        else:
            key, _, values = found[at].partition("=")
            parts = values.split(" ")
            place = int(rng.integers(len(parts)))
            others = [str(EXTREMES[rng.integers(len(EXTREMES))]), *parts, "", "x"]
            other = others[0] if kind < 6 else others[rng.integers(len(others))]
            if kind == 9:
                parts[place:] = (
                    parts[place + 1 :] if rng.random() < 0.5 else [other, *parts[place:]]
                )
            else:
                parts[place] = other
            found[at] = f"{key}={' '.join(parts)}"
    made = "\n".join(found)
    begins = [match.start() for match in re.finditer("^Tree=|^end of trees", made, re.MULTILINE)]
    if rng.random() < 0.8:  # as a program that edits files would leave them
        sizes = " ".join(map(str, np.diff(begins)))
        made = re.sub("^tree_sizes=.*$", f"tree_sizes={sizes}", made, flags=re.MULTILINE)
    return made


def words(data, number):
    """Words of four bytes replaced, where bytes are no text."""
    rng = rng_of(number)
    data = bytearray(data[: len(data) // 4 * 4]) + data[len(data) // 4 * 4 :]
    letters = np.frombuffer(data, np.uint8)[: len(data) // 4 * 4].reshape(-1, 4)
    numeric = np.flatnonzero(((letters < 9) | (letters > 126)).any(axis=1))
    for _ in range(rng.integers(1, 4)):
        at = 4 * int(numeric[rng.integers(len(numeric))])
        if rng.random() < 0.3:
            low, high = sorted(4 * numeric[rng.integers(len(numeric), size=2)])
            word = (
                bytes(data[low : low + 4]) if rng.random() < 0.5 else bytes(data[high : high + 4])
            )
        elif rng.random() < 0.5:
            word = struct.pack("<f", np.float32(EXTREMES[rng.integers(5)]))
        else:
            word = struct.pack("<I", WORDS[rng.integers(len(WORDS))])
        data[at : at + 4] = word
    return bytes(data)
