"""Encrypted files: what comes out is what went in, for whoever has the key, or an error."""

import hashlib
import hmac
import io
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dovetail.encryption import (
    EncryptedWriter,
    EncryptionError,
    decoded,
    encoded,
    keep_encrypted,
    key_for,
    make_key_file,
    read_encrypted,
    read_key_file,
    vouch,
    vouched,
)
from dovetail.encryption.read_encrypted import HEAD, PIECE_BYTES, TAG_BYTES
from dovetail.errors import DovetailError

SIZES = (0, 1, 71, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 12345)


def some_bytes(size, seed=0):
    return np.random.default_rng(seed).bytes(size)


@pytest.fixture
def kept(tmp_path):
    """A folder that is kept encrypted."""
    folder = tmp_path / "kept"
    folder.mkdir()
    make_key_file(tmp_path / "a.key")
    keep_encrypted(folder, tmp_path / "a.key")
    yield folder
    keep_encrypted(folder, None)


@pytest.mark.parametrize("size", SIZES)
def test_what_comes_out_is_what_went_in(kept, size):
    data = some_bytes(size)

    held = encoded(kept / "x", data)

    assert decoded(kept / "x", held) == data
    assert len(held) == HEAD.size + size + TAG_BYTES * max(1, -(-size // PIECE_BYTES))


@pytest.mark.parametrize("size", SIZES)
def test_a_stream_written_in_pieces_of_any_size_is_the_same_file(kept, size):
    data, stream, random = some_bytes(size), io.BytesIO(), np.random.default_rng(size)
    writer = EncryptedWriter(stream, key_for(kept), "x")
    at = 0
    while at < size:
        step = int(random.integers(1, PIECE_BYTES // 3))
        writer.write(data[at : at + step])
        at += step
    writer.finish()

    assert decoded(kept / "x", stream.getvalue()) == data


def test_the_format_is_what_its_page_says(kept):
    # RFC 5869 by hand, AES-GCM by the library alone.
    data = some_bytes(PIECE_BYTES + 500)
    held = encoded(kept / "x", data)
    secret = bytes.fromhex((kept.parent / "a.key").read_text().split()[1])
    magic, known_by, salt, nonce, piece = struct.unpack_from("<16s8s32s12sI", held)

    def hkdf(salt, info, size):
        extracted = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
        return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()[:size]

    cipher = AESGCM(hkdf(salt, b"dovetail file", 32))
    first = held[72 : 72 + piece + 16]
    second_nonce = (int.from_bytes(nonce, "little") ^ 1).to_bytes(12, "little")

    assert magic == b"DOVETAIL-AES-1\n\n"
    assert known_by == hkdf(b"", b"dovetail key id", 8)
    assert cipher.decrypt(nonce, first, held[:72] + b"x" + struct.pack("<QB", 0, 0)) == data[:piece]
    last = held[72 + piece + 16 :]
    assert cipher.decrypt(second_nonce, last, held[:72] + b"x" + struct.pack("<QB", 1, 1)) == data[piece:]


def test_no_two_files_have_a_salt_or_a_nonce_in_common(kept):
    heads = [HEAD.unpack_from(encoded(kept / "x", b"the same")) for _ in range(200)]

    assert len({head[2] for head in heads}) == len({head[3] for head in heads}) == 200


def test_any_bit_that_is_another_is_found(kept):
    held = bytearray(encoded(kept / "x", some_bytes(300)))
    for place in range(len(held)):
        harmed = bytearray(held)
        harmed[place] ^= 1 << place % 8
        with pytest.raises((ValueError, EncryptionError)):
            decoded(kept / "x", harmed)


def test_pieces_left_out_doubled_swapped_or_of_another_file_are_found(kept):
    held, other = (encoded(kept / "x", some_bytes(3 * PIECE_BYTES, seed)) for seed in (0, 1))
    head, size = held[: HEAD.size], PIECE_BYTES + TAG_BYTES
    a, b, c = (held[HEAD.size + i * size : HEAD.size + (i + 1) * size] for i in range(3))

    for wrong in (
        head + a + b,
        head + a,
        head,
        head[:-1],
        head + a + c,
        head + b + a + c,
        head + a + b + b + c,
        head + a + b + c + c,
        held + b"x",
        held[:-1],
        other[: HEAD.size] + a + b + c,
        head + other[HEAD.size :],
    ):
        with pytest.raises((ValueError, EncryptionError)):
            decoded(kept / "x", wrong)
    assert decoded(kept / "x", head + a + b + c) == some_bytes(3 * PIECE_BYTES)


def test_a_file_in_the_place_of_another_is_refused(kept):
    held = encoded(kept / "dense-0.safetensors", b"mine")

    with pytest.raises(ValueError, match="another file was put in its place"):
        decoded(kept / "dense-1.safetensors", held)


def test_another_key_no_key_and_no_encryption_are_clear_errors(kept, tmp_path):
    path = kept / "x"
    held, plain = encoded(path, b"rows"), b"rows"
    make_key_file(tmp_path / "b.key")

    with pytest.raises(EncryptionError, match="written without a key"):
        decoded(path, plain)
    keep_encrypted(kept, tmp_path / "b.key")
    known_by = "the key [0-9a-f]{16}"
    with pytest.raises(EncryptionError, match=rf"written with {known_by}, and .*b\.key is {known_by}"):
        decoded(path, held)
    keep_encrypted(kept, None)
    with pytest.raises(EncryptionError, match="written with a key, and none is given") as caught:
        decoded(path, held)
    assert "--key-file" in caught.value.hint
    assert decoded(path, plain) is plain
    assert encoded(path, plain) is plain


def test_a_plain_file_is_vouched_for_by_whoever_has_the_key(kept, tmp_path):
    path = kept / "manifest.json"
    proof = vouch(path, b"step 5")

    vouched(path, b"step 5", proof)
    with pytest.raises(ValueError, match="not what was written"):
        vouched(path, b"step 6", proof)
    with pytest.raises(EncryptionError, match="without a key"):
        vouched(path, b"step 5", None)
    make_key_file(tmp_path / "b.key")
    keep_encrypted(kept, tmp_path / "b.key")
    with pytest.raises(EncryptionError, match="written with the key"):
        vouched(path, b"step 5", proof)
    keep_encrypted(kept, None)
    vouched(path, b"step 5", proof)
    assert vouch(path, b"step 5") is None


def test_a_key_is_its_owners_alone_and_never_written_over(tmp_path):
    path = tmp_path / "a.key"
    before = os.umask(0)
    try:
        known_by = make_key_file(path)
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_key_file(path).id.hex() == known_by
    whole = path.read_bytes()
    with pytest.raises(EncryptionError, match="is there already"):
        make_key_file(path)
    assert path.read_bytes() == whole
    for mode in (0o640, 0o604, 0o660, 0o601):
        path.chmod(mode)
        with pytest.raises(EncryptionError, match=f"has mode {mode:04o}, others may read it"):
            read_key_file(path)


@pytest.mark.parametrize(
    "content", [b"", b"dovetail-key-1 ", b"dovetail-key-1 " + b"0" * 62, b"0" * 64, b"\xff\xfe", b"x" * 100]
)
def test_what_is_no_key_is_refused_and_never_quoted(tmp_path, content):
    path = tmp_path / "a.key"
    path.write_bytes(content)
    path.chmod(0o600)

    with pytest.raises(DovetailError, match="is no key") as caught:
        read_key_file(path)
    assert not content.strip() or content.decode("latin1") not in str(caught.value)


def test_a_key_that_is_not_there_or_a_folder_is_refused(tmp_path):
    with pytest.raises(EncryptionError, match="No such file"):
        read_key_file(tmp_path / "none")
    with pytest.raises(EncryptionError, match="is no file"):
        read_key_file(tmp_path)


def test_folders_know_their_own_keys_and_the_nearest_counts(tmp_path):
    for name in "ab":
        make_key_file(tmp_path / f"{name}.key")
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "inner"
    keep_encrypted(outer, tmp_path / "a.key")
    keep_encrypted(inner, tmp_path / "b.key", given=False)
    keep_encrypted(outer, tmp_path / "b.key", given=False)  # what the user gave stays

    assert key_for(tmp_path) is None
    assert key_for(tmp_path / "outer-2" / "x") is None
    assert key_for(outer / "x" / "y").path.name == "a.key"
    assert key_for(inner / "x").path.name == "b.key"
    for folder in (outer, inner):
        keep_encrypted(folder, None)
    assert key_for(inner / "x") is None


@pytest.mark.processes
def test_the_program_beside_an_export_decrypts_without_dovetail(kept, tmp_path):
    data = some_bytes(PIECE_BYTES + 77)
    (kept / "model.pt2").write_bytes(encoded(kept / "model.pt2", data))
    program = tmp_path / "read_encrypted.py"
    program.write_bytes(Path(read_encrypted.__file__).read_bytes())
    make_key_file(tmp_path / "b.key")

    def run(key, out):
        paths = [program, tmp_path / key, kept / "model.pt2", tmp_path / out]
        command = [sys.executable, "-P", *map(str, paths)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert "dovetail." not in program.read_text().replace("`dovetail.", "")
    assert run("a.key", "out").returncode == 0
    assert (tmp_path / "out").read_bytes() == data
    wrong = run("b.key", "other")
    assert wrong.returncode == 1
    assert "encrypted with another key" in wrong.stderr
    assert not (tmp_path / "other").exists()
