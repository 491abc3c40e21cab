"""Files that the version before wrote: whatever classes are called today, they are read as they were meant."""

from __future__ import annotations

import base64
import zlib

import numpy as np

from dovetail.runtime.coordinator.journal import CommitLine, Journal
from dovetail.runtime.server.redo.records import Content, RecordKind
from dovetail.runtime.sites.exchange_log import Cuts, ExchangeLog

ROOT = "0123456789abcdef"
KEYS, ROWS = [3, 5, 8], [[0, 1], [2, 3], [4, 5]]
JOURNAL = """\
{"journal":"0123456789abcdef","lines":"0000000005"}
{"start":{"generation":2,"era":1,"step":40,"position":4000,"next_task":3,"tasks":[[2,3900,4000]],"holders":["worker-0"]},"sum":"37d0bce0cc3ca635"}
{"commit":{"step":40,"position":4100,"scale":0.01,"dense_scale":0.005,"factor":0.5},"sum":"995efc7e763010b5"}
{"ring":["worker-0","worker-1"],"sum":"65e19f4203470272"}
{"task":[3,4100,4200],"sum":"c4fafa1a67449ffa"}
{"done":2,"sum":"d75ae83a2c3d83cc"}
"""
REDO = (
    "eNpz8Q9zDXH09NENcnXx1zXkqlYqKs1TslIyMDQyNjE1M7ewTExKTklNU9JRKk4tKkstUrIy1FHKK82Nh3CLlayMdJRSixLB4mmZ"
    "RcUlSlYmBjpKBfnFmSWZ+XkgngGQn5daURJfklicrWQF5CVnpCZnF5fmAm0yS7RMTkwyTLZIMbQ0SjFIM09LMjZJNDUwSjGzSEs2"
    "S1WqVRgFo2AUUANwGbAxgIHeTvtmEA3K9ixAWoMBFShA6fV/j15QUX3A1tzTJ7/jhIwWSCz7kvcPfiA9qXFxYk7O4YmTFtukmUxk"
    "gmm1B2GQuYxI5sJkC6B0Dc+SxcYT2JaeLLu5/lZr1yaQWPQxzmgDkLnNy0oSk3JSiycyLE1JzStOPbw0L78ot/jQZKBNmRYTmcEW"
    "TmJmQrKYGWouK5TmQPFNA8hNDkAExA1AvMABItYAdicTFnc6QOkremZTNcTX3H1++W6klH+zH9jtf7lbzcHuXFqcnJiTetq+peqh"
    "+zqR6tVg18ZDBUsggsvSEpNL8otO2z+AmDiBARbuIDezo4V7A5T+8sLm50LdpfnbHX/KXRBp3QASe6fYxeUBsrcVZi/USLgVH6B8"
    "1OA7BA2+SWjBR064AQCX3yLo"
)
EXCHANGE = (
    "eNqzZoAAl7AQH8YpDFNWuFYkZyTmpacyTpzOyCR3llGH4xDTpEkMDJOY5CZNWlqamVdiMZF50vK0nPzEEmOjSUxMB5ihRjAwMgnA"
    "mAwN9sgYAFKCF8E="
)


def bytes_of(text):
    return zlib.decompress(base64.b64decode(text))


def test_a_journal_leads_where_it_led(tmp_path):
    (tmp_path / "journal.jsonl").write_text(JOURNAL)
    journal = Journal(tmp_path, root=ROOT)
    past = journal.past()
    journal.close()

    assert past.commit == CommitLine(step=40, position=4100, scale=0.01, dense_scale=0.005, factor=0.5)
    assert (past.start.generation, past.start.era, past.step, past.position) == (2, 1, 41, 4200)
    assert (past.next_task, past.tasks, past.holders) == (4, {3: (3, 4100, 4200)}, ("worker-0", "worker-1"))


def test_a_journal_that_goes_on_keeps_what_was_there(tmp_path):
    (tmp_path / "journal.jsonl").write_text(JOURNAL)
    Journal(tmp_path, root=ROOT).close()

    assert (tmp_path / "journal.jsonl").read_text() == JOURNAL


def test_a_redo_log_holds_what_was_written(tmp_path):
    path = tmp_path / "e000001-v0000000040.redo"
    path.write_bytes(bytes_of(REDO))
    content = Content(path)
    kept_back, sums, commit, task = content.records()

    assert (content.facts.run, content.facts.server, content.facts.num_servers) == (ROOT, 1, 2)
    assert (content.facts.era, content.facts.first, content.facts.position) == (1, 40, 4000)
    kinds = [RecordKind.KEPT_BACK, RecordKind.SUMS, RecordKind.COMMIT, RecordKind.TASK]
    assert [each.kind for each in (kept_back, sums, commit, task)] == kinds
    assert [each.number for each in (kept_back, sums, commit, task)] == [40, 40, 40, 7]
    assert kept_back.details == {"all": True}
    assert commit.details == {"scale": 0.01, "dense_scale": 0.005, "factor": 0.5}
    assert sums.details == {"tables": [0], "dense": True, "norms": False}
    np.testing.assert_array_equal(kept_back.arrays[0], np.full(2, 0.5, np.float32))
    for record in (sums, task):
        np.testing.assert_array_equal(record.arrays[0], KEYS)
        np.testing.assert_array_equal(record.arrays[1], ROWS)
    assert content.size == path.stat().st_size


def test_an_exchange_between_sites_and_the_cuts_of_rounds_are_read(tmp_path):
    (tmp_path / "exchange-00000001").write_bytes(bytes_of(EXCHANGE))
    (tmp_path / "cuts.jsonl").write_text("[1,2,30,300,8,false,2]\n")
    exchange, arrays = ExchangeLog(tmp_path).read(1)
    (head,) = exchange.rounds

    assert (exchange.number, exchange.so_far) == (1, ((0, 0), (2, 30)))
    assert (head.site, head.round, head.step, head.samples, head.bits, head.num_arrays) == (1, 2, 30, 300, 8, 2)
    np.testing.assert_array_equal(arrays[0], [0, 1, 2])
    np.testing.assert_array_equal(arrays[1], np.ones((2, 2)))
    assert Cuts(tmp_path).heads == {2: head}
