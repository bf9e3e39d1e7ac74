"""Load with leaving clients and breaking engines for a long time: the router's memory and descriptors stay."""

import os
import sys
import time

from processes import Bars, Engines, ended, route, start_load, table

SHORT = "--short" in sys.argv
minutes = [float(word) for word in sys.argv[1:] if word != "--short"]
SECONDS = 20 if SHORT else 60 * (minutes[0] if minutes else 30)
SAMPLES = 20


def resident_mib(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


bars = Bars()
# Short responses: the more requests, the more can leak.
with Engines(4, 2, ["--service", "lognormal:mean=100ms,cv=1.5"]) as engines:
    for engine in engines:
        engine.control(break_probability=0.01)
    with route(*engines.of_router()) as router:
        idle = descriptors(router.pid)
        client = start_load(router.url, "--duration", f"{SECONDS:g}s", "--warm-up", "0s", "--leave", "0.05",
                            "--think", "exp:50ms", *engines.of_load())
        started = time.monotonic()
        seen = []
        for nth in range(1, SAMPLES + 1):
            time.sleep(max(0, started + SECONDS * nth / SAMPLES - time.monotonic()))
            seen.append((resident_mib(router.pid), descriptors(router.pid)))
            print(f"{SECONDS * nth / SAMPLES:.0f} s: {seen[-1][0]:.1f} MiB, {seen[-1][1]} descriptors", file=sys.stderr)
        figures = ended(client)
        # Connections to engines that are kept may stay; those of clients are gone.
        time.sleep(1)
        pool = router.get("/evenkeel/status")["pools"]["engines"]
        after = descriptors(router.pid)

# A quarter is left to warm up; then no quarter needs more than the one before, but for what chance gives.
quarter = SAMPLES // 4
first, last = seen[quarter:2 * quarter], seen[-quarter:]
table([["", "MiB", "descriptors"],
       ["at most in the second quarter", f"{max(first)[0]:.1f}", max(count for _, count in first)],
       ["at most in the last quarter", f"{max(last)[0]:.1f}", max(count for _, count in last)],
       ["idle: before, after", "", f"{idle}, {after}"]])
print(f"{figures['requests']} requests, {figures['left']} clients left, errors {figures['errors']}")
bars.hold(max(last)[0] <= 1.05 * max(first)[0] + 1, "memory grows")
bars.hold(max(count for _, count in last) <= 1.1 * max(count for _, count in first) + 10, "descriptors grow")
bars.hold(set(figures["errors"]) <= {"broken"}, f"errors that are not an engine's own: {figures['errors']}")
bars.hold(pool["in_flight"] == 0 and pool["anomalies"] == 0, "counts are left")
bars.hold(figures["at_engines"]["outstanding"] == 0, "requests are left at the engines")
bars.exit()
