"""Files that only those can read who have a key: rows, parameters and data as they lie on disks.

`key_file` makes and reads keys, `folders` knows which folders of this process are kept encrypted and with which key,
`files` writes and reads what lies in them, and `read_encrypted` is the format: a program of its own, which goes with
exported models. The package `cryptography` is loaded only where a folder is kept encrypted.
"""

from dovetail.encryption.errors import EncryptionError
from dovetail.encryption.files import (
    EncryptedWriter,
    check_same_key,
    decoded,
    encoded,
    encrypted,
    is_encrypted,
    key_id_of,
    read_file,
    vouch,
    vouched,
)
from dovetail.encryption.folders import keep_encrypted, key_file_of, key_for
from dovetail.encryption.key_file import Key, make_key_file, read_key_file

__all__ = [
    "EncryptedWriter",
    "EncryptionError",
    "Key",
    "check_same_key",
    "decoded",
    "encoded",
    "encrypted",
    "is_encrypted",
    "keep_encrypted",
    "key_file_of",
    "key_for",
    "key_id_of",
    "make_key_file",
    "read_file",
    "read_key_file",
    "vouch",
    "vouched",
]
