"""A pool of four ranks through ctypes: a report of their loads, requests, a rank that fails, a rank
that leaves. Needs Python alone; EVENKEEL_LIBRARY may name the shared library's file."""

import ctypes
import os
from ctypes import byref, c_char, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p, sizeof

library = ctypes.CDLL(os.environ.get("EVENKEEL_LIBRARY", "libevenkeel.so.0"))
ALL = c_size_t(-1).value


def struct(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


WorkerConfig = struct("WorkerConfig", struct_size=c_size_t, weight=c_uint32, max_in_flight=c_uint32,
                      vetoes=c_uint32, fresh=c_uint32, label=c_char_p)
Load = struct("Load", worker=c_uint64, tokens=c_uint64, running=c_uint32, waiting=c_uint32, timestamp=c_uint64)
Request = struct("Request", struct_size=c_size_t, policy=c_uint32, tokens=c_uint64,
                 candidates=ctypes.POINTER(c_uint64), candidate_count=c_size_t,
                 excluded=ctypes.POINTER(c_uint64), excluded_count=c_size_t)
Ticket = struct("Ticket", worker=c_uint64, opaque=c_uint64)
WorkerStats = struct("WorkerStats", worker=c_uint64, key=c_uint64, state=c_uint32, vetoes=c_uint32,
                     weight=c_uint32, max_in_flight=c_uint32, in_flight=c_uint32, has_load=c_uint32,
                     finished=c_uint64, tokens=c_uint64, live_tokens=c_uint64, load_tokens=c_uint64,
                     load_running=c_uint32, load_waiting=c_uint32, load_timestamp=c_uint64,
                     load_age_ms=c_uint64, label=c_char * 256)
Totals = struct("Totals", workers=c_uint32, draining=c_uint32, in_flight=c_uint64, finished=c_uint64,
                abandoned=c_uint64, saturated=c_uint64, anomalies=c_uint64, rejected_loads=c_uint64,
                version=c_uint64)

library.ek_key.restype = c_uint64
library.ek_status_str.restype = c_char_p


class Error(Exception):
    pass


def ek(name, *arguments):
    """Calls a function that returns a status."""
    status = getattr(library, "ek_" + name)(*arguments)
    if status != 0:
        message = ctypes.create_string_buffer(512)
        library.ek_error_message(message, c_size_t(sizeof(message)))
        raise Error(f"{library.ek_status_str(c_int32(status)).decode()}: {message.value.decode()}")


def defaults(kind, name):
    """A struct with its size and all defaults."""
    made = kind()
    ek(name + "_init_sized", byref(made), c_size_t(sizeof(made)))
    return made


def main():
    pool, poll, picker = c_void_p(), c_void_p(), c_void_p()
    ek("pool_new", None, byref(pool))
    ranks = (c_uint64 * 4)()
    for rank, label in enumerate([b"10.0.0.1:30000@0", b"10.0.0.1:30000@1", b"10.0.0.2:30000@0", b"10.0.0.2:30000@1"]):
        config = defaults(WorkerConfig, "worker_config")
        config.label, config.max_in_flight = label, 256
        worker = c_uint64()
        ek("pool_add", pool, c_uint64(library.ek_key(label)), byref(config), byref(worker))
        ranks[rank] = worker.value

    # Ask the engines; what the pool counts meanwhile is credited on top of their answers.
    rejected = c_size_t()
    ek("poll_new", pool, None, c_size_t(ALL), byref(poll))
    ek("poll_begin", poll)
    loads = (Load * 4)(*(Load(worker=worker, tokens=100_000, running=10) for worker in ranks))
    ek("poll_publish", poll, loads, c_size_t(sizeof(Load)), c_size_t(4), byref(rejected))
    assert rejected.value == 0

    # One thread's choices. A ticket is kept with its response.
    ek("picker_new", pool, c_uint64(0), byref(picker))
    request, elsewhere = defaults(Request, "request"), defaults(Request, "request")
    request.tokens = elsewhere.tokens = 1200
    failed = (c_uint64 * 1)(ranks[3])
    elsewhere.excluded, elsewhere.excluded_count = failed, 1
    tickets, refused = [], False
    for _ in range(100):
        ticket = Ticket()
        ek("picker_dispatch", picker, byref(request), byref(ticket))
        if ticket.worker == ranks[3] and not refused:
            # It refuses one request: the next attempt goes elsewhere.
            refused = True
            ek("pool_finish", pool, byref(ticket))
            ek("picker_dispatch", picker, byref(elsewhere), byref(ticket))
        tickets.append(ticket)

    ek("pool_remove", pool, c_uint64(ranks[0]))  # No new requests; its last ones end as always.

    rows, count = (WorkerStats * 4)(), c_size_t()
    ek("pool_stats", pool, rows, c_size_t(sizeof(WorkerStats)), c_size_t(4), byref(count))
    assert count.value == 4
    print(f"{'worker':18} {'state':10} {'in flight':>9} {'tokens':>7} {'with poll':>9}")
    for row in rows:
        state = "active" if row.state == 1 else "draining"
        print(f"{row.label.decode():18} {state:10} {row.in_flight:9} {row.tokens:7} {row.live_tokens:9}")

    for ticket in tickets:
        ek("pool_finish", pool, byref(ticket))
    try:
        ek("pool_finish", pool, byref(tickets[0]))
        raise AssertionError("a ticket ends once")
    except Error as stale:
        print(f"a second end: {stale}")
    totals = Totals()
    ek("pool_totals_get", pool, byref(totals), c_size_t(sizeof(totals)))
    print(f"{totals.finished} finished, {totals.in_flight} in flight")
    assert (totals.workers, totals.draining) == (3, 0)
    assert (totals.finished, totals.in_flight, totals.anomalies) == (101, 0, 1)

    library.ek_picker_free(picker)
    library.ek_poll_free(poll)
    library.ek_pool_free(pool)


if __name__ == "__main__":
    main()
