"""Everything goes wrong while 140 clients ask; no client may meet an error that is not an engine's own."""

import signal
import sys
import tempfile
import time

from processes import Bars, Engines, LOGNORMAL, Process, ended, route, start_load

SHORT = "--short" in sys.argv
SECONDS = 20 if SHORT else 60
HANG = 8 if SHORT else 30


def settings(engines, dp_sizes):
    lines = [f'  "{engine.url},dp_size={dp_size}",' for engine, dp_size in zip(engines, dp_sizes)]
    return "engine = [\n" + "\n".join(lines) + "\n]\n"


def write(file, text):
    file.seek(0)
    file.truncate()
    file.write(text)
    file.flush()


bars = Bars()
with Engines(8, 2) as engines, tempfile.NamedTemporaryFile("w", suffix=".toml") as file, \
        tempfile.NamedTemporaryFile("r", suffix=".log") as log:
    write(file, settings(engines, [2] * 8))
    with route("--config", file.name, "--poll-timeout", "2s", "--response-timeout", f"{HANG + 30}s",
               log=log.name) as router:
        for engine in engines:
            engine.control(break_probability=0.01)
        started = time.monotonic()

        def at(share):
            time.sleep(max(0, started + share * SECONDS - time.monotonic()))

        # Engines that die lose their reports: clients and the router are judged, not the spread.
        client = start_load(router.url, "--duration", f"{SECONDS}s", "--warm-up", "0s", "--leave", "0.05")
        at(0.1)
        print(f"engine 2 hangs for {HANG} s", file=sys.stderr)
        engines[1].process.send_signal(signal.SIGSTOP)
        resumes = time.monotonic() + HANG
        at(0.2)
        print("engine 1 is killed", file=sys.stderr)
        address = engines[0].url.removeprefix("http://")
        engines[0].end()
        at(0.35)
        print("engine 1 comes back", file=sys.stderr)
        engines[0] = Process("mock-engine", "--dp-size", "2", "--listen", address, *LOGNORMAL)
        engines[0].control(break_probability=0.01)
        at(0.45)
        print("engine 3 goes to one rank, by a reload", file=sys.stderr)
        write(file, settings(engines, [2, 2, 1] + [2] * 5))
        router.process.send_signal(signal.SIGHUP)
        time.sleep(max(0, resumes - time.monotonic()))
        print("engine 2 goes on", file=sys.stderr)
        engines[1].process.send_signal(signal.SIGCONT)
        at(0.9)
        print("engine 3 has two again", file=sys.stderr)
        write(file, settings(engines, [2] * 8))
        router.process.send_signal(signal.SIGHUP)
        figures = ended(client)
        # What the router finishes a little after its clients have left.
        for _ in range(100):
            status = router.get("/evenkeel/status")
            pool = status["pools"]["engines"]
            if pool["in_flight"] == 0 and pool["draining"] == 0:
                break
            time.sleep(0.1)
        outstanding = sum(rank["outstanding"] for engine in engines for rank in engine.get("/control/report")["ranks"])
        log_text = log.read()

workers = pool["workers"]
print(f"{figures['requests']} requests, {figures['finished']} finished, {figures['left']} clients left, "
      f"errors {figures['errors']}; router: {status['totals']}")
bars.hold(set(figures["errors"]) <= {"broken"}, f"errors that are not an engine's own: {figures['errors']}")
bars.hold(figures["errors"].get("broken", 0) > 0, "nothing broke off: nothing was tested")
bars.hold(figures["left"] > 0, "no client left: nothing was tested")
bars.hold(len(workers) == 16 and all(not worker["vetoes"] for worker in workers), "not all workers are back")
bars.hold(pool["in_flight"] == 0 and all(worker["in_flight"] == 0 for worker in workers), "counts are left")
bars.hold(pool["anomalies"] == 0, f"{pool['anomalies']} anomalies")
bars.hold(outstanding == 0, f"{outstanding} requests are left at the engines")
bars.hold("stays as it was" not in log_text, "a reload was refused")
if bars.missed:
    print(log_text[-3000:])
bars.exit()
